"""Gradient descent on an algorithm's loss: the learner of most systems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from shoal.algos.trajectories import TrajectoryReplay, split
from shoal.api import Algorithm, Batch, Diverged, Stateful, Tensors, Update
from shoal.nets.perceptron import Backward

MAX_SKIPPED = 10  # non-finite updates in a row before the learner gives up


class Loss(Protocol):
    """What a gradient step minimises: a scalar tensor, or what can say its value and give every parameter its
    ``grad``; ``backward`` may return all of them as one vector, if they lie in memory as one."""

    def item(self) -> float: ...
    def backward(self) -> Tensor | None: ...


class KnownLoss(NamedTuple):
    """A loss whose gradient has been worked out: no graph of small operations for autograd to walk."""

    value: float | Tensor
    backward: Callable[[], Tensor | None]

    def item(self) -> float:
        return float(self.value)


def detached(values: Tensor) -> tuple[Tensor, Backward]:
    """``values`` outside autograd, and ``values.backward``."""

    def backward(gradient: Tensor) -> None:
        # to check the gradient's shape, torch would import its symbolic shapes: 490 modules, 0.4 to 1.4 s, 75 to 90 MB
        (values * gradient).sum().backward()  # type: ignore[no-untyped-call]

    return values.detach(), backward


class GradientStep:
    """Backward pass, global-norm clip and optimiser step. A step whose loss or gradient is not finite is skipped;
    after ten updates in a row, of ``steps`` each, it raises Diverged."""

    def __init__(self, optimiser: torch.optim.Optimizer, max_norm: float | None, steps: int = 1) -> None:
        self.optimiser, self.max_norm = optimiser, math.inf if max_norm is None else max_norm
        self.patience = MAX_SKIPPED * steps
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.skipped = 0  # in a row

    def __call__(self, loss: Loss) -> float | None:
        """Minimise ``loss``; returns the gradient's norm before clipping, None for a step that was skipped."""
        self.optimiser.zero_grad(set_to_none=True)
        joined = loss.backward()
        grads = [p.grad for p in self.parameters if p.grad is not None] if joined is None else [joined]
        norm = global_norm(grads)
        if not self.accepts(loss.item(), norm):
            return None
        clip(grads, norm, self.max_norm)
        self.optimiser.step()
        return norm

    def accepts(self, loss: float, norm: float) -> bool:
        """Whether a step of such a loss and such a gradient is to be taken."""
        if finite(loss, norm):
            self.skipped = 0
            return True
        self.skipped += 1
        if self.skipped >= self.patience:
            wrong = "gradient" if math.isfinite(loss) else "loss"
            facts = {"loss": loss, "grad_norm": norm, "skipped_in_a_row": self.skipped}
            raise Diverged(f"the {wrong} was not finite in {MAX_SKIPPED} updates in a row", facts)
        return False


def finite(loss: float, norm: float) -> bool:
    """Whether a step along a gradient of that norm makes sense."""
    return math.isfinite(loss) and math.isfinite(norm)


def global_norm(grads: list[Tensor]) -> float:
    """Of all of them together."""
    if len(grads) == 1:
        return float(torch.linalg.vector_norm(grads[0]))
    return math.hypot(*torch.stack(torch._foreach_norm(grads)).tolist())


def excess(norm: float, max_norm: float) -> float:
    """What a gradient of that norm is divided by so as to have at most ``max_norm``: 1 if it has no more."""
    return (norm + 1e-6) / max_norm if norm > max_norm else 1.0


def clip(grads: list[Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients of global norm ``norm`` down to ``max_norm``. As ``clip_grad_norm_`` of torch, which scales by 1
    too and, with the norm, takes 20 to 50 us longer."""
    if (divisor := excess(norm, max_norm)) != 1.0:
        torch._foreach_mul_(grads, 1.0 / divisor)


class SGDLearner:
    """The usual learner: minimise ``algorithm.loss`` by a torch optimiser.

    schedule: learning rate as a function of the update's number; None keeps the optimiser's.
    parts: a batch of trajectories is learned from in this many gradient steps, each on its own share of the columns.
    max_grad_norm: global-norm clip.
    replay: adds trajectories of the past to those of each gradient step.
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
    ) -> None:
        self.algorithm, self.optimiser, self.replay = algorithm, optimiser, replay
        self.schedule, self.device, self.parts = schedule, torch.device(device), parts
        self.gradient_step = GradientStep(optimiser, max_grad_norm, parts)
        self.step = 0

    def update(self, batch: Batch) -> Update:
        batch = to_device(batch, self.device)
        if self.parts == 1:
            return self._step(batch)
        updates = [self._step(part) for part in split(batch, self.parts)]
        told: dict[str, list[float]] = {}
        for update in updates:
            for name, value in update.metrics.items():
                told.setdefault(name, []).append(float(value))
        return Update({name: sum(values) / len(values) for name, values in told.items()})

    def _step(self, batch: Batch) -> Update:
        if self.schedule is not None:
            set_learning_rate(self.optimiser, self.schedule(self.step))
        if self.replay is not None:
            batch = self.replay.mix(batch)
        norm, loss, update = self._descend(batch)
        self.step += 1
        self.algorithm.after_step(self.step)
        rate = self.optimiser.param_groups[0]["lr"]
        if norm is None:
            return Update({"learning_rate": rate, "skipped_updates": 1.0})
        metrics = {"loss": loss, "grad_norm": norm, "learning_rate": rate, "skipped_updates": 0.0}
        return Update({**metrics, **update.metrics}, update.priorities)

    def _descend(self, batch: Batch) -> tuple[float | None, float, Update]:
        """One gradient step: the gradient's norm before clipping (None: skipped), the loss, and what is told."""
        loss, update = self.algorithm.loss(batch)
        return self.gradient_step(loss), loss.item(), update

    def params(self) -> Tensors:
        return self.algorithm.actor_params()

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
        return out

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.algorithm.nets.load_state_dict(state["nets"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.gradient_step.skipped = state["step"], state["skipped"]
        if isinstance(self.algorithm, Stateful):
            self.algorithm.load_state_dict(state["algorithm"])
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its items (and probabilities) on ``device``; itself if they are there."""
    if device.type == "cpu":
        return batch
    items = {k: v.to(device, non_blocking=True) for k, v in batch.items.items()}
    return batch._replace(items=items, probs=None if batch.probs is None else batch.probs.to(device))


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate
