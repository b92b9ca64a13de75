"""Single-producer single-consumer rings in shared memory, one per writer of a channel.

``head`` is written only by the producer and ``tail`` only by the consumer; both only grow. An item
exists once ``head`` has passed it: a producer killed inside ``put`` leaves nothing behind, and its
successor overwrites the half-written slot. A killed consumer's successor continues at ``tail``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import numpy as np

from shoal import api
from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.futex import WEAK, fence
from shoal.shm.layout import LINE, FieldLayout, RingLayout
from shoal.shm.session import Session

_LOW = 0xFFFFFFFF


class Producer:
    """The write end of one ring (an ``api.Writer``).

    ``after_put`` runs when an item has become visible.
    """

    def __init__(self, session: Session, layout: RingLayout, writer: int, generation: int = 0) -> None:
        arena = session.arena
        self.after_put: Callable[[], None] | None = None
        self._session, self._layout, self._index, self._generation = session, layout, writer, generation
        self._words = arena.words
        self._head_at = layout.heads // 8 + writer * LINE
        self._tail_at = layout.tails // 8 + writer * LINE
        self._tail_address = arena.base + layout.tails + writer * LINE * 8
        bell = layout.bells + (writer % layout.readers) * LINE * 8
        self._bell_at, self._bell_address = bell // 8, arena.base + bell
        self._capacity, self._writers = layout.channel.capacity, layout.writers
        self._phase = f"wait:{layout.channel.name}"
        starts = [layout.slot(writer, i) for i in range(self._capacity)]
        self._headers = [start // 8 for start in starts]
        self._arrays = [item(arena, layout, writer, i) for i in range(self._capacity)]
        self._targets = [[(name, a, a.shape, a.dtype) for name, a in arrays.items()] for arrays in self._arrays]
        self._fields = len(layout.fields)
        self._slot = _Slot(self)
        self._head: int = self._words[self._head_at]
        self._tail: int = self._words[self._tail_at]
        self._words[self._head_at + 1] = 0  # a killed predecessor may have died waiting

    def ready(self) -> bool:
        self._tail = self._words[self._tail_at]
        return self._head - self._tail < self._capacity

    def put(self, items: api.Arrays, version: int = 0) -> None:
        """Copy one item in; blocks while the ring is full."""
        head = self._head
        if head - self._tail >= self._capacity:
            self._wait()
        if len(items) != self._fields:
            self._refuse(items)
        for name, target, shape, dtype in self._targets[head % self._capacity]:
            source = items.get(name)
            if source is None or source.shape != shape or source.dtype != dtype:
                source = coerce(self._layout.channel.name, name, source, target)
            target[...] = source
        self.commit(version)

    def slot(self, version: int = 0) -> _Slot:
        """``with writer.slot() as arrays:`` fills the next item in place; an exception inside discards it."""
        self._slot.version = version
        return self._slot

    def reserve(self) -> api.Arrays:
        """Return the arrays of the next slot. Blocks until it is free."""
        if self._head - self._tail >= self._capacity:
            self._wait()
        return self._arrays[self._head % self._capacity]

    def commit(self, version: int) -> None:
        """Make the slot that was written visible to the reader."""
        self._session.fresh = False
        words, head = self._words, self._head
        at = self._headers[head % self._capacity]
        words[at] = version
        words[at + 1] = self._generation
        words[at + 2] = head
        if WEAK:
            fence()
        self._head = words[self._head_at] = head + 1
        words[self._bell_at] = ((head + 1) * self._writers + self._index) & _LOW  # differs from any other bell
        fence()
        if words[self._bell_at + 1]:
            words[self._bell_at + 1] = 0  # whoever waits sets it again before each sleep
            futex.wake(self._bell_address)
        if self.after_put is not None:
            self.after_put()

    def _wait(self) -> None:
        """Returns once the ring has a free slot."""
        words = self._words
        if self.ready() or (futex.soon(words, self._tail_at, self._tail) and self.ready()):
            return
        try:
            while True:
                words[self._head_at + 1] = 1
                fence()
                if self.ready():
                    return
                self._session.wait(self._phase, self._tail_address, self._tail & _LOW)
        finally:
            words[self._head_at + 1] = 0

    def _refuse(self, items: api.Arrays) -> None:
        expected, found = sorted(f.name for f in self._layout.fields), sorted(items)
        raise api.UsageError(f"Channel {self._layout.channel.name!r} takes the arrays {expected}, but got {found}.")


class _Slot:
    """Context of one in-place item; made once per producer."""

    def __init__(self, producer: Producer) -> None:
        self._producer, self.version = producer, 0

    def __enter__(self) -> api.Arrays:
        return self._producer.reserve()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self._producer.commit(self.version)


class Consumer:
    """The read end of the rings of one reader: writer ``i`` belongs to reader ``i % readers``.

    Rings are numbered 0, 1, ... in writer order; ``writers`` gives their channel-wide numbers.
    """

    def __init__(self, session: Session, layout: RingLayout, reader: int = 0) -> None:
        arena = session.arena
        self.reader, self.writers = reader, list(range(reader, layout.writers, layout.readers))
        self.layout = layout
        self.session, self._arena, self._words = session, arena, arena.words
        own = slice(reader, None, layout.readers)
        self._heads = arena.array(layout.heads, (layout.writers, LINE), np.int64)[own, 0]
        self._tails = arena.array(layout.tails, (layout.writers, LINE), np.int64)[own, 0]
        self._head_at = [layout.heads // 8 + w * LINE for w in self.writers]
        self._tail_at = [layout.tails // 8 + w * LINE for w in self.writers]
        self._tail_address = [arena.base + layout.tails + w * LINE * 8 for w in self.writers]
        self._tail: list[int] = [self._words[at] for at in self._tail_at]
        bell = layout.bells + reader * LINE * 8
        self._bell_at, self._bell_address = bell // 8, arena.base + bell
        self._capacity = layout.channel.capacity
        self._phase = f"wait:{layout.channel.name}"
        self._headers = [[layout.slot(w, i) // 8 for i in range(self._capacity)] for w in self.writers]
        self._arrays: list[list[api.Arrays | None]] = [[None] * self._capacity for _ in self.writers]
        self._words[self._bell_at + 1] = 0

    def ready(self, start: int = 0) -> list[int]:
        """Rings with an item, from ``start`` on and around."""
        if len(self.writers) == 1:
            return [0] if self._words[self._head_at[0]] > self._tail[0] else []
        found: list[int] = np.flatnonzero(self._heads > self._tails).tolist()
        if start and found and found[0] < start:
            cut = next((i for i, ring in enumerate(found) if ring >= start), 0)
            found = found[cut:] + found[:cut]
        return found

    def pending(self) -> int:
        """Items waiting in all rings."""
        return int((self._heads - self._tails).sum())

    def fewest(self) -> int:
        """Items waiting in the ring that has the fewest."""
        return int((self._heads - self._tails).min())

    def level(self) -> None:
        """Release slots that a killed predecessor had released in some rings but not in all."""
        newest = max(self._tail)
        for ring in range(len(self.writers)):
            while self._tail[ring] < newest:
                self.release(ring)

    def index(self, ring: int) -> int:
        """The slot that holds the oldest item of a ring."""
        return self._tail[ring] % self._capacity

    def arrays(self, ring: int) -> api.Arrays:
        """The oldest item of a ring, in place: valid until it is released."""
        slot = self._tail[ring] % self._capacity
        found = self._arrays[ring][slot]
        if found is None:
            found = self._arrays[ring][slot] = item(self._arena, self.layout, self.writers[ring], slot)
        return found

    def joined(self) -> api.Arrays:
        """The oldest items of all rings side by side, in place, if the layout joins them and ``index`` is the same for
        all."""
        return joined(self._arena, self.layout, self.reader, self.index(0))

    def header(self, ring: int) -> tuple[int, int, int]:
        """(version, generation, sequence) of the oldest item."""
        at = self._headers[ring][self._tail[ring] % self._capacity]
        version, generation, sequence = self._words[at : at + 3].tolist()
        return version, generation, sequence

    def version(self, ring: int) -> int:
        return int(self._words[self._headers[ring][self._tail[ring] % self._capacity]])

    def release(self, ring: int) -> None:
        """Give the slot of the oldest item back to its writer."""
        words = self._words
        if WEAK:
            fence()
        self._tail[ring] = words[self._tail_at[ring]] = self._tail[ring] + 1
        fence()
        if words[self._head_at[ring] + 1]:
            words[self._head_at[ring] + 1] = 0
            futex.wake(self._tail_address[ring])

    def wait(self, satisfied: Callable[[], bool]) -> None:
        """Sleep until ``satisfied()``; every put to one of these rings makes it look again."""
        words = self._words
        seen = words[self._bell_at]
        if satisfied() or (futex.soon(words, self._bell_at, seen) and satisfied()):
            return
        try:
            while True:
                words[self._bell_at + 1] = 1
                fence()
                seen = words[self._bell_at] & _LOW
                if satisfied():
                    return
                self.session.wait(self._phase, self._bell_address, seen)
        finally:
            words[self._bell_at + 1] = 0


def joined(arena: Arena, layout: RingLayout, reader: int, index: int) -> api.Arrays:
    """Return the items in slots ``index`` of a reader's writers, joined in the order of the writers."""
    start, count = layout.batch(reader, index), len(range(reader, layout.writers, layout.readers))
    arrays = {f.name: arena.field(start, f) for f in layout.joined}
    return {f.name: _columns(f, arrays[f.name], 0, count) for f in layout.fields}


def item(arena: Arena, layout: RingLayout, writer: int, index: int) -> api.Arrays:
    """The arrays of a slot."""
    if not layout.joined:
        start = layout.slot(writer, index)
        return {f.name: arena.field(start, f) for f in layout.fields}
    batch, position = joined(arena, layout, writer % layout.readers, index), writer // layout.readers
    return {f.name: _columns(f, batch[f.name], position, position + 1) for f in layout.fields}


def _columns(one: FieldLayout, batch: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Of a field joined along its axis: the part of items ``begin`` to ``end``."""
    axis = one.axis % len(one.shape)
    width = one.shape[axis]
    return batch[(slice(None),) * axis + (slice(begin * width, end * width),)]


def fill(arena: Arena, layout: RingLayout) -> float:
    """Return the share of a channel's slots that are in use."""
    heads = arena.array(layout.heads, (layout.writers, LINE), np.int64)[:, 0]
    tails = arena.array(layout.tails, (layout.writers, LINE), np.int64)[:, 0]
    return float((heads - tails).sum()) / (layout.writers * layout.channel.capacity)


def moved(arena: Arena, layout: RingLayout) -> np.ndarray:
    """Return the number of items that each writer of a channel has put since the launch, int64 of shape [writers]."""
    items: np.ndarray = arena.array(layout.heads, (layout.writers, LINE), np.int64)[:, 0].copy()
    return items


def coerce(channel: str, name: str, source: np.ndarray | None, target: np.ndarray) -> np.ndarray:
    """Return the array with the slot's shape and dtype, or raise an error that says what was expected."""
    where = f"Channel {channel!r}, array {name!r}"
    if source is None:
        raise api.UsageError(f"{where} is missing.")
    array = np.asarray(source)
    if array.shape != target.shape or not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise api.UsageError(
            f"{where}: expected {target.dtype}{list(target.shape)}, got {array.dtype}{list(array.shape)}."
        )
    return array
