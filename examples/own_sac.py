"""SAC: two critics, a stochastic policy that earns entropy too, and a temperature that tunes itself.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications". Try: shoal train own_sac.py --env Pendulum-v1
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from shoal import building as rl

PRESETS = {"classic": {"steps": 20_000, "total_envs": 1, "unroll": 8}}


@dataclass(frozen=True, kw_only=True)
class Config(rl.TransitionConfig):
    env: str = "Pendulum-v1"
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    optimiser_eps: float = 1e-8
    max_grad_norm: float | None = None
    n_step: int = 1
    batch: int = 256
    samples_per_insert: float = 256.0  # one update per step
    tau: float = 0.005
    """Share of the way that the target critics move at each update."""


class SACNetwork(rl.BoxNetwork):
    def __init__(self, cfg, device="cpu"):
        super().__init__(cfg.env_spec(), cfg.torso, cfg.hidden, "relu", cfg.precision, device)
        features, actions = self.encoder.features, self.actions
        self.policy = nn.Sequential(rl.MLP((features, *cfg.hidden), "relu"), nn.Linear(cfg.hidden[-1], 2 * actions))
        self.critics = nn.ModuleList(rl.Critic(features, actions, cfg.hidden, 1, "relu", False) for _ in range(2))
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def sample(self, features, rng):  # actions [B, A] in [-1, 1] and their log-probabilities [B]
        mean, log_std = self.policy(features).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn(mean.shape, generator=rng).to(mean.device)
        y = mean + log_std.exp() * noise  # the last term: how tanh stretches the density (appendix C)
        gaussian = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        return torch.tanh(y), (gaussian - 2 * (math.log(2) - y - F.softplus(-2 * y))).sum(-1)

    def values(self, features, actions):  # both critics: [B, 2]
        return torch.cat([critic(features, actions) for critic in self.critics], -1)


class SAC(rl.OffPolicy):
    def loss(self, outputs, batch):
        items, nets, weight = batch.items, self.nets, batch.items["weight"]
        seen, alpha = nets.features(rl.observations(items)), nets.log_alpha.exp().detach()
        with torch.no_grad():  # equations 2 and 3; discount: gamma^n, 0 where the episode has terminated
            after = rl.observations(items, "next/")
            action, log_prob = nets.sample(nets.features(after), self.generator)
            value = self.target.values(self.target.features(after), action).amin(-1) - alpha * log_prob
            target = items["reward"] + items["discount"] * value
        error = nets.values(seen, items["action"]) - target[:, None]  # equation 5
        action, log_prob = nets.sample(seen.detach(), self.generator)
        with rl.without_gradients(nets.critics):  # equation 7
            climbed = nets.values(seen.detach(), action).amin(-1)
        cost = 0.5 * error.square().sum(-1) + alpha * log_prob - climbed
        cost = cost - nets.log_alpha * (log_prob.detach() - nets.actions)  # equation 18
        return weight.dot(cost), rl.Update({"alpha": alpha}, error.detach().abs().mean(-1))

    def after_step(self, step):
        self.updates = step
        self.average_target(self.cfg.tau)


class SACAgent(rl.NetworkAgent):
    @torch.no_grad()
    def act(self, obs, first, state, greedy=False):
        nets, features = self.nets, self.nets.features({k: torch.from_numpy(v) for k, v in obs.items()})
        action = torch.tanh(nets.policy(features).chunk(2, -1)[0]) if greedy else nets.sample(features, self.rng)[0]
        return rl.Act(action.numpy(), state, {})


def agent(cfg, seed=0, ctx=None):
    return SACAgent(SACNetwork(cfg), torch.Generator().manual_seed(seed))


def program(cfg):
    def learn(nets, ctx):
        return rl.descent(cfg, ctx, SAC.of(cfg, nets, ctx.seed))

    return rl.replay_program("sac", cfg, rl.stream(cfg), cfg.table(), SACNetwork, agent, learn)
