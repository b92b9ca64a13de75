"""The channels of the serial runtime, and their ends: plain queues, with states that a checkpoint can hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import numpy as np
import torch

from shoal.api import Arrays, Batch, Deadlock, State, Tensors, UsageError
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Port
from shoal.replay.limiter import RateLimiter
from shoal.runtime.channel_checks import check_item
from shoal.untrusted import counter


class SerialQueue:
    """A bounded first-in-first-out queue per writer."""

    def __init__(self, channel: Channel, writers: int):
        self.channel = channel
        self.queues: list[deque[tuple[int, Arrays]]] = [deque() for _ in range(writers)]  # (version, item)
        self.turn = self.moved = 0  # moved: items that were put since the launch

    def fill(self) -> float:
        return sum(map(len, self.queues)) / (len(self.queues) * self.channel.capacity)

    def state_dict(self) -> State:
        return {"queues": [list(q) for q in self.queues], "turn": self.turn}

    def load_state_dict(self, state: State) -> None:
        for queue, items in zip(self.queues, state["queues"], strict=True):
            if len(items) > self.channel.capacity:
                raise ValueError(f"it holds {len(items)} items of at most {self.channel.capacity}")
            queue.clear()
            queue.extend((counter(version), _item(self.channel, item)) for version, item in items)
        self.turn = counter(state["turn"]) % len(self.queues)


def _item(channel: Channel, found: Arrays) -> Arrays:
    """An item that was saved. ValueError or UsageError where it is none of the channel's."""
    check_item(channel, found)
    if any(found[name].dtype != f.dtype for name, f in channel.spec.items()):
        raise ValueError(f"an item has the types { ({name: str(a.dtype) for name, a in found.items()}) }")
    return {name: found[name] for name in channel.spec}


def _params(channel: Channel, found: Tensors) -> Tensors:
    """Parameters that were saved. ValueError where they are not the channel's."""
    told = {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in found.items()}
    if told != {name: (tuple(f.shape), str(f.dtype)) for name, f in channel.spec.items()}:
        raise ValueError(f"expected the parameters {list(channel.spec)}, found others")
    return found


class SerialWriter:
    """Write end of a queue or replay channel for one writer."""

    def __init__(self, target: SerialQueue | SerialReplay, index: int, metrics: Recorder, generation: int = 0):
        self.target, self.index, self.metrics, self.generation = target, index, metrics, generation

    def ready(self) -> bool:
        if isinstance(self.target, SerialReplay):
            return self.target.can_insert(self.index)
        return len(self.target.queues[self.index]) < self.target.channel.capacity

    def put(self, items: Arrays, version: int = 0) -> None:
        check_item(self.target.channel, items)
        with self.slot(version) as slot:
            for name, array in slot.items():
                array[...] = items[name]

    def slot(self, version: int = 0) -> SerialSlot:
        return SerialSlot(self, version)

    def reserve(self) -> Arrays:
        """The arrays of a new item."""
        if not self.ready():
            raise Deadlock(f"put into the full channel '{self.target.channel.name}': a role may put once per step")
        return {name: np.empty(f.shape, f.dtype) for name, f in self.target.channel.spec.items()}

    def commit(self, arrays: Arrays, version: int) -> None:
        """Send an item that was written."""
        if isinstance(self.target, SerialReplay):
            with self.metrics.phase("insert"):
                self.target.add(arrays, self.index, self.generation)
        else:
            self.target.queues[self.index].append((version, arrays))
        self.target.moved += 1


class SerialSlot:
    """Context of one item that is written in place."""

    def __init__(self, writer: SerialWriter, version: int) -> None:
        self._writer, self.version = writer, version
        self._arrays: Arrays = {}

    def __enter__(self) -> Arrays:
        self._arrays = self._writer.reserve()
        return self._arrays

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self._writer.commit(self._arrays, self.version)


class QueueReader:
    """Read end of a queue: ``count`` items joined along each field's batch axis."""

    def __init__(self, queue: SerialQueue, port: Port):
        self.queue, self.port = queue, port
        self.shown: set[int] = set()  # writers whose oldest item is being looked at

    def unseen(self) -> list[int]:
        """Writers with an item, of those whose oldest nobody is looking at, in turn."""
        count = len(self.queue.queues)
        turns = [(self.queue.turn + k) % count for k in range(count)]
        return [k for k in turns if self.queue.queues[k] and k not in self.shown]

    def waiting(self, most: int, patience: float = 0.0) -> dict[int, Tensors]:
        """The oldest item of each of ``most`` writers at most, until ``done``."""
        if not (found := self.unseen()[:most]):
            raise Deadlock(f"nothing waits on channel '{self.queue.channel.name}'")
        self.shown.update(found)
        self.queue.turn = (found[-1] + 1) % len(self.queue.queues)
        oldest = {k: self.queue.queues[k][0][1] for k in found}
        return {k: {name: torch.from_numpy(array) for name, array in item.items()} for k, item in oldest.items()}

    def done(self, writers: Collection[int]) -> None:
        """Take the items that ``waiting`` has shown of these writers."""
        for k in writers:
            self.queue.queues[k].popleft()
            self.shown.remove(k)

    def ready(self) -> bool:
        if self.port.each:
            return all(self.queue.queues)
        return sum(map(len, self.queue.queues)) >= self.port.count

    poll = ready

    def get(self) -> Batch:
        if not self.ready():
            raise Deadlock(f"get from the empty channel '{self.queue.channel.name}': a role may get once per step")
        queues = self.queue.queues
        items = []
        if self.port.each:
            items = [q.popleft() for q in queues]
        while len(items) < (0 if self.port.each else self.port.count):
            if queues[self.queue.turn]:
                items.append(queues[self.queue.turn].popleft())
            self.queue.turn = (self.queue.turn + 1) % len(queues)
        versions, arrays = zip(*items, strict=True)
        joined = {
            name: torch.from_numpy(np.concatenate([a[name] for a in arrays], f.axis) if len(arrays) > 1 else a0)
            for (name, f), a0 in zip(self.queue.channel.spec.items(), arrays[0].values(), strict=True)
        }
        return Batch(joined, versions=versions)

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        raise UsageError(f"channel '{self.queue.channel.name}' is a queue: its items have no priorities")


class SerialReplay:
    """A replay channel: writers insert straight into the table of their reader, as the ratio allows. ``seeds``: one for
    each table; writer ``i`` belongs to table ``i % tables``."""

    def __init__(self, channel: Channel, writers: int, seeds: Sequence[int]):
        assert channel.table is not None
        self.channel, self.writers = channel, writers
        of = [len(range(r, writers, len(seeds))) for r in range(len(seeds))]
        self.tables = [channel.table.build(channel.spec, n, seed) for n, seed in zip(of, seeds, strict=True)]
        self.limiter = RateLimiter(channel.ratio, channel.table.items_per_insert(channel.spec))
        self.moved = 0

    def can_insert(self, writer: int) -> bool:
        table = self.tables[writer % len(self.tables)]
        return self.limiter.can_insert(table.inserted, table.sampled)

    def add(self, unroll: Arrays, writer: int, generation: int) -> None:
        self.tables[writer % len(self.tables)].add(unroll, writer // len(self.tables), generation)

    def state_dict(self) -> State:
        first, *others = [table.state() for table in self.tables]
        return {"table": first, "others": others}

    def load_state_dict(self, state: State) -> None:
        for table, saved in zip(self.tables, [state["table"], *state.get("others", [])], strict=True):
            table.restore(saved)


class ReplayReader:
    """Read end of a replay channel: the table of that number."""

    def __init__(self, replay: SerialReplay, port: Port, metrics: Recorder, number: int = 0):
        self.table, self.limiter, self.port, self.metrics = replay.tables[number], replay.limiter, port, metrics

    def ready(self) -> bool:
        table = self.table
        return self.limiter.can_sample(table.size, table.inserted, table.sampled, self.port.count)

    poll = ready

    def get(self) -> Batch:
        with self.metrics.phase("sample"):
            batch = self.table.sample(self.port.count)
        ratio = self.limiter.samples_per_insert(self.table.inserted, self.table.sampled)
        if batch.size and ratio is not None:
            self.metrics.record("samples_per_insert", ratio)
        return batch

    def mass(self) -> float:
        """See ``api.Replay``."""
        return self.table.mass()

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        self.table.reprioritise(keys.numpy(), priorities.float().cpu().numpy())


class SerialConstant:
    """A constant, filled when it is built; it is its own read end."""

    def __init__(self, channel: Channel):
        assert channel.fill is not None
        self.arrays: Arrays = {name: np.zeros(f.shape, f.dtype) for name, f in channel.spec.items()}
        channel.fill(self.arrays)

    def ready(self) -> bool:
        return True


class SerialParams:
    """Versioned parameters; keeps ``lag`` old versions so that staleness can be reproduced."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.version = 0
        self.kept: deque[tuple[int, Tensors]] = deque(maxlen=channel.lag + 1)

    def ready(self) -> bool:
        return True

    def publish(self, params: Tensors) -> int:
        self.version += 1
        self.kept.append((self.version, {k: v.detach().cpu().clone() for k, v in params.items()}))
        return self.version

    @contextmanager
    def slot(self) -> Iterator[Tensors]:
        """The next version, to be written in place."""
        new = {name: torch.zeros(f.shape, dtype=getattr(torch, f.dtype)) for name, f in self.channel.spec.items()}
        yield new
        self.version += 1
        self.kept.append((self.version, new))

    def published(self) -> Tensors:
        """The latest parameters."""
        return self.kept[-1][1]

    def state_dict(self) -> State:
        """The latest version, and those kept before it."""
        *older, (version, tensors) = self.kept
        return {"version": version, "tensors": tensors, "older": older}

    def load_state_dict(self, state: State) -> None:
        self.version = counter(state["version"])
        self.kept.clear()
        for version, tensors in [*state["older"], (self.version, state["tensors"])]:
            self.kept.append((counter(version), _params(self.channel, tensors)))


class SerialParamsReader:
    """Read end of a params channel. ``reads``: how often it has read the version ``seen``."""

    def __init__(self, store: SerialParams, port: Port):
        self.store, self.port = store, port
        self.seen = self.reads = 0

    def ready(self) -> bool:
        if not self.store.kept:
            return False
        return not self.port.lockstep or self.store.kept[0][0] > self.seen or self.reads < self.port.lockstep

    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        if not self.ready():
            raise Deadlock(f"no new version on channel '{self.store.channel.name}'")
        version, params = self.store.kept[0]
        self.reads = self.reads + 1 if version == self.seen else 1
        self.seen = version
        return None if version <= newer_than else (version, params)

    def unread(self) -> None:
        """Let the last read be made again, as a step that was cut short is taken again."""
        self.reads -= 1

    def newest(self) -> int:
        return self.store.version
