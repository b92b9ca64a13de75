"""One gradient step by several processes: each differentiates its part of the minibatch, then moves its part of the
weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Protocol

import torch
from torch import Tensor

from shoal.api import Batch, Tensors, Update
from shoal.fast.rounded import rounded
from shoal.learning.algorithm import Algorithm
from shoal.learning.differentiate import differentiate
from shoal.learning.gradient_step import GradientStep, finite
from shoal.learning.networks import networks_beside
from shoal.ops import excess, global_norm
from shoal.ops.optimiser import Optimiser, divide

DIVIDED = 100_000  # weights; fewer are moved by one member sooner than by all


class Team(Protocol):
    """A process (member 0) and copies of it that work at its word; only tensors of ``zeros`` are common to all."""

    size: int

    def zeros(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """A common tensor, if made before ``start``."""

    def start(self, work: Callable[[int], None]) -> None:
        """Make the copies, as this process is now: in every ``run``, each member does ``work(number)``."""

    def run(self) -> None: ...

    def meet(self, number: int) -> None:
        """In a member's work: wait until all have come here."""


class DataParallel:
    """Gradient steps on the loss of ``algorithm`` that the members of ``team`` share (None: this process alone): each
    differentiates the loss of some rows, then moves its part of the weights. The losses of the parts of a minibatch
    must add up to that of the whole, and so must its metrics.

    With a team, the tensors of the algorithm's networks move to memory that all members see, and so does the state of
    the optimiser; of weights that learn in bfloat16 the members keep a rounded copy, which whoever moves a weight
    renews.
    """

    def __init__(self, algorithm: Algorithm, step: GradientStep, team: Team | None = None) -> None:
        self.algorithm, self.gradient_step, self.team = algorithm, step, team
        self.worker = algorithm  # as a member has it: with networks of its own that follow those of the algorithm
        nets = algorithm.nets
        if team is not None:  # all read what one writes
            beside = [network.state_dict(keep_vars=True) for network in networks_beside(algorithm)]
            for tensor in (tensor for state in beside for tensor in state.values()):
                tensor.data = team.zeros(tensor.shape, tensor.dtype).copy_(tensor.data)
            self.worker = copy.copy(algorithm)
            self.worker.nets = rounded(copy.deepcopy(nets))
            pairs = zip(*(n.state_dict(keep_vars=True).values() for n in (nets, self.worker.nets)), strict=True)
            for tensor, own in pairs:
                tensor.data = team.zeros(tensor.shape, tensor.dtype).copy_(tensor.data)
                own.data = tensor.data if own.dtype == tensor.dtype else team.zeros(own.shape, own.dtype)
        learned = dict(zip(nets.parameters(), self.worker.nets.parameters(), strict=True))
        self._learned = [learned[p] for p in step.parameters]
        self.items: Tensors = {}
        self._started = False  # the copies
        self.names: list[str] = []  # of the metrics of the last step

    def minimise(self, batch: Batch) -> tuple[float | None, float, Update]:
        """One step on a whole batch: the gradient's norm before clipping (None: skipped), the loss and the metrics."""
        self.load(batch.items)
        norm, value, metrics, priorities = self.step(torch.arange(self.algorithm.rows(batch.items)))
        means = dict(zip(self.names, metrics.sum(0).tolist(), strict=True))
        count = len(next(iter(batch.items.values())))
        return norm, value, Update(means, None if priorities is None else priorities[:count].clone())

    def load(self, items: Tensors) -> None:
        """Learn from ``items`` from now on; with a team, from a copy of them."""
        if self.team is None:
            self.items = items
            return
        if {k: v.shape for k, v in items.items()} != {k: v.shape for k, v in self.items.items()}:
            self._share(self.team, items)
        for name, tensor in items.items():
            self.items[name].copy_(tensor)

    def restart(self) -> None:
        """Make the copies anew before the next step, since the optimiser's state has been replaced."""
        self.items = {}

    def step(self, rows: Tensor) -> tuple[float | None, float, Tensor, Tensor | None]:
        """One step on the loss of ``rows`` (int64) with the algorithm's ``scalars``: the gradient's norm before
        clipping (None: skipped), the loss, the metrics of each member [members, metrics], and the priorities of
        ``rows``."""
        if self.team is None:
            batch = Batch(self.algorithm.select(self.items, rows))
            norm, value, update = self.gradient_step.minimise(self.algorithm, batch)
            self.names = list(update.metrics)
            return norm, value, _stacked(update).unsqueeze(0), update.priorities
        scalars, step = self.algorithm.scalars, self.gradient_step
        self._rows[: len(rows)] = rows
        rate = step.optimiser.param_groups[0]["lr"]
        algorithm = self.algorithm
        head = (len(rows), rate, step.max_norm, algorithm.fraction, algorithm.updates, len(scalars), *scalars)
        self._head[: len(head)] = torch.tensor(head, dtype=torch.float64)
        if not self._started:
            self._start(self.team, rows)
        self.team.run()
        value, norm = self._outcome()
        taken = norm if self.gradient_step.accepts(value, norm) else None
        metrics = self._metrics[:, : len(self.names)].clone()
        return taken, value, metrics, self._priorities[: len(rows)] if self._prioritised else None

    def _start(self, team: Team, rows: Tensor) -> None:
        """Make the copies. The loss is tried before: what it calls is compiled once, by whoever is copied."""
        self._started, self.worker.updates = True, 0  # an update with all the metrics there are
        _, update, _ = self._gradient(rows.tensor_split(team.size)[0], self.algorithm.scalars)
        self._prioritised = update.priorities is not None
        self._metrics = team.zeros((team.size, len(update.metrics)))
        self._priorities = team.zeros((len(self._rows),))
        team.start(self._work)

    def _share(self, team: Team, items: Tensors) -> None:
        """Common memory for such ``items``, and all that is exchanged."""
        optimiser = self.gradient_step.optimiser
        parameters = self.gradient_step.parameters
        self._movers, self._optimisers = 1, list[Optimiser]()  # where they are several
        if isinstance(optimiser, Optimiser) and sum(p.numel() for p in parameters) >= DIVIDED:
            self._movers, self._optimisers = team.size, optimiser.divided(team.size, team.zeros)
        self.items = {k: team.zeros(v.shape, v.dtype) for k, v in items.items()}
        grads = [[team.zeros(p.shape, p.dtype) for p in self._learned] for _ in range(team.size)]
        self._sent = [self._parts(own) for own in grads]  # [from][to][weights]
        self._given = team.zeros((team.size, len(self._learned)), torch.bool)  # whether there is a gradient: [from]
        pairs = zip(*(self._parts([p.data for p in of]) for of in (self._learned, parameters)), strict=True)
        self._rounded = [[(c, w) for c, w in zip(*pair, strict=True) if c.dtype != w.dtype] for pair in pairs]
        for mover in range(self._movers):
            self._round(mover)
        most = max(self.algorithm.rows(items), *(max(v.shape) for v in items.values()))
        self._rows = team.zeros((most,), torch.int64)
        # number of rows, learning rate, clip, share of the run that is done, updates, number of scalars, then these
        self._head = team.zeros((16,), torch.float64)
        self._losses = team.zeros((team.size,))
        self._norms = team.zeros((self._movers,), torch.float64)
        self._started = False

    def _work(self, number: int) -> None:
        """A member's part of ``step``."""
        team, movers = self.team, range(self._movers)
        assert team is not None
        count, rate, max_norm, fraction, updates, scalars, *values = self._head.tolist()
        if fraction != self.worker.fraction:
            self.worker.at(fraction)
        self.worker.updates = int(updates)
        rows = self._rows[: int(count)].tensor_split(team.size)
        self._losses[number], update, grads = self._gradient(rows[number], values[: int(scalars)])
        self.names = list(update.metrics)
        self._metrics[number, : len(self.names)] = _stacked(update)
        if update.priorities is not None:
            part = self._priorities[: int(count)].tensor_split(team.size)[number]
            part[: len(update.priorities)] = update.priorities
        given = [g is not None for g in grads]
        self._given[number] = torch.tensor(given)
        parts = self._parts([g for g in grads if g is not None])
        for mover in movers:
            if mover != number:
                for room, part in zip(compress(self._sent[number][mover], given), parts[mover], strict=True):
                    room.copy_(part)
        team.meet(number)
        if number not in movers:
            return
        mine = self._sum(number, parts[number])
        self._norms[number] = global_norm(mine)
        if self._movers > 1:
            team.meet(number)
        value, norm = self._outcome()
        if finite(value, norm):
            self._move(number, mine, rate, excess(norm, max_norm))
            self._round(number)

    def _move(self, number: int, grads: list[Tensor], rate: float, divisor: float) -> None:
        """Take a step of size ``rate`` along ``grads / divisor``, the gradient of what member ``number`` moves. An
        optimiser of torch's, which member 0 alone has, knows its rate."""
        optimiser = self._optimisers[number] if self._movers > 1 else self.gradient_step.optimiser
        if isinstance(optimiser, Optimiser):
            optimiser.descend(grads, rate, divisor)
            return
        for p, gradient in zip(self.gradient_step.parameters, grads, strict=True):
            p.grad = gradient.div_(divisor)
        optimiser.step()

    def _sum(self, number: int, own: list[Tensor]) -> list[Tensor]:
        """The gradient of what member ``number`` moves, of which ``own`` is what it has found itself."""
        sums: dict[int, Tensor] = {}  # by the parameter's number
        given = [list(compress(range(len(self._learned)), some)) for some in self._given.tolist()]
        for which, part in zip(given[number], own, strict=True):
            sums[which] = part.float()
        for member, sent in enumerate(self._sent):
            for which in given[member] if member != number else ():
                part = sent[number][which]
                sums[which] = sums[which].add_(part) if which in sums else part.float()
        return [sums[i] if i in sums else torch.zeros_like(p) for i, p in enumerate(self._sent[number][number])]

    def _round(self, mover: int) -> None:
        """Renew the rounded copies of what ``mover`` moves."""
        for copied, weight in self._rounded[mover]:
            copied.copy_(weight)

    def _gradient(self, rows: Tensor, scalars: list[float]) -> tuple[float, Update, list[Tensor | None]]:
        """Return the loss, metrics and gradient of this process's rows."""
        self.worker.scalars = scalars
        for p in self._learned:
            p.grad = None
        value, _, update = differentiate(self.worker, Batch(self.worker.select(self.items, rows)))
        return value.item(), update, [p.grad for p in self._learned]

    def _parts(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """[movers][tensors]: of each tensor, what each of the movers moves."""
        return divide(tensors, self._movers) if self._movers > 1 else [tensors]

    def _outcome(self) -> tuple[float, float]:
        """Return the minibatch's loss and the norm of its gradient."""
        return float(self._losses.sum()), math.hypot(*self._norms.tolist())


def _stacked(update: Update) -> Tensor:
    """Return the values of its metrics as one vector."""
    values = [torch.as_tensor(value, dtype=torch.float32) for value in update.metrics.values()]
    return torch.stack(values) if values else torch.empty(0)
