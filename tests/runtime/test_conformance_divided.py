"""What the ends of divided channels, and of replays with several readers, promise, asked of every runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_conformance import (  # noqa: F401  # connect: the fixture
    ENVS,
    PARAMS,
    STEPS,
    STREAM,
    _End,
    arrived,
    connect,
    unroll,
    wired,
)

from shoal.api import PART, Field, WiringError, bounds, places, spec_size, views
from shoal.program import Channel, Program
from shoal.program.draw import text
from shoal.records import checkpoint
from shoal.records.checkpoint_params import newest_params
from shoal.replay import Ratio, TableSpec
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.shm import layout

GRADIENT = {"gradient": Field((7,), axis=0), "pairs": Field((3, 2), "int64", 0)}
WHOLE = {"w": Field((2, 2), axis=0), "b": Field((3,), axis=0)}


def queue(connect: Any, writers: int, readers: int, capacity: int = 1) -> tuple[list[Any], list[Any]]:  # noqa: F811
    channel = Channel("c", "queue", GRADIENT, capacity, divided=1)
    ends = connect(wired(channel, writers, readers))
    return [ends[f"writer/{i}/out"] for i in range(writers)], [ends[f"reader/{i}/inp"] for i in range(readers)]


def item(number: int) -> dict[str, np.ndarray]:
    gradient = 100.0 * number + np.arange(7, dtype=np.float32)
    return {"gradient": gradient, "pairs": 10 * number + np.arange(6).reshape(3, 2)}


def test_bounds_cut_as_numpy_does() -> None:
    for length, parts in ((7, 3), (6, 3), (3, 3), (5, 1)):
        cuts = [list(range(length))[slice(*cut)] for cut in bounds(length, parts)]
        assert cuts == [part.tolist() for part in np.array_split(np.arange(length), parts)]
    assert bounds(75, 2, 16) == [(0, 48), (48, 75)]


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_each_reader_gets_its_part_of_every_item(connect: Any, readers: int) -> None:  # noqa: F811
    writers, found = queue(connect, 2, readers)
    for w, writer in enumerate(writers):
        writer.put(item(w), [10 * w + k for k in range(readers)])
    for k, reader in enumerate(found):
        for w in range(2):
            batch = reader.get()
            assert batch.versions == (10 * w + k,)
            for name, array in batch.items.items():
                assert np.array_equal(array.numpy(), np.array_split(item(w)[name], readers)[k])


def test_a_writer_is_ready_when_all_readers_have_room(connect: Any) -> None:  # noqa: F811
    (writer,), readers = queue(connect, 1, 2)
    writer.put(item(0), [1, 1])
    assert not writer.ready() and all(reader.ready() for reader in readers)
    readers[0].get()
    readers[0].ready()
    assert not writer.ready(), "the other has not taken its part"


def test_a_part_is_put_for_one_reader_alone(connect: Any) -> None:  # noqa: F811
    (writer,), readers = queue(connect, 1, 2, capacity=2)
    writer.put_part(1, {name: np.array_split(array, 2)[1] for name, array in item(3).items()}, 5)
    assert [reader.ready() for reader in readers] == [False, True]
    writer.put(item(4), [6, 7])
    for reader, wanted in ((readers[1], [(3, 5), (4, 7)]), (readers[0], [(4, 6)])):
        for number, version in wanted:
            batch = reader.get()
            assert batch.versions == (version,)
            part = int(reader is readers[1])
            for name, array in batch.items.items():
                assert np.array_equal(array.numpy(), np.array_split(item(number)[name], 2)[part])


def test_an_item_of_another_shape_is_refused(connect: Any) -> None:  # noqa: F811
    (writer,), _ = queue(connect, 1, 2)
    with pytest.raises(Exception, match="'gradient'"):
        writer.put({**item(0), "gradient": np.zeros(6, np.float32)}, [1, 1])


@pytest.mark.parametrize("writers", [1, 2, 3])
def test_parameters_come_together_from_their_writers(connect: Any, writers: int) -> None:  # noqa: F811
    ends = connect(wired(Channel("c", "params", WHOLE, divided=1), writers, 2))
    reader = ends["reader/1/inp"]
    flat = torch.zeros(32)
    whole = views(flat, WHOLE)
    whole["w"][:], whole["b"][:] = torch.arange(4.0).view(2, 2), torch.arange(4.0, 7.0)
    parts = [flat[slice(*cut)] for cut in bounds(32, writers)]
    for k, part in enumerate(parts):
        assert not reader.ready()
        assert ends[f"writer/{k}/out"].version == 0
        assert ends[f"writer/{k}/out"].publish({PART: part}) == 1
    version, params = reader.latest()
    assert version == 1 and reader.versions == (1,) * writers
    assert {name: t.tolist() for name, t in params.items()} == {"w": [[0, 1], [2, 3]], "b": [4, 5, 6]}
    assert reader.latest(newer_than=1) is None
    assert ends["writer/0/out"].publish({PART: -parts[0]}) == 2
    assert ends["writer/0/out"].version == 2
    version, params = reader.latest(newer_than=1)
    assert version == reader.newest() == (2 if writers == 1 else 1), "the oldest part's"
    assert reader.versions == (2, *(1,) * (writers - 1))
    assert params["w"].tolist() == [[0, -1], [-2, -3]] and params["b"].tolist()[-1] == (6 if writers > 1 else -6)
    assert reader.latest(newer_than=version) is None


@pytest.mark.parametrize("writers", [1, 3])
def test_parameters_are_fetched_into_a_vector_of_the_readers(connect: Any, writers: int) -> None:  # noqa: F811
    """It stays as it is where there is nothing newer; ``latest`` is told apart from it."""
    ends = connect(wired(Channel("c", "params", WHOLE, divided=1), writers, 1))
    reader, flat = ends["reader/0/inp"], torch.arange(32.0)
    parts = [flat[slice(*cut)] for cut in bounds(32, writers)]
    for k, part in enumerate(parts):
        ends[f"writer/{k}/out"].publish({PART: part})
    into = torch.zeros(32)
    assert reader.fetch(into) == 1 and reader.versions == (1,) * writers
    assert torch.equal(into, flat)
    into.zero_()
    assert reader.fetch(into, newer_than=1) is None and not into.any()
    with ends["writer/0/out"].slot() as new:
        torch.neg(parts[0], out=new[PART])
    assert reader.fetch(into, newer_than=1) == (2 if writers == 1 else 1)
    assert reader.versions[0] == 2 and torch.equal(into[: len(parts[0])], -parts[0])
    assert torch.equal(into[len(parts[0]) :], flat[len(parts[0]) :])
    kept = into.clone()
    _, params = reader.latest()
    params["w"].zero_()
    assert torch.equal(into, kept)


def test_views_are_of_the_vector_itself() -> None:
    """Each array begins at a multiple of 16 elements."""
    flat = torch.zeros(spec_size(WHOLE))
    views(flat, WHOLE)["b"][0] = 9
    assert flat.nonzero().tolist() == [[16]] and len(flat) == 32
    assert places(WHOLE) == {"w": (0, 4), "b": (16, 19)}


@pytest.mark.parametrize(
    "channel,writers,readers,options,message",
    [
        (Channel("c", "params", WHOLE, divided=1), 2, 1, dict(lockstep=True), "neither in lockstep"),
        (Channel("c", "queue", GRADIENT, divided=1), 2, 2, dict(each=True), "one of each writer"),
        (Channel("c", "queue", GRADIENT, divided=1), 1, 4, {}, "'pairs' of length 3 cannot be shared by 4"),
        (Channel("c", "queue", {"n": Field(())}, divided=1), 1, 1, {}, "'n' has none"),
        (Channel("c", "params", PARAMS.spec, divided=1), 1, 1, {}, "must be float32, but 'n' is int64"),
        (Channel("c", "params", WHOLE, divided=16), 3, 1, {}, "multiples of 16, but parameters of length 32"),
        (Channel("c", "board", WHOLE, divided=1), 1, 1, {}, "is a board, which cannot be divided"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    channel: Channel, writers: int, readers: int, options: Any, message: str
) -> None:
    with pytest.raises(WiringError, match=message):
        wired(channel, writers, readers, **options).validate()


def test_one_role_owns_the_parts() -> None:
    p = wired(Channel("c", "params", WHOLE, divided=1), 2)
    p.role("another", _End, out=p.channels["c"].writer())
    with pytest.raises(WiringError, match="exactly one role must write it"):
        p.validate()


def test_parts_are_counted_and_drawn() -> None:
    p = wired(Channel("c", "params", WHOLE, divided=1), 3)
    assert p.memory() == {"c": 2 * 32 * 4}
    assert "cut into 3 parts, one of each writer" in text(p)
    plan = layout.plan(p)
    assert set(layout.needed(plan)) == {"c"} and [s.fields[0].shape for s in plan.stores.values()] == [
        (11,),
        (11,),
        (10,),
    ]
    q = wired(Channel("c", "queue", GRADIENT, divided=1), 2, 1)
    assert "cut into 1 part, one for each reader" in text(q)


def test_a_serial_checkpoint_holds_what_is_under_way(tmp_path: Path) -> None:
    """Three updates of a server, a checkpoint, and the parameters from it, whole."""
    saving = checkpoint.SaveOptions(tmp_path / "checkpoints")
    program = counting_program()
    report = SerialRuntime().launch(program, Launch(stop=Stop(updates=3), saving=saving))
    updates, params = newest_params(saving.folder, "c") or (0, {})
    assert updates == 3
    assert all(torch.equal(params[name], t) for name, t in report.params["c"].items())
    assert params["b"].tolist() == [3, 3, 3]
    again = SerialRuntime().launch(
        counting_program(), Launch(stop=Stop(updates=5), saving=saving, resume=checkpoint.newest(saving.folder))
    )
    assert again.params["c"]["w"].tolist() == [[5, 5], [5, 5]]


class Counting:
    """Publishes how often it has stepped."""

    def __init__(self, ctx: Any, out: Any) -> None:
        self.ctx, self.out, self.n = ctx, out, 0

    def step(self) -> None:
        self.n += 1
        assert self.out.publish({PART: torch.full((16,), float(self.n))}) == self.n
        if self.ctx.index == 1:
            self.ctx.metrics.count("updates")

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


class Reading:
    def __init__(self, ctx: Any, inp: Any) -> None:
        self.inp = inp

    def step(self) -> None:
        self.inp.latest()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def counting_program() -> Program:
    p = Program("counting")
    c = p.channel(Channel("c", "params", WHOLE, divided=16))
    p.role("writer", Counting, replicas=2, out=c.writer())
    p.role("reader", Reading, inp=c.reader())
    return p


# -------------------------------------------------------------------------- replays of several readers
def test_each_reader_of_a_replay_has_a_table_that_its_writers_fill(connect: Any) -> None:  # noqa: F811
    table = TableSpec(100, gamma=1.0)
    program = wired(Channel("c", "replay", STREAM, 2, Ratio(), table), 3, 2, count=4)
    ends = connect(program)
    writers, readers = [ends[f"writer/{i}/out"] for i in range(3)], [ends[f"reader/{i}/inp"] for i in range(2)]
    writers[1].put(unroll(1))
    assert arrived(readers[1]) and not arrived(readers[0])
    writers[0].put(unroll(0))
    writers[2].put(unroll(5))
    seen = [set(reader.get().items["obs"].flatten().tolist()) for reader in readers]
    assert readers[0].get().size == 2 * (STEPS - 1) * ENVS and readers[1].get().size == (STEPS - 1) * ENVS
    assert not seen[0] & seen[1]
    one = table.nbytes(STREAM, 1)
    assert program.memory()["c"] == 3 * 2 * sum(f.nbytes for f in STREAM.values()) + one + table.nbytes(STREAM, 2)
    assert "in each of 2 tables" in text(program)


def test_tables_of_several_readers_draw_differently(connect: Any) -> None:  # noqa: F811
    ends = connect(wired(Channel("c", "replay", STREAM, 2, Ratio(), TableSpec(100, gamma=1.0)), 2, 2, count=4))
    for i in range(2):
        ends[f"writer/{i}/out"].put(unroll(0))
    drawn = [[ends[f"reader/{i}/inp"].get().keys.tolist() for _ in range(4)] for i in range(2)]
    assert drawn[0] != drawn[1]
