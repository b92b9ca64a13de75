"""An algorithm: networks and one differentiable loss, tensors in and tensors out; no process, no clock, no file."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from shoal.api import Batch, Tensors, Update
from shoal.nets.live import LiveTensors
from shoal.settings.schedule import Linear, schedules


class Minibatches(Protocol):
    """Gradient steps on parts of one batch, whoever shares them: what an algorithm of several passes is given."""

    def load(self, items: Tensors) -> Tensors:
        """Learn from these ``items`` from now on. Return them as all who share a step see them, to be changed in
        place."""

    def shuffled(self, rows: Tensor) -> Tensor:
        """Return ``rows`` (int64) in random order."""

    def step(self, rows: Tensor) -> None:
        """Take one gradient step on the loss of ``rows`` (see ``Algorithm.select``), unless it is not finite."""

    def reported(self, name: str, last: int | None = None) -> Tensor:
        """Return the metric ``name`` of the steps that were taken, of which ``last`` were asked for last (None: all),
        as ``[steps, members]``: each member reports its part of a sum."""

    def summary(self) -> dict[str, float]:
        """Return how many steps were taken and what share was skipped, and the means of all metrics."""


class Algorithm:
    """Learning rule of a system. A subclass defines ``loss``; all other methods have defaults.

    nets: the network that learns, with ``outputs(items) -> Outputs`` (``ActorCritic``, ``QNetwork``); of one without,
    the outputs are None, and the loss calls it itself. scalars: numbers that change from step to step. cfg: the
    settings that the loss reads; those that are schedules have the values of the moment (``at``). fraction: share of
    the run that is done. updates: gradient steps before this one, for an algorithm that asks.
    """

    cfg: Any = None
    adds_up: ClassVar[bool] = False
    """Whether the losses (and metrics) of a batch's parts add up to those of the batch, so that several processes may
    share its gradient. A class that has a ``loss`` of its own says so itself, or never shares."""
    capturable: bool = False
    """Whether a CUDA graph may repeat the gradient: ``loss`` and ``nets.outputs`` read the batch's items, tensors of
    this object that stay where they are, and ``numbers``, and leave nothing behind but gradients. Said of a ``loss`` as
    ``adds_up`` is."""
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
        self._live = LiveTensors(nets)
        self._schedules: dict[str, Linear] | None = None  # of ``cfg``

    def at(self, fraction: float) -> dict[str, float]:
        """Set the settings of ``cfg`` that are schedules to their values at this share of the run, and return these."""
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

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers that ``loss`` reads and that change during a run: ``scalars`` and scheduled settings,
        except those of the optimiser."""
        own = (name for name in self._schedules or () if name not in ("learning_rate", "max_grad_norm"))
        return (*self.scalars, *(getattr(self.cfg, name) for name in own))

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with additional arrays, such as targets, that are computed once, also if several processes
        share the gradient."""
        return batch

    def learn(self, batch: Batch, minibatches: Minibatches) -> Update:
        """Learn from a batch in several gradient steps, for an algorithm that a ``PPOLearner`` trains. Return the
        metrics of the whole update."""
        raise NotImplementedError

    def rows(self, items: Tensors) -> int:
        """Return the number of rows of a prepared batch that the loss sums over; learner processes take equal shares of
        them."""
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
