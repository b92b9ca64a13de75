"""A rank's end of a reduce channel: an all-reduce of torch.distributed, of whatever group its ranks have formed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from shoal.api import Arrays, Spec, Tensors
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.program.groups import ROUNDS
from shoal.runtime.channel_checks import InTurn
from shoal.runtime.reduction import combine, got
from shoal.types import State

WIDE = "float64"  # remarks travel before the fields of this type


class Ranks(Protocol):
    """The group of ranks that reduce together: ``rank`` is the number of this one, of ``world``."""

    rank: int
    world: int

    def reduce(self, tensor: torch.Tensor) -> dist.Work | None:
        """Start the sum of one tensor of each rank, in place."""

    def wait(self, work: dist.Work) -> None:
        """Returns when a reduction is complete."""


class Said(Protocol):
    """Numbers that are sent with every item and summed with it."""

    size: int

    def said(self) -> np.ndarray:
        """Return the remarks that are sent with an item that is put now."""

    def hear(self, sums: np.ndarray) -> None:
        """Return the numbers that all ranks sent with the items of a round."""


def completed(work: dist.Work, limit: timedelta, on_gpu: bool) -> bool:
    """Wait for a reduction for a limited time, and return True if it is complete. Raises ConnectionError if it cannot
    complete."""
    try:
        if not on_gpu:
            work.wait(limit)
            return True
        due = time.monotonic() + limit.total_seconds()
        while not work.is_completed():  # to wait for NCCL with a time limit is to give it up after that
            if time.monotonic() > due:
                return False
            time.sleep(2e-5)
        work.wait()
        return True
    except (RuntimeError, TimeoutError):
        if not work.is_completed():
            return False
    try:
        work.wait()  # it failed, or came to an end just after the limit
    except RuntimeError as error:
        raise ConnectionError(str(error)) from error
    return True


class _Sums:
    """One round's item as one vector per type: what is reduced, and views of its fields."""

    def __init__(self, spec: Spec, device: torch.device, remarks: int) -> None:
        sizes = {WIDE: remarks}
        for f in spec.values():
            sizes[f.dtype] = sizes.get(f.dtype, 0) + math.prod(f.shape)
        self.flat = {kind: torch.zeros(n, dtype=getattr(torch, kind)) for kind, n in sizes.items()}
        self.sent = self.flat if device.type == "cpu" else {k: t.to(device) for k, t in self.flat.items()}
        self.remarks = self.flat[WIDE][:remarks].numpy()
        self.fields: Tensors = {}
        at = {WIDE: remarks}
        for name, f in spec.items():
            start, size = at.get(f.dtype, 0), math.prod(f.shape)
            self.fields[name] = self.flat[f.dtype][start : start + size].view(f.shape)
            at[f.dtype] = start + size
        self.works: list[dist.Work] = []

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.flat.values())

    def send(self, ranks: Ranks) -> None:
        if self.sent is not self.flat:
            for kind, tensor in self.sent.items():
                tensor.copy_(self.flat[kind])
        self.works = [w for w in map(ranks.reduce, self.sent.values()) if w is not None]

    def receive(self) -> None:
        if self.sent is not self.flat:
            for kind, tensor in self.sent.items():
                self.flat[kind].copy_(tensor)


class ReduceEnd(InTurn):
    """A rank's end of a reduce channel (an ``api.Reducer``). Two ranks add as the other runtimes do, bit for bit; of
    more, the order of adding is that of the library, and the same for all of them."""

    def __init__(self, group: Ranks, channel: Channel, remarks: Said, metrics: Recorder, device: torch.device) -> None:
        self.channel, self._group, self._remarks, self._metrics = channel, group, remarks, metrics
        self._slots = [{k: np.zeros(f.shape, f.dtype) for k, f in channel.spec.items()} for _ in range(ROUNDS)]
        self._sums = [_Sums(channel.spec, device, remarks.size) for _ in range(ROUNDS)]
        self._puts = self._gets = 0
        self._known = False  # whether the sums of the round to be got next are there, from states that were saved
        self._last: Tensors = {}  # the result of the round got last, if it is known

    @property
    def nbytes(self) -> int:
        """Return the bytes of one round's item."""
        return self._sums[0].nbytes

    @property
    def pending(self) -> bool:
        return self._puts > self._gets

    def ready(self) -> bool:
        works = self._sums[self._gets % ROUNDS].works
        return not self.pending or self._known or all(work.is_completed() for work in works)

    @contextmanager
    def slot(self) -> Iterator[Arrays]:
        self.check_put()
        yield self._slots[self._puts % ROUNDS]
        self._puts += 1
        self._send()

    def get(self) -> Tensors:
        self.check_get()
        sums = self._sums[self._gets % ROUNDS]
        if self._known:
            self._known = False
            return self._result()
        with self._metrics.phase(f"wait:{self.channel.name}"):
            for work in sums.works:
                self._group.wait(work)
        sums.receive()
        self._remarks.hear(sums.remarks)
        if self.channel.mean:
            for field in sums.fields.values():
                field /= self._group.world
        return self._result()

    def _result(self) -> Tensors:
        """That of the round to be got next, which is got now: not before a wait that the run's end may break off."""
        self._last = self._sums[self._gets % ROUNDS].fields
        self._gets += 1
        return self._last.copy()

    def finish(self) -> None:
        """Wait for reductions in progress, before the other ranks end."""
        if self.pending and not self._known:
            for work in self._sums[self._gets % ROUNDS].works:
                self._group.wait(work)

    def _send(self) -> None:
        parity = (self._puts - 1) % ROUNDS
        sums = self._sums[parity]
        for name, field in sums.fields.items():
            field.numpy()[...] = self._slots[parity][name]
        sums.remarks[...] = self._remarks.said()
        sums.send(self._group)

    # ------------------------------------------------------------------------------------- states
    def state_dict(self) -> State:
        """As the local runtime's ends have it, which can go on from it; and the result of the round that was got last:
        more than two members add it in an order of their own."""
        slots = [{name: array.copy() for name, array in slot.items()} for slot in self._slots]
        result = {name: field.numpy().copy() for name, field in self._last.items()}
        parts: list[Any] = [[] for _ in range(ROUNDS)]
        return {"puts": self._puts, "gets": self._gets, "slots": slots, "parts": parts, "result": result}

    def load_state_dict(self, mine: State, of_all: Callable[[], list[State]]) -> None:
        """Go on where all ranks were: this one, and, where they are asked for, all in their order. The result of a
        round that another had got is what that one got; one that all had put, and none had got, is added up here; of
        any other, what this one had put waits for ``put_again``."""
        for slot, saved in zip(self._slots, mine["slots"], strict=True):
            for name, array in slot.items():
                array[...] = saved[name]
        self._puts, self._gets, self._known = mine["puts"], mine["gets"], False
        self._last = self._placed(self._gets - 1, result) if (result := mine.get("result")) else {}
        if not self.pending:
            return
        states = of_all()
        if (found := got(states, self._gets)) is not None:
            self._placed(self._gets, found)
            self._known = True
        elif all(state["puts"] > self._gets for state in states):
            for name, field in self._sums[self._gets % ROUNDS].fields.items():
                out = field.numpy().reshape(-1)
                parts = [np.asarray(s["slots"][self._gets % ROUNDS][name], out.dtype).reshape(-1) for s in states]
                combine(out, parts, self.channel.mean)
            self._known = True

    def _placed(self, round: int, result: Arrays) -> Tensors:
        """A result that was saved, where that of its round lies."""
        fields = self._sums[round % ROUNDS].fields
        for name, array in result.items():
            fields[name].numpy()[...] = array
        return fields

    def put_again(self) -> None:
        """Send what this rank had put of a round that not all had put. Ranks that reduce other things in the same group
        first do this after those, as the others put later: collectives in different orders never end."""
        if self.pending and not self._known:
            self._send()
