"""The ends of channels between processes of torchrun: ``reduce`` by an all-reduce, ``board`` by the store.

With every item that a rank puts travel a few numbers of its own, the ``Remarks``. All ranks read their sums after the
same round, so that whatever these decide (the end of the run, a report, a checkpoint), all do it at the same place.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from shoal.api import Arrays, Rows, Spec, Tensors
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.program.groups import ROUNDS
from shoal.runtime.reduction import combine
from shoal.serial.channels import check_item
from shoal.serial.groups import InTurn
from shoal.torchrun.group import Group
from shoal.types import State

REMARKS = ("steps", "updates", "interrupted", "terminated", "ended", "report", "save")
WISHES = slice(REMARKS.index("report"), None)  # that all have heard when they were said once
WIDE = "float64"  # remarks travel before the fields of this type


class Remarks:
    """What this rank says with its next item, by the names of ``REMARKS``, and what all said with the last, added up.

    steps, updates: counted so far; interrupted, terminated: whether a signal came; and, of the first rank alone, ended:
    the number of the limit that the run has reached, or 0; report, save: whether it wants figures, or a checkpoint.
    """

    def __init__(self, now: Callable[[], Mapping[str, float]]) -> None:
        self._now, self._mine = now, np.zeros(len(REMARKS))  # now: asked with every item
        self._heard: np.ndarray | None = None

    def say(self, **values: float) -> None:
        for name, value in values.items():
            self._mine[REMARKS.index(name)] = value

    def said(self) -> np.ndarray:
        """What goes with an item that is put now."""
        self.say(**self._now())
        return self._mine

    def hear(self, sums: np.ndarray) -> None:
        """What all ranks said with the items of a round."""
        self._mine[WISHES][sums[WISHES] > 0] = 0
        self._heard = sums.copy() if self._heard is None else np.maximum(self._heard, sums)

    def news(self) -> dict[str, int] | None:
        """What was heard since this was asked last, by name; None: nothing."""
        heard, self._heard = self._heard, None
        return None if heard is None else dict(zip(REMARKS, heard.astype(np.int64).tolist(), strict=True))


class _Sums:
    """One round's item as one vector per type: what is reduced, and views of its fields."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        sizes = {WIDE: len(REMARKS)}
        for f in spec.values():
            sizes[f.dtype] = sizes.get(f.dtype, 0) + int(np.prod(f.shape))
        self.flat = {kind: torch.zeros(n, dtype=getattr(torch, kind)) for kind, n in sizes.items()}
        self.sent = self.flat if device.type == "cpu" else {k: t.to(device) for k, t in self.flat.items()}
        self.remarks = self.flat[WIDE][: len(REMARKS)].numpy()
        self.fields: Tensors = {}
        at = {WIDE: len(REMARKS)}
        for name, f in spec.items():
            start, size = at.get(f.dtype, 0), int(np.prod(f.shape))
            self.fields[name] = self.flat[f.dtype][start : start + size].view(f.shape)
            at[f.dtype] = start + size
        self.works: list[dist.Work] = []

    def send(self) -> None:
        if self.sent is not self.flat:
            for kind, tensor in self.sent.items():
                tensor.copy_(self.flat[kind])
        self.works = [w for w in (dist.all_reduce(t, async_op=True) for t in self.sent.values()) if w is not None]

    def receive(self) -> None:
        if self.sent is not self.flat:
            for kind, tensor in self.sent.items():
                self.flat[kind].copy_(tensor)


class ReduceEnd(InTurn):
    """A rank's end of a reduce channel (an ``api.Reducer``). Two ranks add as the other runtimes do, bit for bit; of
    more, the order of adding is that of the library, and the same for all of them."""

    def __init__(
        self, group: Group, channel: Channel, remarks: Remarks, metrics: Recorder, device: torch.device
    ) -> None:
        self.channel, self._group, self._remarks, self._metrics = channel, group, remarks, metrics
        self._slots = [{k: np.zeros(f.shape, f.dtype) for k, f in channel.spec.items()} for _ in range(ROUNDS)]
        self._sums = [_Sums(channel.spec, device) for _ in range(ROUNDS)]
        self._puts = self._gets = 0
        self._known: Tensors | None = None  # the result of a round that all had put before they were saved

    @property
    def pending(self) -> bool:
        return self._puts > self._gets

    def ready(self) -> bool:
        works = self._sums[self._gets % ROUNDS].works
        return not self.pending or self._known is not None or all(work.is_completed() for work in works)

    @contextmanager
    def slot(self) -> Iterator[Arrays]:
        self.check_put()
        yield self._slots[self._puts % ROUNDS]
        self._puts += 1
        self._send()

    def get(self) -> Tensors:
        self.check_get()
        sums = self._sums[self._gets % ROUNDS]
        self._gets += 1
        if self._known is not None:
            known, self._known = self._known, None
            return known
        with self._metrics.phase(f"wait:{self.channel.name}"):
            for work in sums.works:
                self._group.wait(work)
        sums.receive()
        self._remarks.hear(sums.remarks)
        if self.channel.mean:
            for field in sums.fields.values():
                field /= self._group.place.world
        return sums.fields.copy()

    def finish(self) -> None:
        """Wait for what is on its way, before nobody is there to take it."""
        if self.pending and self._known is None:
            for work in self._sums[self._gets % ROUNDS].works:
                self._group.wait(work)

    def _send(self) -> None:
        parity = (self._puts - 1) % ROUNDS
        sums = self._sums[parity]
        for name, field in sums.fields.items():
            field.numpy()[...] = self._slots[parity][name]
        sums.remarks[...] = self._remarks.said()
        sums.send()

    # ------------------------------------------------------------------------------------- states
    def state_dict(self) -> State:
        """As the local runtime's ends have it, which can go on from it."""
        slots = [{name: array.copy() for name, array in slot.items()} for slot in self._slots]
        return {"puts": self._puts, "gets": self._gets, "slots": slots, "parts": [[] for _ in range(ROUNDS)]}

    def load_state_dict(self, states: list[State]) -> None:
        """Go on where all ranks were, each of which gives its state, in their order. A round that all had put is added
        up here, as some may have got its result before; of any other, what this one had put is put again."""
        mine = states[self._group.place.rank]
        for slot, saved in zip(self._slots, mine["slots"], strict=True):
            for name, array in slot.items():
                array[...] = saved[name]
        self._puts, self._gets = mine["puts"], mine["gets"]
        if not self.pending:
            return
        if all(state["puts"] > self._gets for state in states):
            self._known = {}
            for name, f in self.channel.spec.items():
                parts = [np.asarray(s["slots"][self._gets % ROUNDS][name], f.dtype).reshape(-1) for s in states]
                out = np.zeros(int(np.prod(f.shape)), f.dtype)
                combine(out, parts, self.channel.mean)
                self._known[name] = torch.from_numpy(out.reshape(f.shape))
        else:
            self._send()


class BoardEnd:
    """A rank's end of a board (an ``api.Board``): its row is a value in the store that torchrun started."""

    def __init__(self, group: Group, channel: Channel, life: str) -> None:
        self.channel, self._group, self._life = channel, group, life
        self.row: tuple[Arrays, int] = ({k: np.zeros(f.shape, f.dtype) for k, f in channel.spec.items()}, 0)

    def ready(self) -> bool:
        return True

    def put(self, row: Arrays) -> None:
        check_item(self.channel, row)
        copied = {name: np.array(row[name], f.dtype) for name, f in self.channel.spec.items()}
        self.place(copied, self.row[1] + 1)

    def get(self) -> Rows:
        found = self._group.get([self._key(rank) for rank in range(self._group.place.world)])
        rows, puts = zip(*map(pickle.loads, found), strict=True)
        return Rows({name: np.stack([row[name] for row in rows]) for name in self.channel.spec}, np.array(puts))

    def place(self, row: Arrays, puts: int) -> None:
        """Let this be its row, the last of so many."""
        self.row = row, puts
        self._group.set(self._key(self._group.place.rank), pickle.dumps(self.row))

    def _key(self, rank: int) -> str:
        return f"board/{self._life}/{self.channel.name}/{rank}"
