"""The learner of most systems: gradient descent on an algorithm's loss, one batch after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from shoal.algos.algorithm import Algorithm
from shoal.algos.data_parallel import DataParallel, Team
from shoal.algos.gradient_step import GradientStep, load_optimiser, set_learning_rate
from shoal.algos.trajectories import TrajectoryReplay, split
from shoal.api import Batch, Stateful, Tensors, Update


class SGDLearner:
    """The usual learner: minimise an algorithm's loss by an optimiser.

    schedule: learning rate as a function of the update's number; None keeps the optimiser's.
    parts: a batch of trajectories is learned from in this many gradient steps, each on its own share of the columns.
    max_grad_norm: global-norm clip.
    replay: adds trajectories of the past to those of each gradient step.
    team: processes that share each gradient (data-parallel); None: this one alone.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        optimiser: torch.optim.Optimizer,
        *,
        max_grad_norm: float | None = None,
        schedule: Callable[[int], float] | None = None,
        device: str = "cpu",
        parts: int = 1,
        replay: TrajectoryReplay | None = None,
        team: Team | None = None,
    ) -> None:
        self.algorithm, self.optimiser, self.replay = algorithm, optimiser, replay
        self.schedule, self.device, self.parts = schedule, torch.device(device), parts
        self.gradient_step = GradientStep(optimiser, max_grad_norm, parts)
        self.workers = None if team is None else DataParallel(algorithm, self.gradient_step, team)
        self.step = 0

    def update(self, batch: Batch) -> Update:
        batch = to_device(batch, self.device)
        if self.parts == 1:
            return self._step(batch)
        updates = [self._step(part) for part in split(batch, self.parts)]
        metrics: dict[str, list[float]] = {}
        for update in updates:
            for name, value in update.metrics.items():
                metrics.setdefault(name, []).append(float(value))
        return Update({name: sum(values) / len(values) for name, values in metrics.items()})

    def _step(self, batch: Batch) -> Update:
        if self.schedule is not None:
            set_learning_rate(self.optimiser, self.schedule(self.step))
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
        if norm is None:
            return Update({"learning_rate": rate, "skipped_updates": 1.0})
        metrics = {"loss": loss, "grad_norm": norm, "learning_rate": rate, "skipped_updates": 0.0}
        return Update({**metrics, **update.metrics}, update.priorities)

    def params(self) -> Tensors:
        return self.algorithm.params()

    def state_dict(self) -> dict[str, Any]:
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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.nets.load_state_dict(state["nets"])
        load_optimiser(self.optimiser, state["optimiser"])
        self.step, self.gradient_step.skipped = state["step"], state["skipped"]
        if isinstance(self.algorithm, Stateful):
            self.algorithm.load_state_dict(state["algorithm"])
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"], self.device)
        if self.workers is not None:
            self.workers.restart()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its items (and probabilities) on ``device``; itself if they are there."""
    if device.type == "cpu":
        return batch
    items = {k: v.to(device, non_blocking=True) for k, v in batch.items.items()}
    return batch._replace(items=items, probs=None if batch.probs is None else batch.probs.to(device))
