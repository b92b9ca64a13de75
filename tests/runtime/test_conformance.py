"""What a channel end promises (``shoal.api``), asked of every runtime. The first part holds both ends of a program in
this process; the second launches the same small programs and reads what their roles publish."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shoal.api import Context, Field, Stopped
from shoal.local.runtime import LocalRuntime
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Program
from shoal.replay import Ratio, TableSpec
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.shm import layout, ports
from shoal.shm.arena import Arena
from shoal.shm.session import Session

ON_RAY = "SHOAL_TEST_CLUSTER" in os.environ  # which is slow to start
pytestmark = pytest.mark.timeout(300 if ON_RAY else 60)
Ends = dict[str, Any]

ITEM = {"number": Field((1,), "int64", 0), "data": Field((4, 2), "float32", 1)}
STEPS, ENVS = 4, 2
STREAM = {
    "obs": Field((STEPS, ENVS, 1)),
    "action": Field((STEPS, ENVS), "int64"),
    "reward": Field((STEPS, ENVS)),
    **{name: Field((STEPS, ENVS), "bool") for name in ("first", "terminated", "truncated", "valid")},
}


def item(number: int) -> dict[str, np.ndarray]:
    return {"number": np.array([number]), "data": np.full((4, 2), number, np.float32)}


def unroll(number: int) -> dict[str, np.ndarray]:
    """Part ``number`` of an episode without an end; each observation tells its step and environment."""
    out = {name: np.zeros(f.shape, f.dtype) for name, f in STREAM.items()}
    out["obs"][..., 0] = number * STEPS + np.arange(STEPS)[:, None] + 1000 * np.arange(ENVS)
    out["valid"][:] = True
    out["first"][0] = number == 0
    return out


# ------------------------------------------------------------------------ both ends in this process
class _End:
    """Ends a serial run before anything else steps."""

    def step(self) -> None:
        raise Stopped("the ends are built")


def serial(program: Program) -> Ends:
    """The ends of a program by ``role/index/port``."""
    found: Ends = {}

    def keep(ctx: Context, **given: Any) -> _End:
        found.update({f"{ctx.role}/{ctx.index}/{name}": end for name, end in given.items()})
        return _End()

    captured = Program(program.name, dict(program.channels))
    captured.role("end", lambda ctx: _End())
    for role in program.roles:
        ports: dict[str, Any] = dict(role.ports)
        captured.role(role.name, keep, replicas=role.replicas, **ports)
    assert SerialRuntime().launch(captured, Launch(seed=0, stop=Stop())).reason == "stopped"
    return found


def local(program: Program) -> Ends:
    program.validate()
    plan = layout.plan(program)
    session = Session(Arena(plan.total), Recorder())
    ports.fill(session.arena, plan)
    return {
        f"{role.name}/{index}/{name}": end
        for role in program.roles
        for index in range(role.replicas)
        for name, end in ports.build(session, plan, role, index, 0, 0).items()
    }


@pytest.fixture(params=[serial, local], ids=lambda f: f.__name__)
def connect(request: pytest.FixtureRequest) -> Callable[[Program], Ends]:
    found: Callable[[Program], Ends] = request.param
    return found


def wired(channel: Channel, writers: int = 1, readers: int = 1, **reader: Any) -> Program:
    p = Program("test")
    p.channel(channel)
    p.role("writer", _End, replicas=writers, out=channel.writer())
    p.role("reader", _End, replicas=readers, inp=channel.reader(**reader))
    return p


def queue(connect: Any, writers: int = 1, capacity: int = 2, **reader: Any) -> tuple[list[Any], Any]:
    ends = connect(wired(Channel("c", "queue", ITEM, capacity), writers, **reader))
    return [ends[f"writer/{i}/out"] for i in range(writers)], ends["reader/0/inp"]


def numbers(batch: Any) -> list[int]:
    found: list[int] = batch.items["number"].tolist()
    return found


def test_a_queue_is_first_in_first_out_and_bounded(connect: Any) -> None:
    (writer,), reader = queue(connect, capacity=3)
    assert not reader.ready()
    for number in range(3):
        assert writer.ready()
        writer.put(item(number))
    assert not writer.ready()
    assert [numbers(reader.get()) for _ in range(3)] == [[0], [1], [2]]
    assert not reader.ready() and writer.ready()


def test_writers_take_turns(connect: Any) -> None:
    writers, reader = queue(connect, writers=3)
    for turn in range(2):
        for i in (2, 0, 1):
            writers[i].put(item(10 * i + turn))
    assert [numbers(reader.get())[0] for _ in range(6)] == [0, 10, 20, 1, 11, 21]


def test_count_joins_along_each_fields_axis(connect: Any) -> None:
    (writer,), reader = queue(connect, capacity=3, count=3)
    for number in range(3):
        assert not reader.ready()
        writer.put(item(number))
    batch = reader.get()
    assert numbers(batch) == [0, 1, 2]
    assert batch.items["data"].dtype == torch.float32
    assert batch.items["data"].tolist() == [[0.0, 0.0, 1.0, 1.0, 2.0, 2.0]] * 4
    assert writer.ready() and not reader.ready()


def test_each_waits_for_every_writer_and_keeps_their_order(connect: Any) -> None:
    writers, reader = queue(connect, writers=3, each=True)
    for i in (2, 0, 2):
        writers[i].put(item(i))
        assert not reader.ready()
    writers[1].put(item(1))
    assert reader.ready()
    assert numbers(reader.get()) == [0, 1, 2]
    assert not reader.ready()


def test_an_item_tells_the_version_it_was_made_with(connect: Any) -> None:
    (writer,), reader = queue(connect, count=2)
    writer.put(item(0), version=5)
    with writer.slot(version=6) as slot:
        slot["number"][:], slot["data"][...] = 1, 1
    assert reader.get().versions == (5, 6)
    later = writer.slot(version=7)
    with later as arrays:
        arrays["number"][:], arrays["data"][...] = 2, 2
        later.version = 8  # of parameters that were fetched once there was room
    writer.put(item(3))
    assert reader.get().versions == (8, 0)


def test_put_copies(connect: Any) -> None:
    (writer,), reader = queue(connect)
    mine = item(1)
    writer.put(mine)
    mine["data"][:] = -1
    assert (reader.get().items["data"] == 1).all()


def test_a_slot_is_written_in_place(connect: Any) -> None:
    (writer,), reader = queue(connect)
    with writer.slot() as slot:
        assert {name: (a.shape, a.dtype.name) for name, a in slot.items()} == {
            name: (f.shape, f.dtype) for name, f in ITEM.items()
        }
        slot["number"][:], slot["data"][...] = 5, 5
        assert not reader.ready()
    assert numbers(reader.get()) == [5]


def test_an_exception_inside_a_slot_discards_it(connect: Any) -> None:
    (writer,), reader = queue(connect)
    for number in range(3):
        with pytest.raises(KeyError), writer.slot() as slot:  # noqa: PT012
            slot["data"][...] = -1
            raise KeyError(number)
        assert not reader.ready() and writer.ready()
        writer.put(item(number))
        assert numbers(reader.get()) == [number]


def test_an_item_without_a_field_is_refused(connect: Any) -> None:
    (writer,), reader = queue(connect)
    with pytest.raises(Exception, match="number"):
        writer.put({"data": item(0)["data"]})
    assert not reader.ready()


def test_a_queues_items_have_no_priorities(connect: Any) -> None:
    _, reader = queue(connect)
    with pytest.raises(Exception, match="'c' is a queue"):
        reader.reprioritise(torch.tensor([0]), torch.tensor([1.0]))


# ------------------------------------------------------------------------------------- parameters
PARAMS = Channel("c", "params", {"w": Field((2,), "float32", 0), "n": Field((), "int64")})


def value(number: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), float(number)), "n": torch.tensor(number)}


def test_the_latest_parameters_win(connect: Any) -> None:
    ends = connect(wired(PARAMS, readers=2))
    writer, reader, other = ends["writer/0/out"], ends["reader/0/inp"], ends["reader/1/inp"]
    assert writer.ready() and not reader.ready()
    assert [writer.publish(value(10 * n)) for n in (1, 2, 3)] == [1, 2, 3]
    version, params = reader.latest()
    assert (version, params["w"].tolist(), int(params["n"])) == (3, [30.0, 30.0], 30)
    assert params["n"].dtype == torch.int64
    assert reader.latest(newer_than=3) is None
    assert reader.latest(newer_than=2)[0] == 3
    assert other.latest(newer_than=-1)[0] == 3


def test_a_version_is_written_in_place(connect: Any) -> None:
    """One that fails is no version; the one before is read until the end of the slot, and stays as it was."""
    ends = connect(wired(PARAMS))
    writer, reader = ends["writer/0/out"], ends["reader/0/inp"]

    def write(place: dict[str, Any], number: int) -> None:
        for name, tensor in value(number).items():
            place[name].copy_(tensor)

    def fail() -> None:
        with writer.slot() as new:
            write(new, 9)
            raise ZeroDivisionError

    kept = []
    for number in (1, 2):
        with writer.slot() as new:
            write(new, number)
            assert writer.version == number - 1
        assert writer.version == number
        kept.append(new)
        with pytest.raises(ZeroDivisionError):
            fail()
        version, params = reader.latest()
        assert version == writer.version == number
        assert all(torch.equal(params[name], t) for name, t in value(number).items())
        assert all(torch.equal(kept[-1][name], t) for name, t in value(number).items())
    assert writer.publish(value(3)) == 3


def test_what_was_published_stays_as_it_was(connect: Any) -> None:
    ends = connect(wired(PARAMS))
    writer, reader = ends["writer/0/out"], ends["reader/0/inp"]
    live = {"w": torch.ones(2, requires_grad=True), "n": torch.tensor(1)}
    writer.publish(live)
    with torch.no_grad():
        live["w"] += 5
    _, params = reader.latest()
    assert params["w"].tolist() == [1.0, 1.0] and not params["w"].requires_grad
    for n in (2, 3, 4):
        writer.publish(value(n))
    assert params["w"].tolist() == [1.0, 1.0]


def test_a_lockstep_reader_waits_for_each_version(connect: Any) -> None:
    ends = connect(wired(PARAMS, lockstep=True))
    writer, reader = ends["writer/0/out"], ends["reader/0/inp"]
    for n in (1, 2, 3):
        assert not reader.ready()
        writer.publish(value(n))
        assert reader.ready()
        assert reader.latest()[0] == n
    writer.publish(value(4))
    writer.publish(value(5))
    assert reader.latest()[0] == 5
    assert not reader.ready()


def test_a_lockstep_reader_may_read_each_version_several_times(connect: Any) -> None:
    ends = connect(wired(PARAMS, lockstep=3))
    writer, reader = ends["writer/0/out"], ends["reader/0/inp"]
    assert not reader.ready()
    for n in (1, 2):
        writer.publish(value(n))
        found: list[Any] = []
        while reader.ready():
            found.append(reader.latest(newer_than=n - 1 if not found else n))
        assert [new is not None for new in found] == [True, False, False]
    writer.publish(value(3))
    assert reader.latest()[0] == 3
    writer.publish(value(4))  # what is newer counts anew
    assert [reader.latest()[0] for _ in range(3)] == [4, 4, 4]
    assert not reader.ready()


# -------------------------------------------------------------------------------------- constants
def count_up(arrays: Any) -> None:
    arrays["table"][:] = np.arange(1000)


def test_a_constant_is_filled_once_and_shared(connect: Any) -> None:
    program = Program("test")
    channel = program.channel(Channel("c", "constant", {"table": Field((1000,))}, fill=count_up))
    program.role("reader", _End, replicas=2, inp=channel.reader())
    program.role("other", _End, inp=channel.reader())
    ends = connect(program)
    readers = [ends[name] for name in ("reader/0/inp", "reader/1/inp", "other/0/inp")]
    assert all(reader.ready() for reader in readers)
    assert np.array_equal(readers[0].arrays["table"], np.arange(1000, dtype=np.float32))
    assert all(np.shares_memory(readers[0].arrays["table"], other.arrays["table"]) for other in readers[1:])
    assert program.memory() == {"c": 4000}


# ----------------------------------------------------------------------------------------- replay
def replay(
    connect: Any, writers: int = 1, ratio: Ratio = Ratio(), count: int = 4, **table: Any
) -> tuple[list[Any], Any]:
    channel = Channel("c", "replay", STREAM, 2, ratio, TableSpec(10_000, gamma=1.0, **table))
    ends = connect(wired(channel, writers, count=count))
    return [ends[f"writer/{i}/out"] for i in range(writers)], ends["reader/0/inp"]


def arrived(reader: Any) -> bool:
    """Insert the items that were sent into the table, and return whether it can be sampled."""
    found: bool = reader.poll()
    assert found == reader.ready()
    return found


def test_a_replay_waits_for_its_first_items(connect: Any) -> None:
    (writer,), reader = replay(connect, ratio=Ratio(min_size=12))
    writer.put(unroll(0))
    assert not arrived(reader)
    writer.put(unroll(1))  # the last step of each stream waits for the observation after it
    assert arrived(reader)
    batch = reader.get()
    assert batch.size == (2 * STEPS - 1) * ENVS
    assert (batch.items["next/obs"] - batch.items["obs"] == 1).all()
    assert batch.keys.dtype == torch.int64 and batch.keys.shape == batch.probs.shape == (4,)
    torch.testing.assert_close(batch.probs, torch.full((4,), 1 / batch.size))


@pytest.mark.parametrize("per_insert", [0.5, 3.0])
def test_a_replay_keeps_its_ratio(connect: Any, per_insert: float) -> None:
    ratio = Ratio(min_size=10, samples_per_insert=per_insert, slack=24.0)
    writers, reader = replay(connect, writers=2, ratio=ratio)
    made, sampled, held_back = [0, 0], 0, 0
    for turn in range(200):
        for i, writer in enumerate(writers):
            while writer.ready() and made[i] <= turn * 4:
                writer.put(unroll(made[i]))
                made[i] += 1
            held_back += not writer.ready()
        for _ in range(5):
            if arrived(reader):
                batch = reader.get()
                sampled += 4
                assert abs(per_insert * (batch.size - 10) - sampled) <= 24.0 + 1e-6
    assert sampled > 200
    assert held_back > 0


def test_priorities_decide_what_is_drawn(connect: Any) -> None:
    (writer,), reader = replay(connect, count=64, sampler="proportional", alpha=1.0)
    writer.put(unroll(0))
    writer.put(unroll(1))
    keys = torch.unique(reader.get().keys)
    reader.reprioritise(keys, torch.where(keys == keys[0], 1e6, 1e-3))
    reader.reprioritise(torch.tensor([10**6]), torch.tensor([1.0]))  # of an item that is not there
    batch = reader.get()
    assert (batch.keys == keys[0]).float().mean() > 0.9
    assert float(batch.probs[batch.keys == keys[0]][0]) > 0.9


# -------------------------------------------------------------------------------- launched programs
def ray_runtime() -> Any:
    """Asked for by SHOAL_TEST_CLUSTER=1."""
    from shoal.ray_runtime.runtime import RayRuntime

    return RayRuntime()


RUNTIMES: list[Any] = [SerialRuntime, LocalRuntime, *([ray_runtime] if ON_RAY else [])]


@pytest.fixture(params=RUNTIMES, ids=lambda f: f.__name__)
def runtime(request: pytest.FixtureRequest) -> Any:
    return request.param()


class Numbers:
    """Puts its index, a million times over, plus 0, 1, 2, ...; throws away a slot before each."""

    def __init__(self, ctx: Context, out: Any) -> None:
        self.ctx, self.out, self.n = ctx, out, ctx.index * 10**6

    def step(self) -> None:
        try:
            with self.out.slot() as slot:
                slot["number"][:] = -1
                raise LookupError
        except LookupError:
            pass
        self.out.put(item(self.n))
        self.n += 1
        self.ctx.metrics.count("env_steps")


class Log:
    """Publishes the numbers of the first 60 items it got, and its seed. A round that brought one is an update."""

    def __init__(self, ctx: Context, inp: Any, log: Any) -> None:
        self.ctx, self.inp, self.log = ctx, inp, log
        self.seen: list[int] = []

    def step(self) -> None:
        known = len(self.seen)
        self.seen = [*self.seen, *numbers(self.inp.get())][:60]
        padded = torch.tensor(self.seen + [-7] * (60 - len(self.seen)))
        self.log.publish({"seen": padded, "seed": torch.tensor(self.ctx.seed)})
        self.ctx.metrics.count("updates", int(len(self.seen) > known))


class Audience:
    """A params channel has a reader."""

    def __init__(self, ctx: Context, log: Any) -> None:
        self.log = log

    def step(self) -> None:
        self.log.latest()


def logged(writers: int, **reader: Any) -> Program:
    p = Program("logged")
    items = p.channel(Channel("items", "queue", ITEM, 3))
    log = p.channel(Channel("log", "params", {"seen": Field((60,), "int64"), "seed": Field((), "int64")}))
    p.role("source", Numbers, replicas=writers, out=items.writer())
    p.role("log", Log, inp=items.reader(**reader), log=log.writer())
    p.role("audience", Audience, log=log.reader(lockstep=1))
    return p


def test_every_item_arrives_once_and_in_order(runtime: Any) -> None:
    report = runtime.launch(logged(2, count=2), Launch(seed=3, stop=Stop(updates=30)))
    assert report.reason == "updates" and report.updates == 30 and report.steps > 0
    seen = report.params["log"]["seen"].tolist()
    for writer in (0, 1):
        mine = [n - writer * 10**6 for n in seen if n // 10**6 == writer]
        assert mine == list(range(len(mine)))
    assert -1 not in seen and -7 not in seen


def test_one_of_each_writer_every_time(runtime: Any) -> None:
    report = runtime.launch(logged(3, each=True), Launch(seed=3, stop=Stop(updates=20)))
    assert report.params["log"]["seen"].tolist() == [w * 10**6 + n for n in range(20) for w in range(3)]


def test_runtimes_agree_on_seeds() -> None:
    runtimes: list[Any] = [SerialRuntime(), LocalRuntime()]
    reports = [runtime.launch(logged(1), Launch(seed=5, stop=Stop(updates=1))) for runtime in runtimes]
    seeds = {int(report.params["log"]["seed"]) for report in reports}
    assert len(seeds) == 1 and seeds != {0}
