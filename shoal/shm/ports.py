"""The ends of channels as roles see them, over rings and stores in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.program import Port, RoleSpec
from shoal.replay.limiter import RateLimiter
from shoal.runtime import memory
from shoal.runtime.seeds import table_name, table_seed
from shoal.shm.arena import Arena
from shoal.shm.board import BoardEnd
from shoal.shm.divided import PartsConsumer, PartsProducer
from shoal.shm.group_layout import BoardLayout, GroupLayout, ReduceLayout
from shoal.shm.layout import ConstantLayout, Plan
from shoal.shm.queue_reader import EachReader, QueueReader
from shoal.shm.reduce import ReduceEnd
from shoal.shm.ring import Consumer, Producer
from shoal.shm.session import Session
from shoal.shm.shared_params import SharedEnd, SharedReader
from shoal.shm.store import StoreReader, StoreWriter
from shoal.types import State, Values


class ReplayReader:
    """The read end of a replay channel. It owns the table: ``get`` moves items from the writers' rings into the table,
    as far as the ratio allows, and samples a batch of ``count``."""

    def __init__(
        self, consumer: Consumer, table: api.Replay, limiter: RateLimiter, count: int, metrics: Recorder
    ) -> None:
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
        """Release the table's memory in a forked copy of the process, which does not read it."""
        for array in self._table.arrays():
            memory.give_back(array)

    def ready(self) -> bool:
        """Return True if the table may be sampled now. Items that are still in the rings do not count."""
        table = self._table
        return self._limiter.can_sample(table.size, table.inserted, table.sampled, self._count)

    def poll(self) -> bool:
        """Move items from the rings into the table, one of each ring at a time, until none is left or the ratio holds
        the writers back, and return ``ready()``."""
        consumer, table, limiter = self._consumer, self._table, self._limiter
        for _ in range(consumer.layout.channel.capacity):
            rings = consumer.ready(self._next)
            if not rings:
                break
            for ring in rings:
                if not limiter.can_insert(table.inserted, table.sampled):
                    self._next = ring
                    return self.ready()
                generation = consumer.header(ring)[1]
                with self.metrics.phase("insert"):
                    table.add(consumer.arrays(ring), ring, generation)
                consumer.release(ring)
        return self.ready()

    def get(self) -> api.Batch:
        """Insert pending items, then sample a batch. Blocks while the table may not be sampled."""
        if not self.poll():
            self._consumer.wait(self.poll)
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
    """Return the ports of one replica, by keyword. seed: the run's. joins: reduce channel -> a function that makes its
    ends, for channels whose members share no arena."""
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
