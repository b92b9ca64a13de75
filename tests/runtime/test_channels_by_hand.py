"""Rings, the ends of queues, and ports, in one process: whose turn it is, what is free, who is woken, worked out by
hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from channels import SPEC, check, ends, item, plan_of, queue, session_of
from programs import Wired

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.program import Channel, RoleSpec
from shoal.replay import Ratio
from shoal.shm import futex, layout, ports, queue_reader
from shoal.shm.layout import STOP, Plan
from shoal.shm.ports import ReplayReader
from shoal.shm.queue_reader import EachReader, QueueReader
from shoal.shm.ring import Consumer, Producer, fill
from shoal.shm.session import Session

pytestmark = pytest.mark.timeout(20)


def put(session: Session, plan: Plan, *writers: int) -> None:
    """Each of these writers puts an item, whose number says how many it has put before."""
    ring = plan.rings["c"]
    for writer in writers:
        sent = session.arena.words[ring.heads // 8 + writer * layout.LINE]
        Producer(session, ring, writer).put(item(writer, 0, sent), version=10 * writer + sent)


def seen(found: dict[int, api.Tensors]) -> dict[int, tuple[int, int]]:
    """(writer, number) of each item."""
    return {ring: (check(arrays)[0], check(arrays)[2]) for ring, arrays in found.items()}


# ------------------------------------------------------------------------------------------ rings
def test_no_slot_is_reserved_in_a_full_ring() -> None:
    session, plan = queue(capacity=2)
    (producer,), consumer = ends(session, plan)
    for number in range(2):
        producer.put(item(0, 0, number))
    session.arena.words[STOP // 8] = 1  # so that who waits is told
    with pytest.raises(api.Stopped):
        producer.reserve()
    consumer.release(0)
    assert producer.reserve()["tag"][2] == 0, "the place of the item that was read"


def test_a_reader_that_takes_over_goes_on_behind_what_was_released() -> None:
    session, plan = queue(writers=2, capacity=4)
    put(session, plan, 0, 0, 0, 1, 1)
    _, consumer = ends(session, plan)
    consumer.release(0)
    consumer.release(0)
    _, successor = ends(session, plan)
    assert [check(successor.arrays(ring))[2] for ring in (0, 1)] == [2, 0]
    assert [successor.version(ring) for ring in (0, 1)] == [2, 10] and successor.index(0) == 2


def test_the_rings_with_an_item_begin_with_the_one_asked_for() -> None:
    session, plan = queue(writers=5)
    put(session, plan, 0, 2, 3)
    _, consumer = ends(session, plan)
    around = {start: consumer.ready(start) for start in range(6)}
    assert around == {0: [0, 2, 3], 1: [2, 3, 0], 2: [2, 3, 0], 3: [3, 0, 2], 4: [0, 2, 3], 5: [0, 2, 3]}


def test_all_rings_are_released_as_far_as_the_one_released_last() -> None:
    session, plan = queue(writers=3, capacity=2, each=True)
    put(session, plan, 0, 1, 2, 0, 1, 2)
    _, killed = ends(session, plan)
    killed.release(1)
    producers, successor = ends(session, plan)
    batch = EachReader(successor).get()
    assert batch.versions == (1, 11, 21)
    assert [producer.ready() for producer in producers] == [True] * 3, "the first item of each is gone"


def test_no_two_puts_leave_the_same_bell() -> None:
    session, plan = queue(writers=3, capacity=4)
    bells = []
    for writer in (0, 1, 2, 0, 1, 2, 0, 0):
        put(session, plan, writer)
        bells.append(session.arena.words[plan.rings["c"].bells // 8])
    assert len(set(bells)) == 8 and all(0 <= bell < 2**32 for bell in bells)


def test_a_channel_is_as_full_as_all_its_rings_together() -> None:
    session, plan = queue(writers=3, capacity=4)
    assert fill(session.arena, plan.rings["c"]) == 0.0
    put(session, plan, 0, 0, 2)
    assert fill(session.arena, plan.rings["c"]) == 3 / 12


def test_a_put_wakes_the_reader_if_it_sleeps_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(futex, "wake", woken.append)
    session, plan = queue()
    bell = session.arena.base + plan.rings["c"].bells
    _, consumer = ends(session, plan)
    put(session, plan, 0)
    assert woken == []
    consumer.release(0)
    session.tick = lambda: put(session, plan, 0)  # is called where it falls asleep
    consumer.wait(lambda: consumer.pending() == 1)
    assert woken == [bell]
    put(session, plan, 0)
    assert woken == [bell], "it does not sleep any more"


def test_a_release_wakes_the_writer_if_it_sleeps_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(futex, "wake", woken.append)
    session, plan = queue(writers=2, capacity=1)
    producers, consumer = ends(session, plan)
    producers[1].put(item(1, 0, 0))
    session.tick = lambda: consumer.release(1)  # is called where it falls asleep
    producers[1].put(item(1, 0, 1))
    assert woken == [session.arena.base + plan.rings["c"].tails + layout.ALIGN], "that of the second writer"
    consumer.release(1)
    assert len(woken) == 1, "it does not sleep any more"


# --------------------------------------------------------------------------------- ends of queues
def reader_of(session: Session, plan: Plan, count: int = 1) -> QueueReader:
    return QueueReader(Consumer(session, plan.rings["c"], 0), count)


def test_an_item_that_is_looked_at_is_none_to_come() -> None:
    session, plan = queue(writers=2)
    reader = reader_of(session, plan)
    put(session, plan, 1)
    assert reader.ready()
    reader.get()
    assert not reader.ready()
    put(session, plan, 1)
    assert reader.ready()


def test_after_a_writers_item_it_is_the_next_ones_turn() -> None:
    session, plan = queue(writers=3, capacity=4)
    reader, order = reader_of(session, plan), []
    put(session, plan, 0)
    for writers in ((0, 1), (), (1, 2, 0), (), (), ()):
        order.append(check(reader.get().items)[0])
        put(session, plan, *writers)
    assert order == [0, 1, 0, 1, 2, 0], "1 before 0, which had just had its turn"


def test_those_who_wait_are_answered_in_turns_and_no_more_than_asked_for() -> None:
    session, plan = queue(writers=4, capacity=2)
    reader = reader_of(session, plan)
    put(session, plan, 0, 0, 1, 2)
    assert seen(reader.waiting(2)) == {0: (0, 0), 1: (1, 0)}
    assert reader.unseen() == [2], "the others are being looked at"
    reader.done([0, 1])
    put(session, plan, 1)
    assert seen(reader.waiting(2)) == {2: (2, 0), 0: (0, 1)}
    reader.done([2])
    assert reader.unseen() == [1]
    assert seen(reader.waiting(9)) == {1: (1, 1)}


def test_who_has_patience_waits_so_long_for_more_and_no_longer_than_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    session, plan = queue(writers=3, capacity=2)
    reader, clock, comes = reader_of(session, plan), [100.0], {101.5: 2, 104.0: 1}

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] in comes:
            put(session, plan, comes[clock[0]])

    monkeypatch.setattr(queue_reader, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    put(session, plan, 0)
    assert seen(reader.waiting(3, patience=4.0)) == {0: (0, 0), 1: (1, 0), 2: (2, 0)} and clock == [104.0]
    reader.done([0, 1, 2])
    put(session, plan, 2)
    assert seen(reader.waiting(1, patience=4.0)) == {2: (2, 1)} and clock == [104.0], "one was all"
    reader.done([2])
    put(session, plan, 1)
    assert seen(reader.waiting(2, patience=4.0)) == {1: (1, 1)} and clock == [108.0]


# ------------------------------------------------------------------------------------------ ports
class Table:
    """A fake replay: each insertion brings 5 items; what came in which order."""

    def __init__(self) -> None:
        self.inserted = self.sampled = self.size = 0
        self.came: list[tuple[int, int]] = []

    def add(self, unroll: api.Arrays, writer: int = 0, generation: int = 0) -> int:
        self.came.append((writer, check(unroll)[2]))
        self.inserted += 5
        self.size += 5
        return 5

    def sample(self, n: int) -> api.Batch:
        self.sampled += n
        return api.Batch({}, keys=torch.arange(n), size=self.size)


@dataclass(frozen=True)
class TableSpec:
    seeds: list[int] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def nbytes(self, unroll: api.Spec, writers: int = 1) -> int:
        return 1000

    def items_per_insert(self, unroll: api.Spec) -> int:
        return 5

    def build(self, unroll: api.Spec, writers: int, seed: int) -> Any:
        self.seeds.append(seed)
        self.tables.append(Table())
        return self.tables[-1]


def test_each_life_of_a_replays_reader_draws_anew() -> None:
    spec = TableSpec()
    plan = plan_of(Channel("c", "replay", SPEC, table=spec))
    session, channel = session_of(plan), plan.rings["c"].channel
    role = RoleSpec("reader", Table, {"inp": channel.reader()})  # type: ignore[arg-type]
    for generation, seed in ((0, 7), (1, 7), (0, 7), (0, 8)):
        ports.build(session, plan, role, 0, generation, seed)
    first, other_life, again, other_run = spec.seeds
    assert first == again and len({first, other_life, other_run}) == 3


def test_an_insertion_waits_if_all_that_it_may_bring_would_be_ahead_of_sampling() -> None:
    """The first brings the 5 items that sampling waits for. 5 more are too far ahead of no samples, and, with a slack
    of 3 samples, just right after 3."""
    spec, ratio = TableSpec(), Ratio(min_size=5, samples_per_insert=1.0, slack=3.0)
    channel = Channel("c", "replay", SPEC, 4, table=spec, ratio=ratio)
    plan = plan_of(channel)
    session = session_of(plan)
    role = RoleSpec("reader", Table, {"inp": channel.reader(3)})  # type: ignore[arg-type]
    reader = ports.build(session, plan, role, 0, 0, seed=0)["inp"]
    put(session, plan, 0, 0, 0)
    assert reader.poll() and spec.tables[0].inserted == 5
    reader.get()
    assert reader.poll() and spec.tables[0].inserted == 10


def test_the_writers_of_a_second_role_follow_those_of_the_first() -> None:
    program = Wired()
    channel = program.channel(Channel("c", "queue", SPEC, 2))
    program.role("a", None, replicas=2, out=channel.writer())
    program.role("b", None, replicas=2, out=channel.writer())
    program.role("reader", None, inp=channel.reader())
    plan = layout.plan(program)
    session = session_of(plan)
    for role, index, number in ((0, 1, 1), (1, 0, 2), (1, 1, 3)):
        ports.build(session, plan, program.roles[role], index, 0, seed=0)["out"].put(item(number, 0, 0))
    _, consumer = ends(session, plan)
    assert {ring: check(consumer.arrays(ring))[0] for ring in consumer.ready()} == {1: 1, 2: 2, 3: 3}


def test_the_writer_that_was_held_back_is_the_next() -> None:
    session, plan = queue(writers=3, capacity=4)
    put(session, plan, 0, 0, 1, 1, 2, 2)
    table, allowed = Table(), [0]
    limiter = SimpleNamespace(
        can_insert=lambda inserted, sampled: inserted < 5 * allowed[0], can_sample=lambda *counts: False
    )
    reader = ReplayReader(ends(session, plan)[1], table, limiter, 1, Recorder())  # type: ignore[arg-type]
    for allowed[0] in (1, 2, 4, 5):
        assert not reader.poll()
    assert table.came == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]
