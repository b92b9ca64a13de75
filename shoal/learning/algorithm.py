"""An algorithm: networks and one differentiable loss, tensors in and tensors out; no process, no clock, no file."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.api import Batch, Tensors, Update
from shoal.fast.known import known_gradient
from shoal.nets.live import LiveTensors
from shoal.nets.outputs import Outputs
from shoal.settings.schedule import Linear, schedules
from shoal.transfer import upload


class Algorithm:
    """The learning rule of a system. A subclass writes ``loss``; the rest has defaults.

    nets: the network that learns, with ``outputs(items) -> Outputs`` (``ActorCritic``, ``QNetwork``); of one without,
    the outputs are None, and the loss calls it itself. frozen: networks that the loss asks but that no gradient
    changes (target networks). scalars: numbers that change from step to step. cfg: the settings that the loss reads;
    those that are schedules have the values of the moment (``at``). fraction: share of the run that is done. updates:
    gradient steps before this one, for an algorithm that asks.
    """

    cfg: Any = None
    frozen: tuple[nn.Module, ...] = ()
    adds_up: ClassVar[bool] = False
    """Whether the losses (and metrics) of a batch's parts add up to those of the batch, so that several processes may
    share its gradient. A class that has a ``loss`` of its own says so itself, or never shares."""
    fraction = 0.0
    updates = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "loss" in vars(cls) and "adds_up" not in vars(cls):
            cls.adds_up = False  # its parent's word is about another loss

    def __init__(self, nets: nn.Module) -> None:
        self.nets: Any = nets
        self.scalars: list[float] = []
        self._live = LiveTensors(nets)
        self._schedules: dict[str, Linear] | None = None  # of ``cfg``

    def at(self, fraction: float) -> dict[str, float]:
        """This share of the run is done: the settings of ``cfg`` that are schedules have these values now."""
        self.fraction = fraction
        if self._schedules is None:
            self._schedules = schedules(self.cfg)
            self.cfg = copy.copy(self.cfg)  # of its own: the schedules in it take their values in place
        values = {name: schedule.at(fraction) for name, schedule in self._schedules.items()}
        for name, value in values.items():
            object.__setattr__(self.cfg, name, value)  # frozen, but for everybody else
        return values

    def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        """Return the scalar to minimise, with metrics and, for a prioritised replay, priorities.

        outputs: what ``nets`` says of the batch (``Outputs.values``), through which most losses reach the parameters.
        A term that reaches them another way (an L2 cost over ``self.nets.parameters()``, a further pass of
        ``self.nets``) is differentiated as well.
        """
        raise NotImplementedError

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with what is worked out once for all of it, however many processes share its gradient."""
        return batch

    def rows(self, items: Tensors) -> int:
        """Return how many parts a prepared batch's loss has, of which processes take equal numbers."""
        return len(next(iter(items.values())))

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Return some rows (int64) of a prepared batch's items."""
        return {k: v.index_select(0, rows) for k, v in items.items()}

    def after_step(self, step: int) -> None:
        """Called after the ``step``-th gradient step: the place to copy a target network."""

    def follow(self, steps: int) -> None:
        """The parameters are others now: those after ``steps`` gradient steps, which a parameter server has taken. In
        the place of ``after_step``, which knows of every step."""

    def params(self) -> Tensors:
        """Return what actors get."""
        return self._live.tensors

    def moved(self) -> None:
        """The tensors of ``nets`` are others now."""
        self._live = LiveTensors(self.nets)


def differentiate(algorithm: Algorithm, batch: Batch) -> tuple[Tensor, Tensor | None, Update]:
    """Give every parameter of ``algorithm.nets`` its ``grad``. Returns the loss [], all gradients as one vector if they
    lie so in memory, and the metrics."""
    if not hasattr(algorithm.nets, "outputs"):  # a network that the loss asks itself
        loss, update = algorithm.loss(None, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), None, update
    outputs: Outputs = algorithm.nets.outputs(batch.items)
    loss, update = algorithm.loss(outputs.values, batch)
    gradient = known_gradient(loss, outputs.leaf)
    if gradient is not None:
        return loss.detach(), outputs.backward(gradient), update
    return loss.detach(), _backward(loss, outputs, [p for p in algorithm.nets.parameters() if p.requires_grad]), update


def _backward(loss: Tensor, outputs: Outputs, parameters: list[nn.Parameter]) -> Tensor | None:
    """Give every parameter its ``grad``: what reaches it through the outputs, and what reaches it directly. Return
    all gradients as one vector if they lie so in memory."""
    by_leaf, *direct = torch.autograd.grad(loss, [outputs.leaf, *parameters], allow_unused=True)
    joined = None if by_leaf is None else outputs.backward(by_leaf)
    for p, gradient in zip(parameters, direct, strict=True):
        if gradient is None:
            continue
        if p.grad is None:
            p.grad, joined = gradient, None  # not a part of that vector
        else:
            p.grad += gradient
    return joined


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its items (and probabilities) on ``device``; itself if they are there."""
    if device.type == "cpu" or all(v.device.type == device.type for v in batch.items.values()):
        return batch
    return upload(batch, device)()
