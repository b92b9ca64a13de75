"""Configuration and program of systems that learn from a replay of transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar, overload

from shoal.api import Agent, Context, Learner, Spec, UsageError, spec_nbytes
from shoal.learning.algorithm import Algorithm
from shoal.learning.learner import SGDLearner
from shoal.learning.off_policy import OffPolicyConfig, QLearningConfig
from shoal.learning.optimiser import OptimiserConfig, make_optimiser
from shoal.program import Program
from shoal.replay import Ratio, TableSpec
from shoal.settings.ranges import Count, Fraction, NonNegative, OnlyWith, Parts, Repeats, class_name
from shoal.settings.schedule import Scheduled, linear
from shoal.topology.channels import Network, parameters, replay
from shoal.topology.config import SystemConfig
from shoal.topology.fitting import Fit, fitted_replay
from shoal.topology.roles import actors_and_learner, require_parts, team
from shoal.types import Values

RISING = linear(0.4, 1.0)  # Schaul et al. 2016, section 3.4


TransitionSampler = Annotated[str, class_name("proportional", "rank", "greedy")]
SequenceSampler = Annotated[str, class_name("proportional", "rank")]


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(SystemConfig, OptimiserConfig):
    """Settings of learning from a replay of n-step transitions. Periods are in learner updates unless stated
    otherwise."""

    shares_gradient: ClassVar[bool] = True
    for_more_updates: ClassVar[str] = "a larger samples_per_insert, a smaller batch or a smaller min_replay"
    # whether each step brings one item, so that the ratio determines the number of updates
    items_are_steps: ClassVar[bool] = True
    gamma: Fraction = 0.99
    """Discount per agent step."""
    n_step: Repeats = 3
    """Steps of reward before the bootstrap (agent steps)."""
    batch: Count = 128
    """Transitions in each update."""
    samples_per_insert: NonNegative = 8.0
    """Transitions learned from per environment step; 0: acting and learning never wait for each other."""
    replay: Count = 100_000
    """Capacity of the replay (transitions)."""
    min_replay: Count = 1_000
    """Transitions in the replay before the first update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_replay > self.replay:
            raise UsageError(f"min_replay ({self.min_replay}) must be no more than the capacity (replay {self.replay})")

    def progress(self, update: int) -> float:
        """Return the share of the run's updates that are done, or 0 if the ratio does not determine their number."""
        return update * self.batch / (self.steps * self.samples_per_insert) if self.samples_per_insert else 0.0

    def updates(self) -> float | None:
        if not self.samples_per_insert:
            return None
        waits = self.min_replay / self.steps if self.items_are_steps else 0.0
        return max(0.0, 1.0 - waits) / self.progress(1)

    def fitted(self, fit: Fit) -> Values:
        return {**super().fitted(fit), **fitted_replay(self, fit)}

    def ratio(self) -> Ratio:
        """Return the ratio of samples to inserts. Learning and acting may be ahead by at most two messages or two
        batches."""
        if not self.samples_per_insert:
            return Ratio(self.min_replay)
        message = self.unroll * self.envs * self.samples_per_insert
        return Ratio(self.min_replay, self.samples_per_insert, slack=2 * max(message, self.batch))

    def table(self, **fields: Any) -> TableSpec:
        """Return the spec of the replay table, which is sampled uniformly. fields: those that a system adds."""
        env = self.env_spec()
        return TableSpec(
            capacity=self.replay, n_step=self.n_step, gamma=self.gamma, stack=env.stack, pad=env.pad, **fields
        )

    def gradient_processes(self) -> int:
        """Return how many processes share a gradient. If acting and learning do not wait for each other, the actors
        need the cores."""
        return self.processes(self.shares() if self.samples_per_insert and self.shares_gradient else 1)

    def shares(self) -> int:
        """Return the largest number of parts of a batch. A part of fewer than 16 images, or of other rows, would take
        its process as long as the whole batch."""
        return self.batch // 16 if self.has_images() else 1


@dataclass(frozen=True, kw_only=True)
class TransitionConfig(SamplingConfig, OffPolicyConfig):
    """Settings of a replay, uniform or prioritised, and of a target network."""

    only_with: ClassVar[OnlyWith] = dict.fromkeys(
        ("sampler", "priority_exponent", "importance_exponent"), ("prioritised",)
    )

    sampler: TransitionSampler = "proportional"
    """How a prioritised replay is sampled: proportional to the priorities, by their rank, greedy (the largest first),
    or by your own class, MODULE:CLASS."""
    priority_exponent: NonNegative = 0.6
    """Exponent α of the priorities."""
    importance_exponent: Scheduled[Fraction] = RISING
    """Exponent β of the importance weights."""
    replay_shards: Parts = 1
    """Processes that each hold an equal part of the replay, sampled in proportion to their priorities; 1: the learner
    holds all of it."""

    def table(self, **fields: Any) -> TableSpec:
        """Return the spec of the replay table. fields: those that a system adds."""
        sampler = self.sampler if self.prioritised else "uniform"
        return super().table(sampler=sampler, alpha=self.priority_exponent, **fields)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(TransitionConfig, QLearningConfig):
    """Settings of Q-learning from a replay of n-step transitions."""


def progress(cfg: SamplingConfig, ctx: Context, update: int) -> float:
    """Return the share of the run that is done before update number ``update``."""
    told = cfg.samples_per_insert and cfg.items_are_steps
    return cfg.progress(update) if told else ctx.steps() / cfg.steps


Kind = TypeVar("Kind", bound=SGDLearner)


@overload
def descent(cfg: SamplingConfig, ctx: Context, algorithm: Algorithm) -> SGDLearner: ...
@overload
def descent(cfg: SamplingConfig, ctx: Context, algorithm: Algorithm, kind: type[Kind]) -> Kind: ...
def descent(
    cfg: SamplingConfig, ctx: Context, algorithm: Algorithm, kind: type[SGDLearner] = SGDLearner
) -> SGDLearner:  # fmt: skip
    """Return the learner (of class ``kind``) that minimises ``algorithm`` with the settings of ``cfg``. Raises
    UsageError if several processes are to share the gradient of a loss that is not a sum over parts of a batch
    (``Algorithm.adds_up``)."""
    require_parts(cfg, algorithm)
    return kind(
        algorithm, make_optimiser(cfg, algorithm.nets), max_grad_norm=cfg.max_grad_norm,
        progress=partial(progress, cfg, ctx), device=cfg.learner_device(),
        team=team(ctx, cfg.gradient_processes()) if algorithm.adds_up else None,
    )  # fmt: skip


def replay_program(
    name: str, cfg: TransitionConfig, stream: Spec, table: TableSpec, network: Network, agent: Callable[..., Agent],
    learn: Callable[[Any, Context], Learner],
) -> Program:  # fmt: skip
    """Build the topology of DQN, Ape-X and D4PG: actors -> replay -> learner -> parameters -> actors."""
    members = cfg.gradient_processes()
    # copies of the parameters: both networks, a gradient of each member, both averages of the optimiser
    copies = members + 4
    held = copies * spec_nbytes(parameters("params", lambda: network(cfg, "cpu")).spec) if members > 1 else 0
    transitions = replay("transitions", stream, table, cfg.ratio())
    return actors_and_learner(name, cfg, transitions, network, agent, learn, count=cfg.batch, memory=held)
