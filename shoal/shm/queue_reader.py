"""The read ends of queues, over rings in shared memory."""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np
import torch

from shoal import api
from shoal.shm.ring import Consumer


def no_priorities(channel: str) -> api.UsageError:
    return api.UsageError(f"Channel {channel!r} is a queue: its items have no priorities.")


class QueueReader:
    """``count`` items per ``get`` from any writer, fairly; a single item is read in place (zero-copy).

    A slot read in place goes back to its writer at the next ``get``.
    """

    def __init__(self, consumer: Consumer, count: int = 1) -> None:
        self._consumer, self._count = consumer, count
        self._tensors: list[list[api.Tensors | None]] = [
            [None] * consumer.layout.channel.capacity for _ in consumer.writers
        ]
        self._held: set[int] = set()  # rings whose oldest item the caller is looking at
        self._found: list[int] = []  # rings known to have an item, the next one last
        self._next = 0
        self._batch = _Joined(consumer, count) if count > 1 else None

    def ready(self) -> bool:
        return self._consumer.pending() - len(self._held) >= self._count

    poll = ready

    def get(self) -> api.Batch:
        consumer = self._consumer
        self.release()
        if self._batch is None:
            ring = self._pick()
            consumer.session.fresh = False
            self._held.add(ring)
            return api.Batch(self._view(ring).copy(), None, None, 0, (consumer.version(ring),))
        for position in range(self._count):
            self._batch.take(position, self._pick())
        consumer.session.fresh = False
        return self._batch.result()

    def release(self) -> None:
        """Release the slots that were read in place to their writers; the next ``get`` does the same first."""
        while self._held:
            self._consumer.release(self._held.pop())

    def unseen(self) -> list[int]:
        """Return the rings that have an item which is not being read."""
        return [ring for ring in self._consumer.ready(self._next) if ring not in self._held]

    def waiting(self, most: int, patience: float = 0.0) -> dict[int, api.Tensors]:
        """The oldest item of each of ``most`` rings at most, in place until ``done``; a reader that dies before that
        loses none. Blocks until there is one, and then up to ``patience`` seconds for more."""
        if not self.unseen():
            self._consumer.wait(lambda: bool(self.unseen()))
        end = time.monotonic() + patience
        while len(found := self.unseen()) < min(most, len(self._consumer.writers)) and time.monotonic() < end:
            time.sleep(patience / 8)
        self._consumer.session.fresh = False
        chosen = found[:most]
        self._held.update(chosen)
        self._next = chosen[-1] + 1
        return {ring: self._view(ring).copy() for ring in chosen}

    def done(self, rings: Collection[int]) -> None:
        """Release the slots of these rings, read in place, to their writers."""
        for ring in rings:
            self._consumer.release(ring)
            self._held.remove(ring)

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        raise no_priorities(self._consumer.layout.channel.name)

    def _pick(self) -> int:
        """A ring with an item: every ready ring has its turn before any has two."""
        if not self._found:
            self._refill()
        ring = self._found.pop()
        self._next = ring + 1
        return ring

    def _refill(self) -> None:
        self._found = self._consumer.ready(self._next)
        if not self._found:
            self._consumer.wait(self._look)
        self._found.reverse()

    def _look(self) -> bool:
        self._found = self._consumer.ready(self._next)
        return bool(self._found)

    def _view(self, ring: int) -> api.Tensors:
        slot = self._consumer.index(ring)
        found = self._tensors[ring][slot]
        if found is None:
            found = {name: torch.from_numpy(a) for name, a in self._consumer.arrays(ring).items()}
            self._tensors[ring][slot] = found
        return found


class EachReader:
    """Exactly one item from every writer per ``get``, side by side in writer order (lockstep), read in place.

    Takes nothing before every writer has an item, so that a reader that dies waiting loses none. The slots go back to
    their writers at the next ``get``.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._tensors: list[api.Tensors | None] = [None] * consumer.layout.channel.capacity
        self._held = 0  # items of each ring that the caller is looking at
        consumer.level()

    def ready(self) -> bool:
        return self._consumer.fewest() > self._held

    poll = ready

    def get(self) -> api.Batch:
        consumer, rings = self._consumer, range(len(self._consumer.writers))
        self.release()
        if not self.ready():
            consumer.wait(self.ready)
        consumer.session.fresh = False
        self._held = 1
        slot = consumer.index(0)
        found = self._tensors[slot]
        if found is None:
            found = self._tensors[slot] = {name: torch.from_numpy(a) for name, a in consumer.joined().items()}
        return api.Batch(found.copy(), versions=tuple(map(consumer.version, rings)))

    def release(self) -> None:
        """Release the slots of the last batch to their writers; the next ``get`` does the same first."""
        if self._held:
            self._held = 0
            for ring in range(len(self._consumer.writers)):
                self._consumer.release(ring)

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        raise no_priorities(self._consumer.layout.channel.name)


class _Joined:
    """A preallocated batch of ``count`` items joined along each field's axis."""

    def __init__(self, consumer: Consumer, count: int) -> None:
        self._consumer, self._versions = consumer, [0] * count
        self._places: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
        self._tensors: api.Tensors = {}
        for f in consumer.layout.fields:
            axis = f.axis % len(f.shape)
            width = f.shape[axis]
            batch = np.zeros((*f.shape[:axis], width * count, *f.shape[axis + 1 :]), f.dtype)
            for i, place in enumerate(self._places):
                place[f.name] = batch[(slice(None),) * axis + (slice(i * width, (i + 1) * width),)]
            self._tensors[f.name] = torch.from_numpy(batch)

    def take(self, position: int, ring: int) -> None:
        """Copy the oldest item of a ring to its place, and free its slot."""
        source = self._consumer.arrays(ring)
        for name, target in self._places[position].items():
            target[...] = source[name]
        self._versions[position] = self._consumer.version(ring)
        self._consumer.release(ring)

    def result(self) -> api.Batch:
        return api.Batch(dict(self._tensors), versions=tuple(self._versions))
