"""Simulated queues and replays: how many items lie where, made with which versions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.api import spec_nbytes
from shoal.program import Channel, Port
from shoal.program.divided import parts
from shoal.replay.limiter import RateLimiter
from shoal.simulation.processors import Network
from shoal.simulation.replica import Replica

if TYPE_CHECKING:
    import simpy


class Signal:
    """What several may wait for."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self._waiting = env, list["simpy.Event"]()

    def wait(self) -> simpy.Event:
        self._waiting.append(self._env.event())
        return self._waiting[-1]

    def wake(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                event.succeed()


class Ring:
    """Items of one writer for one reader, by the versions they were made with. Between two nodes there is a ring at
    either end: an item takes the writer's slot until it has arrived, and travels once the reader's ring has room."""

    def __init__(
        self, env: simpy.Environment, network: Network, kind: str, capacity: int, nbytes: int, ends: tuple[int, int],
        arrived: Signal, moved: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._env, self._network, self._capacity, self._nbytes, self._ends = env, network, capacity, nbytes, ends
        self._kind = kind  # of the channel
        self._away: deque[int] | None = deque() if ends[0] != ends[1] else None  # still at the writer
        self.items: deque[int] = deque()
        self.held = 0  # slots of items that the reader looks at
        self.room, self._arrived, self._moved = Signal(env), arrived, moved
        self._sending = False

    @property
    def slots(self) -> int:
        """How many items it can hold, at both ends together."""
        return self._capacity * (1 if self._away is None else 2)

    @property
    def full(self) -> bool:
        return (
            len(self.items) + self.held >= self._capacity if self._away is None else len(self._away) >= self._capacity
        )

    def put(self, version: int) -> None:
        self._moved(1)
        if self._away is None:
            self.items.append(version)
            self._arrived.wake()
        else:
            self._away.append(version)
            self._send()

    def pop(self, hold: bool) -> int:
        version = self.items.popleft()
        if hold:
            self.held += 1
        else:
            self._freed()
        return version

    def release(self) -> None:
        self.held -= 1
        self._freed()

    def _freed(self) -> None:
        self._moved(-1)
        if self._away is None:
            self.room.wake()
        else:
            self._send()

    def _send(self) -> None:
        if self._away and not self._sending and len(self.items) + self.held < self._capacity:
            self._sending = True
            arrival = self._network.send(self._kind, *self._ends, self._nbytes)
            assert arrival.callbacks is not None
            arrival.callbacks.append(self._arrive)

    def _arrive(self, _: simpy.Event) -> None:
        assert self._away is not None
        self._sending = False
        self.items.append(self._away.popleft())
        self._arrived.wake()
        self.room.wake()
        self._send()


class Queue:
    """The rings of a queue or replay channel; ``writers`` and ``readers``: the nodes of its ends, in order."""

    def __init__(
        self, env: simpy.Environment, network: Network, channel: Channel, writers: Sequence[int], readers: Sequence[int]
    ) -> None:
        self.channel = channel
        self.arrived = [Signal(env) for _ in readers]
        specs = [c.spec for c in parts(channel, len(readers))] if channel.divided else [channel.spec] * len(readers)
        sizes = [spec_nbytes(spec) for spec in specs]

        def ring(writer: int, reader: int) -> Ring:
            ends = writers[writer], readers[reader]
            return Ring(
                env, network, channel.kind, channel.capacity, sizes[reader], ends, self.arrived[reader], self._move
            )

        self.of_writer: list[list[Ring]] = [[] for _ in writers]
        self.of_reader: list[list[Ring]] = [[] for _ in readers]
        for w in range(len(writers)):
            for r in range(len(readers)) if channel.divided else (w % len(readers),):
                made = ring(w, r)
                self.of_writer[w].append(made)
                self.of_reader[r].append(made)
        self.slots = sum(ring.slots for rings in self.of_writer for ring in rings)
        self._env, self._level, self._since, self._area = env, 0, env.now, 0.0

    def area(self) -> float:
        """Items in the channel, those that are read in place too, times the seconds that they were in it so far."""
        self._move(0)
        return self._area

    def _move(self, items: int) -> None:
        self._area += self._level * (self._env.now - self._since)
        self._level, self._since = self._level + items, self._env.now


class QueueWriter:
    """Write end of a queue or replay; a divided one sends a part to every reader."""

    def __init__(self, queue: Queue, index: int) -> None:
        self._queue, self._rings = queue, queue.of_writer[index]

    def reserve(self, replica: Replica) -> simpy.Event | None:
        """None once there is room for an item; else what to wait for."""
        return next((ring.room.wait() for ring in self._rings if ring.full), None)

    def commit(self, replica: Replica) -> None:
        """Send an item that was made with the parameters that ``replica`` has."""
        for ring in self._rings:
            ring.put(replica.version)
        if self._queue.channel.kind == "replay" and (newest := replica.newest()):
            replica.behind(newest - replica.version)


class QueueReader:
    """Read end of a queue: ``count`` items from any writer, each in turn, or one of every writer. Items that are not
    copied into a batch keep their slots until the next get."""

    def __init__(self, queue: Queue, port: Port, index: int) -> None:
        self._rings, self._arrived, self._port = queue.of_reader[index], queue.arrived[index], port
        self._holds = port.each or port.count == 1
        self._held: list[Ring] = []
        self._found: list[Ring] = []  # with an item, the next one last
        self._next = 0

    def get(self, replica: Replica) -> simpy.Event | None:
        """None once ``replica`` has a batch; else what to wait for."""
        for ring in self._held:
            ring.release()
        self._held = []
        rings, count = self._rings, self._port.count
        if self._port.each:
            if not all(ring.items for ring in rings):
                return self._arrived.wait()
            picked = list(rings)
            versions = [ring.pop(True) for ring in rings]
        elif sum(len(ring.items) for ring in rings) < count:
            return self._arrived.wait()
        else:
            picked, versions = [], []
            for _ in range(count):  # one after the other: a ring may have its turn again
                picked.append(self._pick())
                versions.append(picked[-1].pop(self._holds))
        replica.received(versions)
        self._held = picked if self._holds else []
        return None

    def _pick(self) -> Ring:
        """A ring with an item: every ready ring has its turn before any has two."""
        if not self._found:
            rings, n = self._rings, len(self._rings)
            ready = [i for i in range(n) if rings[i].items]
            order = [i for i in ready if i >= self._next] + [i for i in ready if i < self._next]
            self._next = (order[-1] + 1) % n
            self._found = [rings[i] for i in reversed(order)]
        return self._found.pop()


class ReplayReader:
    """Read end of a replay: items go from the rings into a table, as the ratio allows, and are drawn from it."""

    def __init__(self, queue: Queue, port: Port, index: int) -> None:
        table = queue.channel.table
        assert table is not None
        self.name = queue.channel.name
        self._rings, self._arrived, self._count = queue.of_reader[index], queue.arrived[index], port.count
        self._items = table.items_per_insert(queue.channel.spec)
        self._limiter = RateLimiter(queue.channel.ratio, self._items)
        self._capacity = int(getattr(table, "capacity", 0)) or None
        self._next = 0
        self.inserted = self.sampled = 0

    def insert(self) -> bool:
        """Take one item into the table; False where there is none, or the ratio says wait."""
        rings, n = self._rings, len(self._rings)
        if not self._limiter.can_insert(self.inserted, self.sampled):
            return False
        for k in range(n):
            at = (self._next + k) % n
            if rings[at].items:
                rings[at].pop(False)
                self._next = (at + 1) % n
                self.inserted += self._items
                return True
        return False

    def get(self, replica: Replica) -> simpy.Event | None:
        """None once a batch is drawn; else what to wait for."""
        size = min(self.inserted, self._capacity or self.inserted)
        if not self._limiter.can_sample(size, self.inserted, self.sampled, self._count):
            return self._arrived.wait()
        self.sampled += self._count
        return None

    @property
    def samples_per_insert(self) -> float | None:
        return self._limiter.samples_per_insert(self.inserted, self.sampled)
