"""An algorithm: networks and one differentiable loss, tensors in and tensors out; no process, no clock, no file."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from shoal.api import Batch, Tensors, Update
from shoal.nets.named_tensors import NamedTensors
from shoal.settings.schedule import Linear, schedules


class Minibatches(Protocol):
    """Gradient steps on parts of one batch, for an algorithm of several epochs; several processes may share them."""

    def load(self, items: Tensors) -> Tensors:
        """Learn from ``items`` from now on. Return them in memory that all processes share, to be changed in place."""

    def shuffled(self, rows: Tensor) -> Tensor:
        """Return ``rows`` (int64) in random order."""

    def step(self, rows: Tensor) -> None:
        """Take one gradient step on the loss of ``rows`` (see ``Algorithm.select``), unless it is not finite."""

    def reported(self, name: str, last: int | None = None) -> Tensor:
        """Return the metric ``name`` of the steps taken, of the ``last`` requested ones (None: all), as
        ``[steps, members]``: each process reports its part of a sum."""

    def summary(self) -> dict[str, float]:
        """Return the number of steps taken, the share that was skipped, and the means of all metrics."""


class Algorithm:
    """Learning rule of a system. A subclass defines ``loss``; all other methods have defaults.

    nets: the network that learns, with ``outputs(items) -> Outputs`` (``ActorCritic``, ``QNetwork``). Without that
    method, outputs are None, and the loss calls the network itself. scalars: numbers that change from step to step.
    cfg: the settings that the loss reads, with the current values of schedules (``at``). fraction: share of the run
    that is done. updates: number of gradient steps before this one.
    """

    cfg: Any = None
    adds_up: ClassVar[bool] = False
    """True if the losses (and metrics) of a batch's parts add up to those of the batch, so that several processes may
    share its gradient. A class that defines ``loss`` must set it again, otherwise it is False."""
    capturable: bool = False
    """True if a CUDA graph may repeat the gradient: ``loss`` and ``nets.outputs`` read only the batch's items, tensors
    of this object whose memory stays in place, and ``numbers``, and change only gradients. Set like ``adds_up``."""
    fraction = 0.0
    updates = 0
    gradient = ""  # the setting ``gradient``; "": as ``cfg`` says, where it has one
    differentiator: Any = None  # how ``learning.differentiate`` makes the gradient; None: not decided

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "loss" in vars(cls):  # its parent's word is about another loss
            for word in ("adds_up", "capturable"):
                if word not in vars(cls):
                    setattr(cls, word, False)

    def __init__(self, nets: nn.Module) -> None:
        self.nets: Any = nets
        self.scalars: list[float] = []
        self._live = NamedTensors(nets)
        self._schedules: dict[str, Linear] | None = None  # of ``cfg``

    def at(self, fraction: float) -> dict[str, float]:
        """Set the scheduled settings of ``cfg`` to their values at this share of the run, and return these values."""
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

        outputs: outputs of ``nets`` for the batch (``Outputs.values``), on which most losses depend. Terms that depend
        on the parameters otherwise (an L2 cost, another pass of ``self.nets``) are differentiated as well.
        """
        raise NotImplementedError

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers that ``loss`` reads and that change during a run: ``scalars`` and scheduled settings,
        except those of the optimiser."""
        own = (name for name in self._schedules or () if name not in ("learning_rate", "max_grad_norm"))
        return (*self.scalars, *(getattr(self.cfg, name) for name in own))

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with arrays that are computed once, such as targets, however many processes learn."""
        return batch

    def learn(self, batch: Batch, minibatches: Minibatches) -> Update:
        """Learn from a batch in several gradient steps, for an algorithm that a ``PPOLearner`` trains. Return the
        metrics of the whole update."""
        raise NotImplementedError

    def rows(self, items: Tensors) -> int:
        """Return the number of rows that a prepared batch's loss sums over; learner processes take equal shares."""
        return len(next(iter(items.values())))

    def select(self, items: Tensors, rows: Tensor) -> Tensors:
        """Return some rows (int64) of a prepared batch's items."""
        return {k: v.index_select(0, rows) for k, v in items.items()}

    def after_step(self, step: int) -> None:
        """Act after the ``step``-th gradient step, for example to copy a target network."""

    def follow(self, steps: int) -> None:
        """Act after a parameter server has set the parameters to those after ``steps`` gradient steps. Called in place
        of ``after_step``, which knows of every step."""

    def params(self) -> Tensors:
        """Return the parameters that are published to actors."""
        return self._live.tensors
