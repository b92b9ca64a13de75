"""Simulated parameters, and channels between equals: versions, rounds and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.api import spec_nbytes
from shoal.program import Channel
from shoal.program.divided import parts
from shoal.simulation.channels import Signal
from shoal.simulation.processors import Network
from shoal.simulation.replica import Replica

if TYPE_CHECKING:
    import simpy


class Store:
    """The latest version of parameters, on its writer's node and, once they have arrived, on those of its readers. A
    version that is newer by the time a link is free is sent instead."""

    def __init__(
        self, env: simpy.Environment, network: Network, nbytes: int, home: int, nodes: Sequence[int], moved: Signal
    ) -> None:
        self._network, self._nbytes, self._home, self._moved = network, nbytes, home, moved
        self.version = 0
        self.seen = dict.fromkeys((home, *nodes), 0)  # node -> its newest version
        self._sending: dict[int, int] = {}  # node -> the version on its way

    def publish(self, replica: Replica) -> None:
        """Make the next version the latest."""
        replica.published += 1
        self.version += 1
        self.seen[self._home] = self.version
        self._moved.wake()
        for node in self.seen:
            if node != self._home:
                self._send(node)

    def _send(self, node: int) -> None:
        if node in self._sending or self.seen[node] == self.version:
            return
        self._sending[node] = self.version
        arrival = self._network.send("params", self._home, node, self._nbytes)
        assert arrival.callbacks is not None
        arrival.callbacks.append(lambda _: self._arrive(node))

    def _arrive(self, node: int) -> None:
        self.seen[node] = self._sending.pop(node)
        self._moved.wake()
        self._send(node)


class Params:
    """A params channel: one store, or one for each part of a divided one."""

    def __init__(
        self, env: simpy.Environment, network: Network, channel: Channel, writers: Sequence[int], readers: Sequence[int]
    ) -> None:
        specs = [p.spec for p in parts(channel, len(writers))] if channel.divided else [channel.spec]
        self.moved = Signal(env)
        self.stores = [
            Store(env, network, spec_nbytes(spec), home, readers, self.moved)
            for spec, home in zip(specs, writers, strict=True)
        ]

    def newest(self, node: int) -> int:
        """The version on a node: of parts, that of the oldest."""
        return min(store.seen[node] for store in self.stores)


class ParamsReader:
    """Read end of parameters on a node. In lockstep it is ready so many times for each version."""

    def __init__(self, params: Params, lockstep: int, node: int) -> None:
        self._params, self._lockstep, self._node = params, lockstep, node
        self.seen = self.reads = 0

    def newest(self) -> int:
        return self._params.newest(self._node)

    def latest(self, replica: Replica) -> simpy.Event | None:
        """None once ``replica`` has the latest version; else what to wait for."""
        version = self.newest()
        if not version or (self._lockstep and version == self.seen and self.reads >= self._lockstep):
            return self._params.moved.wait()
        replica.fresh = version > self.seen
        self.reads = 1 if replica.fresh else self.reads + 1
        self.seen = replica.version = version
        return None


class Reduce:
    """Rounds of a reduce channel. A round is there when every member has put, and the sum has gone round the nodes;
    delay: how long that takes."""

    def __init__(self, env: simpy.Environment, members: int, delay: Callable[[], float]) -> None:
        self._env, self._delay = env, delay
        self.puts, self.gets = [0] * members, [0] * members
        self._open: dict[int, int] = {}  # round -> members that have put
        self._rounds = 0  # that are there
        self._done = Signal(env)

    def put(self, member: int) -> simpy.Event | None:
        if self.puts[member] > self.gets[member]:
            return self._done.wait()  # its own get must come first: it never does
        self.puts[member] += 1
        number = self.puts[member]
        self._open[number] = self._open.get(number, 0) + 1
        if self._open[number] == len(self.puts):
            del self._open[number]
            if (delay := self._delay()) > 0:
                timeout = self._env.timeout(delay)
                assert timeout.callbacks is not None
                timeout.callbacks.append(self._there)
            else:
                self._there(None)
        return None

    def _there(self, _: simpy.Event | None) -> None:
        self._rounds += 1
        self._done.wake()

    def get(self, member: int) -> simpy.Event | None:
        if self._rounds <= self.gets[member]:
            return self._done.wait()
        self.gets[member] += 1
        return None


class Reducer:
    """A member of a reduce channel."""

    def __init__(self, reduce: Reduce, number: int) -> None:
        self._reduce, self._number = reduce, number

    def put(self, replica: Replica) -> simpy.Event | None:
        return self._reduce.put(self._number)

    def get(self, replica: Replica) -> simpy.Event | None:
        """None once the sum is there; else what to wait for."""
        return self._reduce.get(self._number)


class Board:
    """An end of a board, where nobody waits. puts: of each row's writer; number: of its own row, None: it has none."""

    def __init__(self, puts: list[int], number: int | None) -> None:
        self.puts, self.number = puts, number

    def put(self, replica: Replica) -> None:
        assert self.number is not None
        self.puts[self.number] += 1

    def get(self, replica: Replica) -> None: ...

    def ahead(self) -> int:
        """Members that have put more often than this one."""
        own = self.puts[self.number or 0]
        return sum(puts > own for puts in self.puts)


class Shared:
    """Parameters that members change in place; steps: how often each has."""

    def __init__(self, env: simpy.Environment, members: int) -> None:
        self.steps, self.offered, self.there = [0] * members, False, Signal(env)

    @property
    def version(self) -> int:
        return sum(self.steps) + 1 if self.offered else 0


class SharedEnd:
    """An end of shared parameters: a member's, or that of one who only reads."""

    def __init__(self, shared: Shared, number: int | None) -> None:
        self._shared, self._number = shared, number

    def offer(self, replica: Replica) -> None:
        self._shared.offered = True
        self._shared.there.wake()

    def copy(self, replica: Replica) -> simpy.Event | None:
        """None once there are parameters; else what to wait for."""
        return None if self._shared.offered else self._shared.there.wait()

    latest = copy

    def add(self, replica: Replica) -> None:
        assert self._number is not None
        self._shared.steps[self._number] += 1
