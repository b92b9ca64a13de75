"""A2C: workers and a learner in lockstep. Try: shoal train own_system.py --env CartPole-v1 --steps 200000"""

from dataclasses import dataclass

from shoal.building import (
    ActorCritic,
    ActorCriticAgent,
    ActorCriticConfig,
    Algorithm,
    SGDLearner,
    SystemConfig,
    Update,
    actors_and_learner,
    boundaries,
    gae,
    make_optimiser,
    queue,
    trajectories,
)

PRESETS = {"classic": {"unroll": 8}}  # taken for CartPole and its like


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig, ActorCriticConfig):
    learning_rate: float = 2e-3  # constant: this learner has no `progress`, by which schedules go
    trace: float = 0.95
    """Parameter λ of generalised advantage estimation."""


class A2C(Algorithm):
    def __init__(self, cfg, nets):
        super().__init__(nets)
        self.cfg = cfg

    def loss(self, outputs, batch):  # outputs: what the network says of the batch; time-major [T, B]
        items, value = batch.items, outputs.value  # [T + 1, B]
        log_prob, entropy = outputs.evaluate(items["action"])
        discounts, next_values, cut = boundaries(items, value.detach(), self.cfg.gamma)
        advantage = gae(items["reward"], discounts, value[:-1].detach(), next_values, cut, self.cfg.trace)
        error = advantage + value[:-1].detach() - value[:-1]
        loss = self.cfg.value_cost * error**2 - advantage * log_prob - self.cfg.entropy_cost * entropy
        return loss[items["valid"]].mean(), Update({"entropy": entropy.detach().mean()})


def network(cfg, device="cpu"):
    return ActorCritic.of(cfg, cfg.env_spec(), device)


def agent(cfg, seed=0, ctx=None):
    return ActorCriticAgent(network(cfg), seed)


def program(cfg):
    def learn(nets, ctx):
        return SGDLearner(A2C(cfg, nets), make_optimiser(cfg, nets), max_grad_norm=cfg.max_grad_norm)

    unrolls = queue("unrolls", trajectories(cfg, network, {}))
    return actors_and_learner("a2c", cfg, unrolls, network, agent, learn, lockstep=True, actor_role="worker")
