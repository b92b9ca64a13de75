"""The learner of most systems: gradient descent on an algorithm's loss, one batch after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import torch

from shoal.api import Batch, Stateful, Tensors, Update, UsageError
from shoal.learning.algorithm import Algorithm
from shoal.learning.data_parallel import DataParallel, Team
from shoal.learning.differentiate import to_device
from shoal.learning.gradient_step import GradientStep
from shoal.nets.recurrent import column_axis
from shoal.ops.optimiser import load_optimiser
from shoal.settings.schedule import schedules
from shoal.types import State


class Past(Protocol):
    """A learner's own memory of trajectories."""

    def mix(self, batch: Batch) -> Batch:
        """Keep a batch of trajectories, and add some of the past to it."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State, device: torch.device | str = "cpu") -> None: ...


class SGDLearner:
    """Learner that minimises an algorithm's loss with an optimiser. Most systems use it.

    progress: function from the number of an update to the share of the run that is done, for scheduled settings; None:
    unknown, and UsageError if there is a schedule. parts: a batch of trajectories is learned from in this many gradient
    steps, each on its own share of the columns. max_grad_norm: global-norm clip. replay: adds trajectories of the past
    to those of each gradient step. team: processes that share each gradient (data-parallel); None: this one alone.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        optimiser: torch.optim.Optimizer,
        *,
        max_grad_norm: float | None = None,
        progress: Callable[[int], float] | None = None,
        device: str = "cpu",
        parts: int = 1,
        replay: Past | None = None,
        team: Team | None = None,
    ) -> None:
        self.algorithm, self.optimiser, self.replay = algorithm, optimiser, replay
        self.progress, self.device, self.parts = progress, torch.device(device), parts
        self.gradient_step = GradientStep(optimiser, max_grad_norm, parts)
        if progress is None and (planned := schedules(algorithm.cfg) or self.gradient_step.scheduled):
            named = ", ".join(f"{k} is {v}" for k, v in planned.items()) if isinstance(planned, dict) else "one is set"
            raise UsageError(f"this system's learner knows no schedules (it has no `progress`), but {named}")
        self.workers = None if team is None else DataParallel(algorithm, self.gradient_step, team)
        self.step = 0

    def update(self, batch: Batch) -> Update:
        batch = to_device(batch, self.device)
        if self.parts == 1:
            return self._step(batch)
        return averaged([self._step(part) for part in split(batch, self.parts)])

    def _step(self, batch: Batch) -> Update:
        scheduled = self._schedule()
        if self.replay is not None:
            batch = self.replay.mix(batch)
        batch = self.algorithm.prepare(batch)
        if self.workers is None:
            norm, loss, update = self.gradient_step.minimise(self.algorithm, batch)
        else:
            norm, loss, update = self.workers.minimise(batch)
        self.step += 1
        self.algorithm.after_step(self.step)
        rate = self.optimiser.param_groups[0]["lr"]
        current = {**scheduled, "learning_rate": rate}
        if norm is None:
            return Update({**current, "skipped_updates": 1.0})
        metrics = {"loss": loss, "grad_norm": norm, **current, "skipped_updates": 0.0}
        return Update({**metrics, **update.metrics}, update.priorities)

    def _schedule(self) -> dict[str, float]:
        """Give schedules their values of this update."""
        if self.progress is None:
            return {}
        fraction = self.progress(self.step)
        return {**self.gradient_step.at(fraction), **self.algorithm.at(fraction)}

    def params(self) -> Tensors:
        return self.algorithm.params()

    def state_dict(self) -> State:
        out = {
            "nets": self.algorithm.nets.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "skipped": self.gradient_step.skipped,
        }
        if isinstance(self.algorithm, Stateful):
            out["algorithm"] = self.algorithm.state_dict()
        if self.replay is not None:
            out["replay"] = self.replay.state_dict()
        # Whoever writes this down would see what the workers go on to change
        return out if self.workers is None else copy.deepcopy(out)

    def load_state_dict(self, state: State) -> None:
        self.algorithm.nets.load_state_dict(state["nets"])
        load_optimiser(self.optimiser, state["optimiser"])
        self.step, self.gradient_step.skipped = state["step"], state["skipped"]
        if isinstance(self.algorithm, Stateful):
            self.algorithm.load_state_dict(state["algorithm"])
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"], self.device)
        if self.workers is not None:
            self.workers.restart()


def averaged(updates: list[Update]) -> Update:
    """One update whose metrics are the means of those of several."""
    metrics: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.metrics.items():
            metrics.setdefault(name, []).append(float(value))
    return Update({name: sum(values) / len(values) for name, values in metrics.items()})


def split(batch: Batch, parts: int) -> list[Batch]:
    """A batch of trajectories as ``parts`` batches of fewer columns (views)."""
    columns = {k: v.chunk(parts, column_axis(k)) for k, v in batch.items.items()}
    return [batch._replace(items={k: v[i] for k, v in columns.items()}, versions=()) for i in range(parts)]
