"""Rings between processes: order, integrity, killed writers, backpressure, readiness of many."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from channels import check, ends, item, queue

from shoal import api
from shoal.local import processes
from shoal.metering.recorder import Recorder
from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.layout import STOP, Plan
from shoal.shm.queue_reader import QueueReader
from shoal.shm.ring import Producer, fill
from shoal.shm.session import Session

pytestmark = pytest.mark.timeout(60)


def write(arena: Arena, plan: Plan, writer: int, generation: int, count: int, halt: bool = False) -> None:
    producer = Producer(Session(arena, Recorder()), plan.rings["c"], writer, generation)
    for number in range(count):
        if number % 2:
            producer.put(item(writer, generation, number), version=number)
        else:
            with producer.slot(version=number) as slot:
                for name, array in item(writer, generation, number).items():
                    slot[name][...] = array


def test_a_few_looks_see_a_word_that_changes_and_give_up_on_one_that_does_not() -> None:
    words = memoryview(bytearray(16)).cast("q")
    assert not futex.soon(words, 1, 0)
    words[1] = 2**40 + 7
    assert futex.soon(words, 1, 7), "all 64 bits count"
    changed = threading.Timer(0.01, words.__setitem__, (0, 1))
    changed.start()
    while not futex.soon(words, 0, 0):
        assert changed.is_alive() or words[0] == 1
    changed.join()


def test_items_arrive_whole_and_in_order() -> None:
    session, plan = queue(capacity=8)
    reader = QueueReader(ends(session, plan)[1])
    process = processes.start(write, (session.arena, plan, 0, 0, 10_000), "writer")
    for number in range(10_000):
        batch = reader.get()
        assert batch.versions == (number,)
        if number % 4 == 0:
            assert check(batch.items) == (0, 0, number)
    process.join()


@pytest.mark.timeout(600)  # starts up to 26 processes, whatever else the machine does
@pytest.mark.parametrize("kills", [10, 25])
def test_killed_writers_lose_tear_and_repeat_nothing(kills: int) -> None:
    session, plan = queue(writers=3)
    reader = QueueReader(ends(session, plan)[1])
    steady = 4000
    others = [processes.start(write, (session.arena, plan, w, 0, steady), "other") for w in (0, 2)]
    expected = {0: 0, 2: 0}
    generation, number, killed = 0, 0, 0
    victim = processes.start(write, (session.arena, plan, 1, 0, 10**9), "victim")
    while killed < kills or any(n < steady for n in expected.values()):
        writer, life, got = check(reader.get().items)
        if writer != 1:
            assert (life, got) == (0, expected[writer])
            expected[writer] += 1
            continue
        assert (life, got) == (generation, number) or (life > generation and got == 0), "lost, repeated or reordered"
        generation, number = life, got + 1
        if number > 20 + 7 * killed and killed < kills:
            victim.kill()
            victim.join()
            killed += 1
            victim = processes.start(write, (session.arena, plan, 1, killed, 10**9), "victim")
    victim.kill()
    for process in [victim, *others]:
        process.join()


def test_an_exception_inside_a_slot_discards_it() -> None:
    session, plan = queue()
    (producer,), consumer = ends(session, plan)
    with contextlib.suppress(ZeroDivisionError), producer.slot() as slot:
        slot["tag"][...] = 99 // 0
    assert consumer.pending() == 0
    producer.put(item(0, 0, 5))
    assert check(consumer.arrays(0)) == (0, 0, 5)


def test_a_successor_overwrites_the_half_written_slot() -> None:
    session, plan = queue()
    (producer,), consumer = ends(session, plan)
    producer.put(item(0, 0, 0))
    producer.reserve()["data"][...] = -1  # and dies here
    Producer(session, plan.rings["c"], 0, generation=1).put(item(0, 1, 0), version=7)
    assert check(consumer.arrays(0)) == (0, 0, 0)
    consumer.release(0)
    assert check(consumer.arrays(0)) == (0, 1, 0)
    assert consumer.header(0) == (7, 1, 1)


def test_a_full_ring_holds_its_writer_until_the_run_ends() -> None:
    session, plan = queue(capacity=2)
    (producer,), consumer = ends(session, plan)
    for number in range(2):
        assert producer.ready()
        producer.put(item(0, 0, number))
    assert not producer.ready()
    assert fill(session.arena, plan.rings["c"]) == 1.0
    consumer.release(0)
    assert producer.ready()
    producer.put(item(0, 0, 2))
    session.arena.words[STOP // 8] = 1
    with pytest.raises(api.Stopped):
        producer.put(item(0, 0, 3))
    assert consumer.pending() == 2


def test_waiting_is_recorded() -> None:
    session, plan = queue(capacity=1)
    (producer,), _ = ends(session, plan)
    looks = iter(range(3))

    def stop_later() -> None:
        if next(looks, None) is None:
            session.arena.words[STOP // 8] = 1

    session.tick = stop_later
    producer.put(item(0, 0, 0))
    with pytest.raises(api.Stopped):
        producer.put(item(0, 0, 1))
    assert session.metrics.drain().phases["wait:c"] > 0


def test_a_wrong_item_is_refused_with_what_was_expected() -> None:
    session, plan = queue()
    (producer,), _ = ends(session, plan)
    good = item(0, 0, 0)
    with pytest.raises(api.UsageError, match=r"'data': expected float32\[3, 5\], got float32\[3\]"):
        producer.put({**good, "data": np.zeros(3, np.float32)})
    with pytest.raises(api.UsageError, match="takes the arrays"):
        producer.put({"tag": good["tag"]})
    with pytest.raises(api.UsageError, match="'tag': expected int64"):
        producer.put({**good, "tag": np.zeros(4, np.float32)})
    producer.put({**good, "data": np.zeros((3, 5), np.float64)})  # a harmless cast


def test_readiness_over_256_writers() -> None:
    session, plan = queue(writers=256)
    producers, consumer = ends(session, plan)
    assert consumer.ready() == []
    chosen = [0, 3, 17, 128, 255]
    for i in chosen:
        producers[i].put(item(i, 0, 0))
    assert consumer.ready() == chosen
    assert consumer.ready(18) == [128, 255, 0, 3, 17]
    assert consumer.ready(256) == chosen
    reader = QueueReader(consumer)
    assert [check(reader.get().items)[0] for _ in chosen] == chosen
