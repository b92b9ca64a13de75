"""Ports: joining, fairness, one-from-every-writer, and the replay's ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from channels import SPEC, check, ends, item, plan_of, queue, session_of

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.program import Channel, RoleSpec
from shoal.replay import Ratio
from shoal.replay.limiter import RateLimiter
from shoal.runtime import memory
from shoal.shm import layout, ports
from shoal.shm.layout import STOP
from shoal.shm.ports import ReplayReader
from shoal.shm.queue_reader import EachReader, QueueReader
from shoal.shm.ring import Consumer, Producer
from shoal.shm.session import Session

pytestmark = pytest.mark.timeout(30)


def test_a_single_item_is_read_in_place() -> None:
    session, plan = queue()
    (producer,), consumer = ends(session, plan)
    reader = QueueReader(consumer)
    producer.put(item(0, 0, 1), version=5)
    batch = reader.get()
    assert batch.versions == (5,)
    producer.reserve()  # the second slot is free,
    producer.put(item(0, 0, 2))
    assert not producer.ready()  # the first one not before the next get
    assert not producer.ready()
    assert check(batch.items) == (0, 0, 1)
    reader.get()
    assert producer.ready()


def test_items_are_joined_along_their_axes() -> None:
    session, plan = queue(capacity=3)
    (producer,), consumer = ends(session, plan)
    reader = QueueReader(consumer, 3)
    for number in range(3):
        assert not reader.ready()
        producer.put(item(0, 0, number), version=number)
    assert reader.ready()
    batch = reader.get()
    assert batch.versions == (0, 1, 2)
    assert batch.items["tag"].shape == (12,)
    assert batch.items["data"].shape == (3, 15)
    assert batch.items["data"][0].tolist() == [0.0] * 5 + [1.0] * 5 + [2.0] * 5
    assert producer.ready()


def test_ready_rings_take_turns() -> None:
    session, plan = queue(writers=3, capacity=4)
    producers, consumer = ends(session, plan)
    reader = QueueReader(consumer)
    for number in range(4):
        for writer in (0, 1, 2) if number < 2 else (0,):
            producers[writer].put(item(writer, 0, number))
    order = [check(reader.get().items)[0] for _ in range(8)]
    assert order == [0, 1, 2, 0, 1, 2, 0, 0]


def test_writers_are_shared_out_among_readers() -> None:
    session, plan = queue(writers=5, readers=2)
    producers, second = ends(session, plan, reader=1)
    _, first = ends(session, plan, reader=0)
    for i, producer in enumerate(producers):
        producer.put(item(i, 0, 0))
    assert [first.writers[r] for r in first.ready()] == [0, 2, 4]
    assert [second.writers[r] for r in second.ready()] == [1, 3]
    assert check(second.arrays(0))[0] == 1


def test_each_takes_one_from_every_writer_in_order() -> None:
    session, plan = queue(writers=3, each=True)
    producers, consumer = ends(session, plan)
    reader = EachReader(consumer)
    producers[2].put(item(2, 0, 0))
    producers[2].put(item(2, 0, 1))
    producers[0].put(item(0, 0, 0))
    assert not reader.ready()
    producers[1].reserve()["data"][...] = -1  # writer 1 dies in its first put
    Producer(session, plan.rings["c"], 1, generation=1).put(item(1, 1, 0))
    assert reader.ready()
    tags = reader.get().items["tag"].reshape(3, 4)
    assert tags[:, :3].tolist() == [[0, 0, 0], [1, 1, 0], [2, 0, 0]]
    assert not reader.ready()


@pytest.mark.parametrize("capacity", [1, 2])
def test_what_each_takes_lies_where_the_writers_put_it_until_the_next_get(capacity: int) -> None:
    """Nothing is copied: with one slot, the writers go on when the reader comes again."""
    session, plan = queue(writers=2, capacity=capacity, each=True)
    producers, consumer = ends(session, plan)
    reader = EachReader(consumer)
    for number in range(5 if capacity > 1 else 1):
        for i, producer in enumerate(producers):
            producer.put(item(i, 0, number), version=10 * number + i)
        assert reader.ready()
        batch = reader.get()
        assert batch.versions == (10 * number, 10 * number + 1)
        assert batch.items["tag"].view(2, 4)[:, :3].tolist() == [[0, 0, number], [1, 0, number]]
        assert batch.items["data"].shape == (3, 10) and batch.items["data"].is_contiguous()
        assert not reader.ready()
        assert [p.ready() for p in producers] == [capacity > 1] * 2
        if capacity > 1:  # the next slot is another's place
            producers[0].reserve()["data"][...] = -1.0
            assert batch.items["data"].unique().tolist() == [number]
    consumer.arrays(1)["data"][...] = 7.0
    assert [part.unique().tolist() for part in batch.items["data"].split(5, 1)] == [[number], [7.0]]


def test_two_readers_take_each_of_their_own_writers() -> None:
    """Also if they have not as many."""
    session, plan = queue(writers=5, readers=2, each=True)
    producers, second = ends(session, plan, reader=1)
    _, first = ends(session, plan, reader=0)
    for number in range(3):
        for i, producer in enumerate(producers):
            producer.put(item(i, 0, number))
        for consumer, writers in (first, [0, 2, 4]), (second, [1, 3]):
            reader = EachReader(consumer)
            tags = reader.get().items
            assert tags["tag"].view(-1, 4)[:, 0].tolist() == writers and tags["data"].shape == (3, 5 * len(writers))
            assert check(consumer.arrays(1)) == (writers[1], 0, number)
            for ring in range(len(writers)):
                consumer.release(ring)


def test_a_reader_killed_while_it_gives_slots_back_leaves_the_rings_level() -> None:
    session, plan = queue(writers=3, each=True)
    producers, consumer = ends(session, plan)
    for number in range(2):
        for i, producer in enumerate(producers):
            producer.put(item(i, 0, number))
    EachReader(consumer).get()
    consumer.release(0)  # and dies before it comes to the others
    _, successor = ends(session, plan)
    tags = EachReader(successor).get().items["tag"].view(3, 4)
    assert tags[:, :3].tolist() == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]


class Table:
    """A fake replay: remembers who inserted."""

    def __init__(self) -> None:
        self.inserted = self.sampled = self.size = 0
        self.seen: list[tuple[int, int, int]] = []
        self.priorities: list[Any] = []

    def add(self, unroll: api.Arrays, writer: int = 0, generation: int = 0) -> int:
        assert check(unroll)[:2] == (writer, generation)
        self.seen.append(check(unroll))
        self.inserted += 1
        self.size += 1
        return 1

    def sample(self, n: int) -> api.Batch:
        self.sampled += n
        return api.Batch({}, keys=torch.arange(n), size=self.size)

    def reprioritise(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.priorities.append((keys.tolist(), priorities.tolist()))

    def mass(self) -> float:
        return float(self.size)

    def arrays(self) -> list[np.ndarray]:
        return []

    def state(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


@dataclass(frozen=True)
class TableSpec:
    bytes: int = 1000

    def nbytes(self, unroll: api.Spec, writers: int = 1) -> int:
        return self.bytes

    def items_per_insert(self, unroll: api.Spec) -> int:
        return 1

    def build(self, unroll: api.Spec, writers: int, seed: int) -> Any:
        return Table()


def test_a_replay_keeps_its_ratio() -> None:
    session, plan = queue(writers=2, capacity=4)
    producers, consumer = ends(session, plan)
    ratio = Ratio(min_size=4, samples_per_insert=2.0, slack=4.0)
    table = Table()
    reader = ReplayReader(consumer, table, RateLimiter(ratio), 4, Recorder())
    numbers, worst = [0, 0], 0.0
    for _ in range(300):
        for i, producer in enumerate(producers):
            while producer.ready():
                producer.put(item(i, 0, numbers[i]))
                numbers[i] += 1
        reader.get()
        worst = max(worst, abs(2.0 * (table.inserted - 4) - table.sampled))
    assert worst <= 4.0
    assert table.sampled == 1200
    for writer in (0, 1):
        assert [n for w, _, n in table.seen if w == writer] == list(range(sum(w == writer for w, _, _ in table.seen)))


def with_one_item_sent(min_size: int) -> tuple[Session, Producer, Consumer, Table, ReplayReader]:
    """A replay whose writer has sent one item, with its ends."""
    session, plan = queue()
    (producer,), consumer = ends(session, plan)
    table = Table()
    reader = ReplayReader(consumer, table, RateLimiter(Ratio(min_size=min_size)), 1, Recorder())
    producer.put(item(0, 0, 0))
    return session, producer, consumer, table, reader


def test_a_replay_waits_for_its_writers_and_takes_priorities() -> None:
    session, producer, consumer, table, reader = with_one_item_sent(min_size=2)
    assert not reader.poll()
    session.arena.words[STOP // 8] = 1
    with pytest.raises(api.Stopped):
        reader.get()
    assert producer.ready(), "an item is out of its ring as soon as it is in the table"
    producer.put(item(0, 0, 1))
    assert reader.get().size == 2
    reader.reprioritise(torch.tensor([1]), torch.tensor([0.5]))
    assert table.priorities == [([1], [0.5])]
    with pytest.raises(api.UsageError, match="no priorities"):
        QueueReader(consumer).reprioritise(torch.tensor([1]), torch.tensor([0.5]))


def test_who_waits_reports_as_one_who_waits() -> None:
    """The report of a replica wakes the supervisor, which looks whether the replica waits."""
    session, plan = queue()
    shown: list[str] = []
    reported: list[str] = []
    session.metrics.show = shown.append

    def report() -> None:
        reported.append(shown[-1])
        if len(reported) == 3:
            session.arena.words[STOP // 8] = 1

    session.tick = report
    _, consumer = ends(session, plan)
    with pytest.raises(api.Stopped):
        QueueReader(consumer).get()
    assert reported == ["wait:c"] * 3
    assert shown[-1] == "start", "the phase that the wait interrupted"


def test_ports_are_built_by_name() -> None:
    plan = plan_of(Channel("c", "replay", SPEC, table=TableSpec()), writers=2, count=3)
    session = session_of(plan)
    channel = plan.rings["c"].channel
    role = RoleSpec("writer", Table, {"out": channel.writer()}, 2)  # type: ignore[arg-type]
    ports.build(session, plan, role, 1, 4, seed=0)["out"].put(item(1, 4, 0))
    role = RoleSpec("reader", Table, {"inp": channel.reader(3)})  # type: ignore[arg-type]
    reader = ports.build(session, plan, role, 0, 0, seed=0)["inp"]
    assert reader.get().size == 1


def test_memory_is_counted_before_it_is_taken() -> None:
    plan = plan_of(Channel("c", "replay", SPEC, table=TableSpec(3 << 30)))
    assert layout.needed(plan)["c"] > 3 << 30
    memory.check_fits(layout.needed(plan), free=4 << 30)
    with pytest.raises(api.UsageError, match=r"3\.00 GiB .*'?c 3\.00 GiB.* 1\.00 GiB is available: make"):
        memory.check_fits(layout.needed(plan), free=1 << 30)
    assert memory.available() > 0


@pytest.mark.parametrize(
    ("channel", "writers", "readers", "error"),
    [
        (Channel("c", "queue", SPEC), 1, 2, "each reader needs"),
        (Channel("c", "params", SPEC), 2, 1, "only one"),
        (Channel("c", "replay", SPEC), 1, 1, "no table"),
        (Channel("c", "queue", SPEC, capacity=0), 1, 1, "at least 1"),
    ],
)
def test_what_cannot_be_wired_is_refused(channel: Channel, writers: int, readers: int, error: str) -> None:
    with pytest.raises(api.WiringError, match=error):
        plan_of(channel, writers, readers)


def test_joining_needs_an_axis() -> None:
    with pytest.raises(api.WiringError, match="no axis 1"):
        plan_of(Channel("c", "queue", {"x": api.Field((3,))}), count=2)


def test_asking_a_replay_whether_it_is_ready_inserts_nothing() -> None:
    _, _, consumer, table, reader = with_one_item_sent(min_size=1)
    assert not reader.ready() and not reader.ready()
    assert (table.inserted, consumer.pending()) == (0, 1)
    assert reader.poll() and reader.ready()
    assert (table.inserted, consumer.pending()) == (1, 0)
