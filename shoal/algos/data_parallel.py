"""One gradient step by several processes: each differentiates its part of the minibatch, then moves its part of the
weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.algos.sgd import GradientStep, Loss, excess, finite, global_norm
from shoal.api import Tensors
from shoal.nets import rounded
from shoal.ops.optim import Optimiser, divide

LossOfRows = Callable[[Any, Tensors, Tensor, list[float]], tuple[Loss, Tensor]]

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


class Shares:
    """Gradient steps on ``loss`` of rows of ``data``, shared by the members of ``team`` (None: alone).

    loss: (nets, data, rows, constants) -> the loss of those rows and ``found`` further numbers. The loss of a minibatch
    is the sum of the losses of its parts. With a team, the tensors of ``nets`` move to memory that it shares (look them
    up afterwards), and so does the state of the optimiser; of weights that learn in bfloat16 the members keep a rounded
    copy, which whoever moves a weight renews. So do the tensors of ``asked``: networks that the loss only asks.
    """

    def __init__(
        self, nets: nn.Module, loss: LossOfRows, found: int, step: GradientStep, team: Team | None = None,
        asked: Sequence[nn.Module] = (),
    ) -> None:  # fmt: skip
        self.loss, self.found, self.gradient_step, self.team = loss, found, step, team
        self.nets = nets  # that the loss is of
        if team is not None:  # all read what one writes
            for tensor in (t for network in asked for t in network.state_dict(keep_vars=True).values()):
                tensor.data = team.zeros(tensor.shape, tensor.dtype).copy_(tensor.data)
            self.nets = rounded(copy.deepcopy(nets))
            for tensor, own in zip(*(n.state_dict(keep_vars=True).values() for n in (nets, self.nets)), strict=True):
                tensor.data = team.zeros(tensor.shape, tensor.dtype).copy_(tensor.data)
                own.data = tensor.data if own.dtype == tensor.dtype else team.zeros(own.shape, own.dtype)
        learned = dict(zip(nets.parameters(), self.nets.parameters(), strict=True))
        self._learned = [learned[p] for p in step.parameters]
        self.data: Tensors = {}
        self._started = False  # the copies

    def load(self, data: Tensors) -> None:
        """Learn from ``data`` from now on; with a team, from a copy of it."""
        if self.team is None:
            self.data = data
            return
        if {k: v.shape for k, v in data.items()} != {k: v.shape for k, v in self.data.items()}:
            self._share(self.team, data)
        for name, tensor in data.items():
            self.data[name].copy_(tensor)

    def restart(self) -> None:
        """The optimiser's state has been replaced: the copies are to see the new one."""
        self.data = {}

    def step(self, rows: Tensor, constants: Sequence[float]) -> tuple[float | None, Tensor]:
        """One step on the loss of ``rows`` (int64); returns the gradient's norm before clipping (None: skipped), and
        what each member found [members, found]."""
        if self.team is None:
            loss, found = self.loss(self.nets, self.data, rows, list(constants))
            return self.gradient_step(loss), found.view(1, self.found)
        self._rows[: len(rows)] = rows
        head = (len(rows), self.gradient_step.optimiser.param_groups[0]["lr"], len(constants), *constants)
        self._head[: len(head)] = torch.tensor(head, dtype=torch.float64)
        if not self._started:
            self._started = True
            self._gradient(rows.tensor_split(self.team.size)[0], list(constants))  # compiled once, by whoever is copied
            self.team.start(self._work)
        self.team.run()
        value, norm = self._outcome()
        return norm if self.gradient_step.accepts(value, norm) else None, self._found.clone()

    def _share(self, team: Team, data: Tensors) -> None:
        """Common memory for such ``data``, and all that is exchanged."""
        optimiser = self.gradient_step.optimiser
        assert isinstance(optimiser, Optimiser)
        parameters = self.gradient_step.parameters
        self._movers = team.size if sum(p.numel() for p in parameters) >= DIVIDED else 1
        self._optimisers = optimiser.divided(self._movers, team.zeros) if self._movers > 1 else [optimiser]
        self.data = {k: team.zeros(v.shape, v.dtype) for k, v in data.items()}
        grads = [[team.zeros(p.shape, p.dtype) for p in self._learned] for _ in range(team.size)]
        self._sent = [self._parts(own) for own in grads]  # [from][to][weights]
        pairs = zip(*(self._parts([p.data for p in of]) for of in (self._learned, parameters)), strict=True)
        self._rounded = [[(c, w) for c, w in zip(*pair, strict=True) if c.dtype != w.dtype] for pair in pairs]
        for mover in range(self._movers):
            self._round(mover)
        self._rows = team.zeros((max(max(v.shape) for v in data.values()),), torch.int64)  # at least as many as data
        self._head = team.zeros((16,), torch.float64)  # numbers of rows, learning rate, number of constants, then these
        self._losses, self._found = team.zeros((team.size,)), team.zeros((team.size, self.found))
        self._norms = team.zeros((self._movers,), torch.float64)
        self._started = False

    def _work(self, number: int) -> None:
        """A member's part of ``step``."""
        team, movers = self.team, range(self._movers)
        assert team is not None
        count, rate, constants, *values = self._head.tolist()
        rows = self._rows[: int(count)].tensor_split(team.size)[number]
        self._losses[number], self._found[number], grads = self._gradient(rows, values[: int(constants)])
        parts = self._parts(grads)
        for mover in movers:
            if mover != number:
                torch._foreach_copy_(self._sent[number][mover], parts[mover])
        team.meet(number)
        if number not in movers:
            return
        mine = [g.float() for g in parts[number]]
        for member in range(team.size):
            if member != number:
                torch._foreach_add_(mine, self._sent[member][number])
        self._norms[number] = global_norm(mine)
        if self._movers > 1:
            team.meet(number)
        value, norm = self._outcome()
        if finite(value, norm):
            self._optimisers[number].descend(mine, rate, excess(norm, self.gradient_step.max_norm))
            self._round(number)

    def _round(self, mover: int) -> None:
        """Renew the rounded copies of what ``mover`` moves."""
        for copied, weight in self._rounded[mover]:
            copied.copy_(weight)

    def _gradient(self, rows: Tensor, constants: list[float]) -> tuple[float, Tensor, list[Tensor]]:
        """Loss, findings and gradient of this process's rows."""
        loss, found = self.loss(self.nets, self.data, rows, constants)
        for p in self._learned:
            p.grad = None
        loss.backward()  # and not autograd.grad, whose order in memory is any
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._learned]
        return loss.item(), found, grads

    def _parts(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """[movers][tensors]: of each tensor, what each of the movers moves."""
        return divide(tensors, self._movers) if self._movers > 1 else [tensors]

    def _outcome(self) -> tuple[float, float]:
        """The minibatch's loss and the norm of its gradient."""
        return float(self._losses.sum()), math.hypot(*self._norms.tolist())
