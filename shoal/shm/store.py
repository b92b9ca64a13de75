"""Versioned parameters in shared memory: one writer, many readers; readers get the latest version.

Two buffers, each with the number of the version that was last *begun* in it. Version ``v`` lies in
buffer ``v % 2``; a reader copies it out and looks whether ``v + 2`` was begun meanwhile. The writer
never waits for a reader. A writer killed inside ``publish`` leaves the latest version intact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_

import numpy as np
import torch

from shoal import api
from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.fields import LINE, FieldLayout
from shoal.shm.layout import StoreLayout
from shoal.shm.session import Session
from shoal.types import State

_LOW = 0xFFFFFFFF


def tensors(flat: torch.Tensor, fields: tuple[FieldLayout, ...]) -> api.Tensors:
    """The parameters as views of one flat byte tensor."""
    out = {}
    for f in fields:
        dtype = getattr(torch, f.dtype)
        count = 1
        for n in f.shape:
            count *= n
        out[f.name] = flat[f.offset : f.offset + count * dtype.itemsize].view(dtype).view(f.shape)
    return out


def _buffers(arena: Arena, layout: StoreLayout) -> list[np.ndarray]:
    return [arena.array(layout.buffers + i * layout.stride, (layout.stride,), np.uint8) for i in (0, 1)]


class StoreWriter:
    """The write end (an ``api.ParamsWriter``)."""

    def __init__(self, session: Session, layout: StoreLayout) -> None:
        arena = session.arena
        self._session, self._words, self._layout, self.channel = session, arena.words, layout, layout.channel.name
        self._at, self._address = layout.control // 8, arena.base + layout.control
        self._targets = [tensors(torch.from_numpy(flat), layout.fields) for flat in _buffers(arena, layout)]
        self._places = [list(targets.values()) for targets in self._targets]
        self._names = [f.name for f in layout.fields]
        self._checked: list[torch.Tensor] = []  # the tensors that were published last

    def ready(self) -> bool:
        return True

    @property
    def version(self) -> int:
        latest: int = self._words[self._at]
        return latest

    def publish(self, params: api.Tensors) -> int:
        """Copy ``params`` (from any device) in as the next version."""
        sources = list(map(params.get, self._names))
        if len(params) != len(sources) or not self._checked or not all(map(is_, sources, self._checked)):
            self._checked = self._fitting(params)
        version = self._begin()
        with torch.no_grad():
            torch._foreach_copy_(self._places[version % 2], self._checked)
        self._commit(version)
        return version

    @contextmanager
    def slot(self) -> Iterator[api.Tensors]:
        """The next version, in the buffer itself; see ``api.ParamsWriter``."""
        version = self._begin()
        yield self._targets[version % 2]
        self._commit(version)

    def _begin(self) -> int:
        """The number of the next version, whose buffer may now be written."""
        self._session.fresh = False
        words, at = self._words, self._at
        version: int = words[at] + 1
        words[at + LINE + version % 2] = version
        futex.fence()
        return version

    def _commit(self, version: int) -> None:
        words, at = self._words, self._at
        futex.fence()
        words[at] = version
        futex.fence()
        if words[at + 1]:
            words[at + 1] = 0
            futex.wake(self._address)

    def _fitting(self, params: api.Tensors) -> list[torch.Tensor]:
        """Their values in the layout's order; UsageError unless names and shapes are the channel's."""
        targets = self._targets[0]
        if params.keys() != targets.keys():
            raise api.UsageError(
                f"Channel {self._layout.channel.name!r} takes the parameters {sorted(targets)}, got {sorted(params)}."
            )
        for name, target in targets.items():
            if params[name].shape != target.shape:
                raise api.UsageError(
                    f"Channel {self._layout.channel.name!r}, parameter {name!r}: expected shape "
                    f"{list(target.shape)}, got {list(params[name].shape)}."
                )
        return [params[name] for name in self._names]

    def state_dict(self) -> State:
        """The latest version, copied: other processes see the buffer itself. Version 0 has no tensors."""
        version = self._words[self._at]
        latest = {name: t.clone() for name, t in self._targets[version % 2].items()} if version else {}
        return {"version": version, "tensors": latest}

    def load_state_dict(self, state: State) -> None:
        """Publish what was saved under the number it had or, where later versions have been read already, under the
        next."""
        if state["version"]:
            self._words[self._at] = max(self._words[self._at], state["version"] - 1)
            self.publish(state["tensors"])


class StoreReader:
    """A read end (an ``api.ParamsReader``).

    ``latest`` fills the same private tensors each time: load or clone them before the next call.
    With ``lockstep`` the replica that takes over from a killed one goes on where that one stopped: it reads the same
    version again unless the last item to be made with it was already delivered.
    """

    def __init__(self, session: Session, layout: StoreLayout, reader: int = 0, lockstep: int = 0) -> None:
        arena = session.arena
        self._session, self._words = session, arena.words
        self._at, self._address = layout.control // 8, arena.base + layout.control
        self._delivered_at = layout.delivered // 8 + reader * LINE
        self.flat = np.zeros(layout.stride, np.uint8)  # what was read last, as bytes
        self._buffers = _buffers(arena, layout)
        self._tensors = tensors(torch.from_numpy(self.flat), layout.fields)
        self._lockstep = lockstep
        self._read: int = self._words[self._delivered_at] if lockstep else 0
        self._times = self._items = lockstep  # how often it was read, and how many items were made with it
        self._phase = f"wait:{layout.channel.name}"

    def ready(self) -> bool:
        latest: int = self._words[self._at]
        return latest > self._read or 0 < self._times < self._lockstep if self._lockstep else latest > 0

    def latest(self, newer_than: int = -1) -> tuple[int, api.Tensors] | None:
        """The latest (version, parameters), or None if it is not newer than ``newer_than``."""
        if not self.ready():
            self.wait()
        self._session.fresh = False
        if self._words[self._at] == self._read and self._lockstep:
            self._times += 1
        if self._words[self._at] <= newer_than:
            return None
        before, self._read = self._read, self.copy(self.flat)
        if self._read != before:
            self._times, self._items = 1, 0
        return self._read, self._tensors

    def newest(self) -> int:
        latest: int = self._words[self._at]
        return latest

    def delivered(self) -> None:
        """Count that an item made with the version last read has been sent."""
        self._items += 1
        if self._items >= self._lockstep:
            self._words[self._delivered_at] = self._read

    def copy(self, into: np.ndarray) -> int:
        """Copy the bytes of the latest version, which must exist; return its number."""
        self._session.fresh = False
        words, at = self._words, self._at
        while True:
            version: int = words[at]
            futex.fence()
            into[...] = self._buffers[version % 2][: len(into)]  # one memcpy, no threads: short, so rarely torn
            futex.fence()
            if words[at + LINE + version % 2] == version:
                return version

    def wait(self) -> None:
        """Sleep until it is ready."""
        words, at = self._words, self._at
        while True:
            words[at + 1] = 1
            futex.fence()
            seen: int = words[at]
            if self.ready():
                return
            self._session.wait(self._phase, self._address, seen & _LOW)


def place(arena: Arena, layout: StoreLayout, version: int, flat: np.ndarray) -> None:
    """Make the bytes of a version (``StoreReader.flat``) that was published in another arena the latest of this one,
    under its number, unless this one has it. Nobody else may write here."""
    words, at = arena.words, layout.control // 8
    if words[at] >= version:
        return
    words[at + LINE + version % 2] = version
    futex.fence()
    _buffers(arena, layout)[version % 2][...] = flat
    futex.fence()
    words[at] = version
    futex.fence()
    if words[at + 1]:
        words[at + 1] = 0
        futex.wake(arena.base + layout.control)


def read(arena: Arena, layout: StoreLayout) -> api.Tensors | None:
    """A private copy of the last published parameters; None before the first."""
    words, at = arena.words, layout.control // 8
    version = words[at]
    if version == 0:
        return None
    return tensors(torch.from_numpy(_buffers(arena, layout)[version % 2].copy()), layout.fields)
