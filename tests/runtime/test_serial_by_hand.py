"""The channels of the serial runtime and their states, by hand: whose turn it is, how old parameters are, and what goes
on where it was saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from shoal import api
from shoal.api import PART, Field, UsageError
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.replay import Ratio
from shoal.serial.channels import (
    QueueReader,
    ReplayReader,
    SerialParams,
    SerialParamsReader,
    SerialQueue,
    SerialReplay,
    SerialWriter,
)
from shoal.serial.divided import DividedParams, DividedParamsReader, DividedQueue, DividedWriter

ONE = {"n": Field((1,), "int64", 0)}


def item(number: int) -> api.Arrays:
    return {"n": np.array([number])}


def queue(writers: int, capacity: int = 3, **reader: Any) -> tuple[SerialQueue, list[SerialWriter], QueueReader]:
    channel = Channel("c", "queue", ONE, capacity)
    made = SerialQueue(channel, writers)
    ends = [SerialWriter(made, k, Recorder()) for k in range(writers)]
    return made, ends, QueueReader(made, channel.reader(**reader))


def numbers(found: dict[int, api.Tensors]) -> dict[int, int]:
    return {k: int(tensors["n"]) for k, tensors in found.items()}


# ----------------------------------------------------------------------------------------- queues
def test_a_queue_is_as_full_as_all_its_writers_together() -> None:
    made, writers, _ = queue(writers=2, capacity=4)
    for number in range(3):
        writers[0].put(item(number))
    assert made.fill() == 3 / 8


def test_the_oldest_items_are_shown_in_turns_until_they_are_done() -> None:
    _, writers, reader = queue(writers=4)
    for k in (0, 0, 1, 2):
        writers[k].put(item(10 * k + len(writers[k].target.queues[k])))  # type: ignore[union-attr]
    assert numbers(reader.waiting(2)) == {0: 0, 1: 10}
    assert reader.unseen() == [2], "the others are being looked at"
    reader.done([0, 1])
    writers[1].put(item(11))
    assert numbers(reader.waiting(2)) == {2: 20, 0: 1}
    reader.done([2, 0])
    assert numbers(reader.waiting(9)) == {1: 11}
    with pytest.raises(api.Deadlock, match="nothing waits"):
        reader.waiting(1)


def test_a_queue_goes_on_with_its_items_their_versions_and_whose_turn_it_is() -> None:
    made, writers, reader = queue(writers=3, capacity=2)
    for k in range(3):
        for number in range(2):
            writers[k].put(item(10 * k + number), version=100 + 10 * k + number)
    assert int(reader.get().items["n"]) == 0
    state = made.state_dict()
    again, others, reader = queue(writers=3, capacity=2)
    others[0].put(item(77))  # is not what was saved
    again.load_state_dict(state)
    assert [writer.ready() for writer in others] == [True, False, False], "two of two are not too many"
    found = [reader.get() for _ in range(5)]
    assert [int(batch.items["n"]) for batch in found] == [10, 20, 1, 11, 21]
    assert [batch.versions for batch in found] == [(110,), (120,), (101,), (111,), (121,)]


def test_items_that_a_queue_cannot_hold_are_not_loaded() -> None:
    made, writers, _ = queue(writers=2, capacity=2)
    for number in range(2):
        writers[0].put(item(number))
    state = made.state_dict()
    made.load_state_dict({**state, "turn": 5})
    assert made.turn == 1, "of two writers"
    with pytest.raises(ValueError, match="it holds 2 items of at most 1"):
        queue(writers=2, capacity=1)[0].load_state_dict(state)
    for dtype in (np.float32, np.int32):
        wrong = {**state, "queues": [[(0, {"n": np.zeros(1, dtype)})], []]}
        with pytest.raises((ValueError, UsageError), match=np.dtype(dtype).name):
            made.load_state_dict(wrong)


# ---------------------------------------------------------------------------------------- replays
class Table:
    """A fake replay: each insertion brings 5 items; what came in which order, and of whom."""

    def __init__(self, writers: int, seed: int) -> None:
        self.writers, self.seed, self.inserted, self.sampled = writers, seed, 0, 0
        self.came: list[tuple[int, int, int]] = []

    size = property(lambda self: self.inserted)

    def add(self, unroll: api.Arrays, writer: int = 0, generation: int = 0) -> int:
        self.came.append((int(unroll["n"][0]), writer, generation))
        self.inserted += 5
        return 5

    def sample(self, n: int) -> api.Batch:
        self.sampled += n
        return api.Batch({}, keys=torch.arange(n), size=self.inserted)

    def state(self) -> list[tuple[int, int, int]]:
        return list(self.came)

    def restore(self, state: list[tuple[int, int, int]]) -> None:
        self.came = list(state)


@dataclass(frozen=True)
class TableSpec:
    made: list[Table] = field(default_factory=list)

    def items_per_insert(self, unroll: api.Spec) -> int:
        return 5

    def build(self, unroll: api.Spec, writers: int, seed: int) -> Any:
        self.made.append(Table(writers, seed))
        return self.made[-1]


def replay(writers: int, readers: int, ratio: Ratio) -> tuple[SerialReplay, list[SerialWriter], list[ReplayReader]]:
    channel = Channel("c", "replay", ONE, table=TableSpec(), ratio=ratio)  # type: ignore[arg-type]
    made = SerialReplay(channel, writers, seeds=range(70, 70 + readers))
    ends = [SerialWriter(made, k, Recorder(), generation=k) for k in range(writers)]
    return made, ends, [ReplayReader(made, channel.reader(3), Recorder(), k) for k in range(readers)]


def test_writers_fill_the_tables_of_their_readers_in_turn() -> None:
    made, writers, readers = replay(5, 2, Ratio(min_size=1))
    tables: Any = made.tables
    assert [(table.writers, table.seed) for table in tables] == [(3, 70), (2, 71)]
    for k, writer in enumerate(writers):
        writer.put(item(k))
    assert tables[0].came == [(0, 0, 0), (2, 1, 2), (4, 2, 4)] and tables[1].came == [(1, 0, 1), (3, 1, 3)]
    readers[1].get()
    assert [table.sampled for table in tables] == [0, 3]
    state = made.state_dict()
    again = replay(5, 2, Ratio(min_size=1))[0]
    again.load_state_dict(state)
    assert [table.came for table in again.tables] == [table.came for table in tables]  # type: ignore[attr-defined]


def test_a_replay_keeps_its_ratio_by_the_items_that_an_insertion_may_bring_and_tells_it() -> None:
    """The first brings the 5 items that sampling waits for. 5 more are too far ahead of no samples, and, with a slack
    of 3 samples, just right after 3."""
    _, (writer,), (reader,) = replay(1, 1, Ratio(min_size=5, samples_per_insert=1.0, slack=3.0))
    assert not reader.ready() and writer.ready()
    writer.put(item(0))
    assert reader.ready() and not writer.ready()
    reader.get()
    assert writer.ready()
    writer.put(item(1))
    assert not writer.ready() and reader.ready()
    reader.get()
    assert reader.metrics.drain().records["samples_per_insert"] == (6 / 5, 1), "6 samples of the 5 behind the first 5"


# ------------------------------------------------------------------------------------- parameters
PARAMS = {"w": Field((1,))}


def w(number: float) -> api.Tensors:
    return {"w": torch.tensor([float(number)])}


def params(lag: int, lockstep: int = 0, published: int = 0) -> tuple[SerialParams, SerialParamsReader]:
    channel = Channel("c", "params", PARAMS, lag=lag)
    made = SerialParams(channel)
    for number in range(1, published + 1):
        made.publish(w(number))
    return made, SerialParamsReader(made, channel.reader(lockstep=lockstep))


def read(reader: SerialParamsReader, newer_than: int = -1) -> tuple[int, float] | None:
    found = reader.latest(newer_than)
    return None if found is None else (found[0], float(found[1]["w"]))


def test_parameters_are_read_with_their_lag_and_published_without() -> None:
    made, reader = params(lag=2)
    seen = []
    for number in range(1, 6):
        made.publish(w(number))
        seen.append(read(reader))
    assert seen == [(1, 1.0), (1, 1.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert (reader.newest(), float(made.published()["w"])) == (5, 5.0)
    assert read(reader, newer_than=3) is None and read(reader, newer_than=2) == (3, 3.0)


def test_parameters_go_on_with_those_that_are_still_to_be_read() -> None:
    made, _ = params(lag=2, published=4)
    again, reader = params(lag=2, published=1)
    again.load_state_dict(made.state_dict())
    seen = [read(reader)]
    for number in (5, 6):
        assert again.publish(w(number)) == number
        seen.append(read(reader))
    assert seen == [(2, 2.0), (3, 3.0), (4, 4.0)]
    again.load_state_dict(params(lag=2, published=1)[0].state_dict())
    assert read(reader) == (1, 1.0) and again.publish(w(2)) == 2, "nothing else is kept"
    for wrong in ({"w": torch.zeros(2)}, {"w": torch.zeros(1, dtype=torch.int64)}, {"v": torch.zeros(1)}):
        with pytest.raises(ValueError, match="found others"):
            again.load_state_dict({"version": 1, "tensors": wrong, "older": []})


def test_in_lockstep_a_version_is_read_so_often_and_once_more_if_a_step_was_cut_short() -> None:
    made, reader = params(lag=0, lockstep=2)
    ready = []
    for number in (1, 2):
        made.publish(w(number))
        for _ in range(2):
            ready.append(reader.ready())
            reader.latest()
        ready.append(reader.ready())
        reader.unread()
        ready.append(reader.ready())
        reader.latest()
    assert ready == [True, True, False, True] * 2 and reader.reads == 2


# ---------------------------------------------------------------------------------------- divided
def test_a_divided_queue_is_cut_where_its_unit_ends() -> None:
    made = DividedQueue(Channel("c", "queue", {"g": Field((75,), axis=0)}, 2, divided=16), writers=1, readers=2)
    writer = DividedWriter(made, [SerialWriter(part, 0, Recorder()) for part in made.parts])
    readers = [QueueReader(part, part.channel.reader()) for part in made.parts]
    writer.put({"g": np.arange(75, dtype=np.float32)}, [7, 8])
    writer.put_part(1, {"g": np.zeros(27, np.float32)}, 9)
    assert made.fill() == (1 / 2 + 2 / 2) / 2 and not writer.ready()
    first, second, alone = readers[0].get(), readers[1].get(), readers[1].get()
    assert first.items["g"].tolist() == list(range(48)) and second.items["g"].tolist() == list(range(48, 75))
    assert (first.versions, second.versions, alone.versions) == ((7,), (8,), (9,))


def test_parameters_in_parts_are_as_old_as_the_oldest_of_them() -> None:
    channel = Channel("c", "params", {"w": Field((32,), axis=0)}, divided=16)
    made = DividedParams(channel, 2)
    reader = DividedParamsReader(made)
    made.parts[0].publish({PART: torch.ones(16)})
    assert not reader.ready()
    for number in (2.0, 3.0):
        made.parts[0].publish({PART: torch.full((16,), number)})
    made.parts[1].publish({PART: torch.full((16,), -1.0)})
    version, found = reader.latest() or (0, {})
    wanted = [3.0] * 16 + [-1.0] * 16
    assert (version, reader.versions, made.version) == (1, (3, 1), 1) and found["w"].tolist() == wanted
    assert made.published()["w"].tolist() == made.state_dict()["tensors"]["w"].tolist() == wanted
    assert reader.latest(newer_than=1) is None and reader.latest(newer_than=0) is not None
    made.parts[0].publish({PART: torch.full((16,), 4.0)})
    assert (reader.latest(newer_than=1) or (0,))[0] == 1, "a part has changed"
    again = DividedParams(channel, 2)
    again.load_state_dict(made.state_dict())
    assert [part.version for part in again.parts] == [4, 1]
    assert again.published()["w"].tolist() == [4.0] * 16 + [-1.0] * 16
