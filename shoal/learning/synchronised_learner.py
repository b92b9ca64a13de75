"""Gradient descent by learners that stay equal: each makes the gradient of its own batch, and all follow the mean.

Espeholt et al. 2018, "IMPALA", section 3: multiple synchronised learners, over which the actors are spread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal import transfer
from shoal.api import Arrays, Batch, Field, Spec, Tensors, Update
from shoal.learning.differentiate import differentiate, to_device
from shoal.learning.learner import SGDLearner, averaged, split
from shoal.ops import global_norm
from shoal.types import State


class SynchronisedLearner(SGDLearner):
    """``begin`` with a batch, then ``gradient`` -> reduce (mean) -> ``descend``, once for each of its parts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._mean = MeanGradient(self.gradient_step.parameters, self.device)
        self._parts: list[Batch] = []  # those whose gradient has not been made
        self._scheduled: dict[str, float] = {}
        self._updates: list[Update] = []  # of the parts of this batch

    def begin(self, batch: Batch) -> None:
        """Take in this learner's batch."""
        batch = to_device(batch, self.device)
        self._parts = [batch] if self.parts == 1 else list(split(batch, self.parts))
        self._updates = []

    def gradient(self, out: Arrays) -> None:
        """Write the gradient of the next part, and its loss, into an item of ``gradient_spec``."""
        self._scheduled = self._schedule()
        part = self._parts.pop(0)
        if self.replay is not None:
            part = self.replay.mix(part)
        self.optimiser.zero_grad(set_to_none=True)
        loss, _, update = differentiate(self.algorithm, self.algorithm.prepare(part))
        out["loss"][...], update = self._mean.write(out["gradient"], loss, update)
        self._updates.append(Update({k: float(v) for k, v in update.metrics.items()}))

    def descend(self, means: Tensors) -> Update | None:
        """Step along the mean gradient of all learners. The metrics of the batch if this was its last part: the loss
        is the mean of all learners, the rest this one's own."""
        loss = float(means["loss"])
        norm = self.gradient_step.descend(loss, *self._mean.take(means["gradient"]))
        self.step += 1
        self.algorithm.after_step(self.step)
        current = {**self._scheduled, "learning_rate": self.optimiser.param_groups[0]["lr"]}
        if norm is None:
            self._updates[-1] = Update({**current, "skipped_updates": 1.0})
        else:
            own = self._updates[-1].metrics
            self._updates[-1] = Update({"loss": loss, "grad_norm": norm, **current, "skipped_updates": 0.0, **own})
        return None if self._parts else averaged(self._updates)

    def state_dict(self) -> State:
        waiting = [dict(part.items) for part in self._parts]
        metrics = [dict(update.metrics) for update in self._updates]
        return {**super().state_dict(), "parts": waiting, "updates": metrics}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._parts = [to_device(Batch(items), self.device) for items in state["parts"]]
        self._updates = [Update(metrics) for metrics in state["updates"]]
        self._scheduled = self._schedule()  # a gradient may be on its way


def gradient_spec(nets: nn.Module) -> Spec:
    """Return what learners average: the gradient of all parameters as one vector, and the loss."""
    size = sum(p.numel() for p in nets.parameters())
    return {"gradient": Field((size,), axis=0), "loss": Field((), "float64")}


class MeanGradient:
    """The gradient of ``parameters`` as one vector: what a learner gives of its own, and takes as the mean of all."""

    def __init__(self, parameters: list[Tensor], device: torch.device) -> None:
        self.parameters = parameters
        self._flat = torch.zeros(sum(p.numel() for p in parameters), device=device)
        self._views = self._parts(self._flat)

    @torch.no_grad()
    def write(self, out: Any, loss: Tensor, update: Update) -> tuple[float, Update]:
        """Write the parameters' gradients into a vector (NumPy); 0 for one that has none. Returns the value of the
        loss, and the update, which come from a GPU together with the gradients, by one wait."""
        vector, on_host = torch.from_numpy(out), self._flat.device.type == "cpu"
        for target, p in zip(self._parts(vector) if on_host else self._views, self.parameters, strict=True):
            if p.grad is None:
                target.zero_()
            else:
                target.copy_(p.grad)
        if on_host:
            return loss.item(), update
        (value,), update, (gradient,) = transfer.received(loss, (), update, [self._flat])
        vector.copy_(gradient)
        return value, update

    def take(self, mean: Tensor) -> tuple[list[Tensor], float]:
        """The mean, which is the parameters' gradient from now on, and its norm, of which nobody asks a GPU."""
        self._flat.copy_(transfer.send(mean, self._flat.device))
        for p, view in zip(self.parameters, self._views, strict=True):
            p.grad = view
        return [self._flat], global_norm([self._flat if self._flat.device.type == "cpu" else mean])

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """Consecutive parts of a vector in the shapes of the parameters."""
        parts = torch.split(flat, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]
