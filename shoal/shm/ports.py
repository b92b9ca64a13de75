"""The ends of channels as roles see them, over rings and stores in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.program import Port, RoleSpec
from shoal.runtime import memory
from shoal.runtime.seeds import table_name, table_seed
from shoal.shm.arena import Arena
from shoal.shm.board import BoardEnd
from shoal.shm.divided import PartsConsumer, PartsProducer
from shoal.shm.group_layout import BoardLayout, GroupLayout, ReduceLayout
from shoal.shm.layout import ConstantLayout, Plan
from shoal.shm.reduce import ReduceEnd
from shoal.shm.ring import Consumer, Producer
from shoal.shm.session import Session
from shoal.shm.shared_params import SharedEnd, SharedReader
from shoal.shm.store import StoreReader, StoreWriter
from shoal.types import State, Values


def _no_priorities(channel: str) -> api.UsageError:
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
        self._held: int | None = None  # ring whose oldest item the caller is looking at
        self._found: list[int] = []  # rings known to have an item, the next one last
        self._next = 0
        self._batch = _Joined(consumer, count) if count > 1 else None

    def ready(self) -> bool:
        held = 0 if self._held is None else 1
        return self._consumer.pending() - held >= self._count

    def get(self) -> api.Batch:
        consumer = self._consumer
        self.release()
        if self._batch is None:
            ring = self._pick()
            consumer.session.fresh = False
            self._held = ring
            return api.Batch(self._view(ring).copy(), None, None, 0, (consumer.version(ring),))
        for position in range(self._count):
            self._batch.take(position, self._pick())
        consumer.session.fresh = False
        return self._batch.result()

    def release(self) -> None:
        """Give the slot that was read in place back to its writer, as the next ``get`` does first."""
        if self._held is not None:
            self._consumer.release(self._held)
            self._held = None

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        raise _no_priorities(self._consumer.layout.channel.name)

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
        """Give the slots of the last batch back to their writers, as the next ``get`` does first."""
        if self._held:
            self._held = 0
            for ring in range(len(self._consumer.writers)):
                self._consumer.release(ring)

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        raise _no_priorities(self._consumer.layout.channel.name)


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


class ReplayReader:
    """Owns the table of a replay channel: drains the rings and samples as the ratio allows."""

    def __init__(self, consumer: Consumer, table: api.Replay, limiter: Any, count: int, metrics: Recorder) -> None:
        self._consumer, self._table, self._limiter, self._count = consumer, table, limiter, count
        self.metrics = metrics
        self._next = 0
        self.channel, self.writers = consumer.layout.channel, consumer.layout.writers
        self.name = table_name(self.channel.name, consumer.reader)

    def state_dict(self) -> State:
        return {"table": self._table.state()}

    def load_state_dict(self, state: State) -> None:
        self._table.restore(state["table"])

    def forget(self) -> None:
        """In a copy of the process, which does not read the table: its pages are the other's alone."""
        for array in self._table.arrays():
            memory.give_back(array)

    def ready(self) -> bool:
        self._drain()
        table = self._table
        return bool(self._limiter.can_sample(table.size, table.inserted, table.sampled, self._count))

    def get(self) -> api.Batch:
        if not self.ready():
            self._consumer.wait(self.ready)
        self._consumer.session.fresh = False
        table = self._table
        with self.metrics.phase("sample"):
            batch = table.sample(self._count)
        ratio = self._limiter.samples_per_insert(table.inserted, table.sampled)
        if batch.size and ratio is not None:
            self.metrics.record("samples_per_insert", ratio)
        return batch

    def mass(self) -> float:
        """See ``api.Replay``."""
        return self._table.mass()

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        self._table.reprioritise(keys.detach().cpu().numpy(), priorities.detach().cpu().numpy())

    def _drain(self) -> None:
        """One item of each ready ring at a time, until none is ready or the ratio says wait."""
        consumer, table, limiter = self._consumer, self._table, self._limiter
        for _ in range(consumer.layout.channel.capacity):
            rings = consumer.ready(self._next)
            if not rings:
                return
            for ring in rings:
                if not limiter.can_insert(table.inserted, table.sampled):
                    self._next = ring
                    return
                generation = consumer.header(ring)[1]
                with self.metrics.phase("insert"):
                    table.add(consumer.arrays(ring), ring, generation)
                consumer.release(ring)


class ConstantReader:
    """The arrays of a constant, in the arena itself."""

    def __init__(self, arena: Arena, layout: ConstantLayout) -> None:
        self.arrays: api.Arrays = {f.name: arena.field(layout.start, f) for f in layout.fields}

    def ready(self) -> bool:
        return True


def fill(arena: Arena, plan: Plan) -> None:
    """Make every constant of a program, before its roles start."""
    for layout in plan.constants.values():
        assert layout.channel.fill is not None  # checked by the program
        layout.channel.fill(ConstantReader(arena, layout).arrays)


Join = Callable[[Session, ReduceLayout, int], Any]  # makes the end of a member of that number


def build(
    session: Session,
    plan: Plan,
    role: RoleSpec,
    index: int,
    generation: int,
    seed: int,
    joins: Mapping[str, Join] = MappingProxyType({}),
) -> Values:
    """The ports of one replica, by keyword; ``seed`` is the run's. joins: reduce channel -> what makes its ends, where
    its members share no arena."""
    out: Values = {}
    for name, port in role.ports.items():
        number = plan.ends[role.name, name] + index
        out[name] = (
            _end(session, plan, port, number, generation, seed, joins) if index < port.of(role.replicas) else None
        )
    lockstep = [out[name] for name, port in role.ports.items() if port.lockstep]
    for end in out.values():
        if isinstance(end, Producer) and lockstep:
            end.after_put = partial(_deliver, lockstep)
    return out


def _deliver(readers: list[StoreReader]) -> None:
    for reader in readers:
        reader.delivered()


def _end(
    session: Session, plan: Plan, port: Port, number: int, generation: int, seed: int, joins: Mapping[str, Join]
) -> Any:
    channel = port.channel
    if channel.kind == "constant":
        return ConstantReader(session.arena, plan.constants[channel.name])
    if channel.divided:
        return _part(session, plan, port, number, generation)
    if group := plan.groups.get(channel.name):
        return _member(session, group, number, port.direction != "read", joins)
    if channel.kind == "params":
        store = plan.stores[channel.name]
        return (
            StoreWriter(session, store)
            if port.direction == "write"
            else StoreReader(session, store, number, port.lockstep)
        )
    ring = plan.rings[channel.name]
    if port.direction == "write":
        return Producer(session, ring, number, generation)
    consumer = Consumer(session, ring, number)
    if channel.kind == "queue":
        return EachReader(consumer) if port.each else QueueReader(consumer, port.count)
    assert channel.table is not None  # checked by the plan
    from shoal.replay.limiter import RateLimiter

    name = table_name(channel.name, number)
    if (rehearse := getattr(channel.table, "rehearse", None)) is not None:
        rehearse(channel.spec)
    table = channel.table.build(channel.spec, len(consumer.writers), table_seed(seed, name, generation))
    limiter = RateLimiter(channel.ratio, channel.table.items_per_insert(channel.spec))
    return ReplayReader(consumer, table, limiter, port.count, session.metrics)


def _part(session: Session, plan: Plan, port: Port, number: int, generation: int) -> Any:
    """An end of a divided channel."""
    channel, names = plan.divided[port.channel.name]
    if channel.kind == "params":
        if port.direction == "write":
            return StoreWriter(session, plan.stores[names[number]])
        return PartsConsumer(session, channel, [plan.stores[name] for name in names], number)
    if port.direction == "write":
        return PartsProducer(channel, [Producer(session, plan.rings[name], number, generation) for name in names])
    return QueueReader(Consumer(session, plan.rings[names[number]]), port.count)


def _member(session: Session, group: GroupLayout, number: int, writes: bool, joins: Mapping[str, Join]) -> Any:
    """An end of a channel between equals."""
    if isinstance(group, BoardLayout):
        return BoardEnd(session, group, number if writes else None)
    if isinstance(group, ReduceLayout):
        return joins.get(group.channel.name, ReduceEnd)(session, group, number)
    return SharedEnd(session, group, number) if writes else SharedReader(session, group)
