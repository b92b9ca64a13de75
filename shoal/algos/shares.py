"""One gradient from several processes, each of which takes a share of the minibatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from shoal.api import Tensors

LossOfRows = Callable[[Tensors, Tensor, list[float]], tuple[Tensor, Tensor]]


class Team(Protocol):
    """A process (member 0) and copies of it that work at its word; only tensors of ``zeros`` are common to all."""

    size: int

    def zeros(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """A common tensor, if made before ``start``."""

    def start(self, work: Callable[[int], None]) -> None:
        """Make the copies, as this process is now: in every ``run``, each member does ``work(number)``."""

    def run(self) -> None: ...


class Shares:
    """Gradients of ``loss`` by ``nets`` on rows of ``data``, divided among the members of ``team`` (None: alone).

    loss: (data, rows, constants) -> the loss of those rows and ``found`` further numbers. The loss of a minibatch is
    the sum of the losses of its parts. With a team, the tensors of ``nets`` move to memory that it shares: look them up
    afterwards.
    """

    def __init__(self, nets: nn.Module, loss: LossOfRows, found: int, team: Team | None = None) -> None:
        self.loss, self.found, self.team = loss, found, team
        if team is not None:  # the copies read what this process's optimiser writes
            for tensor in nets.state_dict(keep_vars=True).values():
                tensor.data = team.zeros(tensor.shape, tensor.dtype).copy_(tensor.data)
        self.parameters = [p for p in nets.parameters() if p.requires_grad]
        self.data: Tensors = {}

    def load(self, data: Tensors) -> None:
        """Learn from ``data`` from now on; with a team, from a copy of it."""
        if self.team is None:
            self.data = data
            return
        if {k: v.shape for k, v in data.items()} != {k: v.shape for k, v in self.data.items()}:
            self._start(self.team, data)
        for name, tensor in data.items():
            self.data[name].copy_(tensor)

    def backward(self, rows: Tensor, constants: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Leaves the gradient of the loss of ``rows`` (int64) in ``.grad`` of the parameters; returns the loss, and
        what each member found [members, found]."""
        if self.team is None:
            loss, found, _ = self._gradient(rows, list(constants))
        else:
            self._rows[: len(rows)] = rows
            head = (len(rows), len(constants), *constants)
            self._head[: len(head)] = torch.tensor(head, dtype=torch.float64)
            self.team.run()
            loss, found = self._losses.sum(), self._found.clone()
            for theirs in self._grads:
                torch._foreach_add_(self._mine, theirs)
        return loss, found.view(-1, self.found)

    def _gradient(self, rows: Tensor, constants: list[float]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The same of this process alone, and the gradient."""
        loss, found = self.loss(self.data, rows, constants)
        for p in self.parameters:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]  # and not autograd.grad, whose order in memory is any
        grads = []
        for p in self.parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            grads.append(p.grad)
        return loss.detach(), found, grads

    def _start(self, team: Team, data: Tensors) -> None:
        self.data = {k: team.zeros(v.shape, v.dtype) for k, v in data.items()}
        self._grads = [[team.zeros(p.shape, p.dtype) for p in self.parameters] for _ in range(1, team.size)]
        self._rows = team.zeros((max(max(v.shape) for v in data.values()),), torch.int64)  # at least as many as data
        self._head = team.zeros((16,), torch.float64)  # numbers of rows and constants, then these
        self._losses, self._found = team.zeros((team.size,)), team.zeros((team.size, self.found))
        team.start(self._work)

    def _work(self, number: int) -> None:
        """A member's part of ``backward``."""
        assert self.team is not None
        count, constants, *values = self._head.tolist()
        rows = self._rows[: int(count)].tensor_split(self.team.size)[number]
        self._losses[number], self._found[number], grads = self._gradient(rows, values[: int(constants)])
        if number:
            torch._foreach_copy_(self._grads[number - 1], grads)
        else:
            self._mine = grads
