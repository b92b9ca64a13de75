"""A3C: workers that act and learn by themselves on parameters they share in memory, without a lock.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.algos.actor_critic import ActorCritic, ActorCriticAgent, ActorCriticConfig, PolicyValue, boundaries
from shoal.algos.algorithm import Algorithm
from shoal.algos.segments import SegmentLearner
from shoal.api import Batch, Context, Update, UsageError, spec_nbytes
from shoal.ops import actor_critic_loss, discrete_actor_critic_loss
from shoal.program import Program
from shoal.roles.worker import WorkerRole
from shoal.settings.schedule import linear
from shoal.systems.asynchronous import WorkerConfig, shared_parameters
from shoal.systems.config import Preset, Presets
from shoal.systems.wiring import begin, collector, trajectories
from shoal.types import Values


@dataclass(frozen=True, kw_only=True)
class Config(WorkerConfig, ActorCriticConfig):  # in this order, for the defaults of the first win
    """A3C."""

    value_cost: float = 1.0
    """Weight of the value loss, which is half the squared error."""


PAPER: Preset = dict(  # section 4 and supplementary section 8; learning rate: authors, in muupan/async-rl
    actors=16, envs=1, unroll=5, steps=80_000_000, learning_rate=linear(7e-4, 0.0), optimiser_eps=0.1,
    rmsprop_decay=0.99, max_grad_norm=40.0, entropy_cost=0.01, value_cost=0.5, gamma=0.99, reward_clip="unit",
    torso="impala-shallow", activation="relu", core_size=256, precision="fp32",
)  # fmt: skip
CLASSIC: Preset = dict(
    actors=2, envs=4, unroll=16, steps=500_000, learning_rate=linear(2e-3, 0.0), optimiser_eps=1e-2, gamma=0.98,
    max_grad_norm=40.0, entropy_cost=0.01, value_cost=0.25, reward_scale=0.1,
)  # fmt: skip
VECTOR: Preset = {**CLASSIC, "steps": 1_000_000, "novelty": 0.5, "novelty_steps": 60_000}
STATES: Preset = {**CLASSIC, "steps": 1_000_000, "episode_bound": 500}
PRESETS: Presets = {
    "paper": PAPER, "classic": CLASSIC, "classic_continuous": VECTOR, "states": STATES, "vector": VECTOR,
    "vector_continuous": VECTOR,
}  # fmt: skip


class AdvantageActorCritic(Algorithm):
    """The n-step loss (section 4, algorithm S3): sums, not means, over the segment; no gradient flows through the
    advantage."""

    cfg: ActorCriticConfig

    def __init__(self, cfg: ActorCriticConfig, nets: ActorCritic) -> None:
        super().__init__(nets)
        self.cfg = cfg

    def loss(self, outputs: PolicyValue, batch: Batch) -> tuple[Tensor, Update]:
        cfg, items, value = self.cfg, batch.items, outputs.value  # [T + 1, B]
        given = (items["reward"], *boundaries(items, value.detach(), cfg.gamma), items["valid"])
        costs: Values = {"value_cost": cfg.value_cost, "entropy_cost": cfg.entropy_cost}
        if outputs.dist.kind == "discrete":
            loss, means = discrete_actor_critic_loss(outputs.joined, items["action"], *given, **costs)
        else:
            loss, means = actor_critic_loss(*outputs.evaluate(items["action"]), value, *given, **costs)
        return loss, Update(dict(zip(("policy_loss", "value_loss", "entropy"), means.tolist(), strict=True)))


def network(cfg: Config, device: str = "cpu") -> ActorCritic:
    """Policy and value on one network."""
    return ActorCritic.of(cfg, cfg.env_spec(), device)


def agent(cfg: Config, seed: int = 0, ctx: Context | None = None) -> ActorCriticAgent:
    """Samples from the policy."""
    return ActorCriticAgent(network(cfg), seed)


def program(cfg: Config) -> Program:
    """Workers and the parameters that they share."""

    def learn(nets: ActorCritic, ctx: Context) -> SegmentLearner:
        return SegmentLearner(AdvantageActorCritic(cfg, nets), cfg.max_grad_norm)

    return workers("a3c", cfg, network, agent, learn)


def workers(
    name: str, cfg: Config, network: Callable[..., ActorCritic], agent: Callable[..., ActorCriticAgent],
    learn: Callable[[Any, Context], SegmentLearner], memory: int = 0,
) -> Program:  # fmt: skip
    """The program of workers that learn as ``learn(nets, ctx)`` does, of ``network(cfg)``, and act as
    ``agent(cfg, seed, ctx)`` does; memory: bytes that each holds beside the channel."""
    if cfg.normalise_obs:
        raise UsageError(f"normalise_obs keeps statistics that no gradient moves: {name}'s workers cannot share them")
    cfg.require_cpu()
    p = Program(name)
    params = p.channel(shared_parameters(name, cfg, lambda: network(cfg)))
    spec = trajectories(cfg, network, {})

    def make_worker(ctx: Context, params: Any) -> WorkerRole:
        torch.manual_seed(ctx.seed)
        learner = learn(begin(ctx, network(cfg)), ctx)

        def learning_rate(steps: int) -> float:
            return learner.at(cfg.learning_rate, steps / cfg.steps)

        return WorkerRole(ctx, collector(ctx, cfg, agent, spec), learner, learning_rate, params)

    p.role(
        "worker", make_worker, replicas=cfg.num_actors(), on_failure="restart", threads=cfg.learner_threads or 1,
        memory=memory + spec_nbytes(spec), params=params.member(),
    )  # fmt: skip
    return p
