"""Algorithms that learn from a replay: a target network, importance weights, and their settings."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from shoal.api import Batch, Tensors
from shoal.learning.algorithm import Algorithm
from shoal.learning.optimiser import OptimiserConfig
from shoal.nets.precision import inferring
from shoal.ops import importance_weights
from shoal.settings.ranges import Count, Fraction, Positive
from shoal.settings.schedule import Scheduled, at
from shoal.types import State

METRICS_EVERY = 10  # updates: how often the mean value and error are worked out, which only people read
BEFORE_THE_LOSS = ("learning_rate", "max_grad_norm", "importance_exponent")  # and after it: schedules of others
Self = TypeVar("Self", bound="OffPolicy")


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(OptimiserConfig):
    """Learning from a replay, with a target network."""

    gamma: Fraction = 0.99
    """Discount per agent step."""
    prioritised: bool = False
    """Sample by priority, the absolute TD error; false: uniformly."""
    target_period: Count = 100
    """Updates between copies into the target network."""


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(OffPolicyConfig):
    """Settings of the learning rule of the DQN family."""

    double: bool = True
    """Select the next action by the online network (double Q-learning)."""
    dueling: bool = False
    """Separate value and advantage streams."""
    td_clip: Scheduled[Positive] | None = 1.0
    """Clip of the TD error in the gradient (Huber loss); none: squared error."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the loss over the batch (DeepMind's code of DQN sums)."""
    eval_epsilon: Fraction = 0.05
    """Probability of a random action in evaluations that are not greedy (Mnih et al. 2015)."""


class OffPolicy(Algorithm):
    """Algorithm with a target network, which is copied from ``nets`` every ``target_period`` updates.

    beta: exponent of the importance weights, constant or a schedule (None: no weights). reduction: of the loss over a
    batch. seed: of ``generator``, from which the loss draws and whose state is saved with the target network (None: the
    loss draws nothing).
    """

    def __init__(
        self, nets: nn.Module, target_period: int, beta: float | None = None,
        reduction: Literal["mean", "sum"] = "mean", seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(nets)
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.target_period, self.beta, self.reduction = target_period, beta, reduction
        self.target: Any = inferring(copy.deepcopy(nets))
        self._copied = -1  # the step at which ``follow`` last copied

    @classmethod
    def of(cls: type[Self], cfg: Any, nets: nn.Module, seed: int | None = None) -> Self:
        """Return the algorithm that a configuration (``TransitionConfig``) asks for."""
        made = cls(nets, cfg.target_period, cfg.importance_exponent if cfg.prioritised else None, seed=seed)
        made.cfg = cfg
        return made

    def prepare(self, batch: Batch) -> Batch:
        """Adds ``weight`` [B]: of each item's loss. scalars: each item's part of the metrics."""
        reward = batch.items["reward"]
        count = reward.shape[-1]  # of transitions [B] or of sequences [T, B]
        self.scalars = [1.0 / count]
        scale = self.scalars[0] if self.reduction == "mean" else 1.0
        if self.beta is None:
            weight = reward.new_full((count,), scale)
        else:
            assert batch.probs is not None, "importance weights need a prioritised replay"
            weight = importance_weights(batch.probs, batch.size or 1, at(self.beta, self.fraction)).mul_(scale)
        return batch._replace(items={**batch.items, "weight": weight})

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Rows that follow one another."""
        first = int(rows[0]) if len(rows) else 0
        return {k: v[first : first + len(rows)] for k, v in items.items()}

    def reports(self) -> bool:
        """Return whether this update has metrics that only people read."""
        return self.updates % METRICS_EVERY == 0

    def numbers(self) -> tuple[float, ...]:
        own = (name for name in self._schedules or () if name not in BEFORE_THE_LOSS)
        return (*self.scalars, *(getattr(self.cfg, name) for name in own), self.reports())

    def after_step(self, step: int) -> None:
        self.updates = step
        if step % self.target_period == 0:
            self.target.load_state_dict(self.nets.state_dict())

    def follow(self, steps: int) -> None:
        self.updates, period = steps, self.target_period
        if self._copied < 0 or steps // period > self._copied // period:
            self._copied = steps
            self.target.load_state_dict(self.nets.state_dict())

    @torch.no_grad()
    def average_target(self, share: float) -> None:
        """Move the target network by ``share`` of the way to the network that learns (Polyak averaging; Lillicrap et
        al. 2016, τ): for an ``after_step`` of one's own, which replaces the copy every ``target_period`` updates."""
        for target, newest in zip(self.target.state_dict().values(), self.nets.state_dict().values(), strict=True):
            if target.is_floating_point():
                target.lerp_(newest.to(target.dtype), share)
            else:
                target.copy_(newest)

    def state_dict(self) -> State:
        state = {"target": self.target.state_dict(), "updates": self.updates, "copied": self._copied}
        return state if self.generator is None else {**state, "rng": self.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        self.target.load_state_dict(state["target"])
        self.updates = state["updates"]
        counted = self.updates if state.get("copies", -1) >= 0 else -1  # by an earlier version, in periods
        self._copied = state.get("copied", counted)
        if self.generator is not None:
            self.generator.set_state(state["rng"])
