"""PPO with a KL penalty in place of the clip. Schulman et al. 2017, equation 8.

Try: shoal train own_ppo.py --env CartPole-v1 --steps 60000
"""

from dataclasses import dataclass

from shoal.building import PPO, Update
from shoal.systems import recurrent_ppo

PRESETS = recurrent_ppo.PRESETS


@dataclass(frozen=True, kw_only=True)
class Config(recurrent_ppo.Config):
    clip: float = 1e9  # none
    kl_cost: float = 1.0
    """Weight β of the KL divergence from the policy that acted."""


class KLPenalty(PPO):
    cfg: Config

    def loss(self, outputs, batch):
        loss, update = super().loss(outputs, batch)
        log_ratio = (outputs.evaluate(batch.items["action"])[0] - batch.items["log_prob"]).flatten()
        kl = batch.items["weight"].flatten().dot(log_ratio.exp() - 1 - log_ratio)
        return loss + self.cfg.kl_cost * kl, Update({**update.metrics, "kl_penalty": kl.detach()})


agent = recurrent_ppo.agent


def program(cfg):
    return recurrent_ppo.program(cfg, KLPenalty)
