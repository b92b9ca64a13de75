"""What a channel end promises of counts, order and waiting (``tests/runtime/test_conformance.py``), asked of the
simulator; and what it refuses."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from shoal.api import Deadlock, Field, UsageError
from shoal.program import Channel, Program
from shoal.replay import Ratio, TableSpec
from shoal.simulation import Behaviour, Machine, Op, Step, simulate
from shoal.simulation.behaviour import work
from shoal.simulation.replica import Replica
from shoal.simulation.wiring import Wiring

pytest.importorskip("simpy")
ITEM = {"x": Field((2, 2), "float32", 1)}
STEPS, ENVS = 4, 2
STREAM = {
    "obs": Field((STEPS, ENVS, 1)),
    "action": Field((STEPS, ENVS), "int64"),
    "reward": Field((STEPS, ENVS)),
    **{name: Field((STEPS, ENVS), "bool") for name in ("first", "terminated", "truncated", "valid")},
}
IDLE = Behaviour((Step((work(1.0),)),))


def ends(program: Program) -> tuple[Wiring, dict[str, Any]]:
    """The ends of a program by ``role/index/port``."""
    wiring = Wiring(program, {role.name: [IDLE] for role in program.roles}, Machine.here(1), 0)
    return wiring, {f"{r.role}/{r.index}/{key}": end for r in wiring.replicas for key, end in r.ends.items()}


def someone(version: int = 0) -> Replica:
    return Replica("test", 0, 0, IDLE, Random(0), version=version)


def queue(writers: int = 1, capacity: int = 2, **reader: Any) -> tuple[list[Any], Any]:
    p = Program("test")
    c = p.channel(Channel("c", "queue", ITEM, capacity))
    p.role("writer", object, replicas=writers, out=c.writer())
    p.role("reader", object, inp=c.reader(**reader))
    _, found = ends(p)
    return [found[f"writer/{i}/out"] for i in range(writers)], found["reader/0/inp"]


class Numbers(Replica):
    """Keeps the versions of what it receives."""

    def received(self, versions: Any) -> None:
        self.seen = list(versions)


def get(reader: Any) -> list[int] | None:
    """What a get finds; None where it would wait."""
    me = Numbers("test", 0, 0, IDLE, Random(0))
    found: list[int] | None = me.seen if reader.get(me) is None else None
    return found


def put(writer: Any, version: int) -> bool:
    """Whether there was room."""
    if writer.reserve(someone()) is not None:
        return False
    writer.commit(someone(version))
    return True


def test_a_queue_is_first_in_first_out_and_bounded() -> None:
    (writer,), reader = queue(capacity=3)
    assert get(reader) is None
    assert [put(writer, n) for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert [get(reader) for _ in range(3)] == [[1], [2], [3]]
    assert put(writer, 5) and get(reader) == [5]


def test_an_item_that_is_read_in_place_keeps_its_slot_until_the_next_get() -> None:
    (writer,), reader = queue(capacity=1)
    assert put(writer, 1) and get(reader) == [1]
    assert not put(writer, 2)
    assert get(reader) is None
    assert put(writer, 2)


def test_writers_take_turns() -> None:
    writers, reader = queue(writers=3)
    for turn in range(2):
        for i in (2, 0, 1):
            assert put(writers[i], 10 * i + turn + 1)
    assert [get(reader) for _ in range(6)] == [[1], [11], [21], [2], [12], [22]]


def test_count_waits_for_as_many_and_copies_them() -> None:
    (writer,), reader = queue(capacity=3, count=3)
    for n in (1, 2, 3):
        assert get(reader) is None and put(writer, n)
    assert get(reader) == [1, 2, 3]
    assert put(writer, 4) and get(reader) is None


def test_each_waits_for_every_writer_and_keeps_their_order() -> None:
    writers, reader = queue(writers=3, each=True)
    for i in (2, 0, 2):
        assert put(writers[i], i + 1) and get(reader) is None
    assert put(writers[1], 2) and get(reader) == [1, 2, 3]


def params(readers: int = 1, **port: Any) -> tuple[Any, list[Any]]:
    p = Program("test")
    c = p.channel(Channel("c", "params", ITEM))
    p.role("writer", object, out=c.writer())
    p.role("reader", object, replicas=readers, inp=c.reader(**port))
    _, found = ends(p)
    return found["writer/0/out"], [found[f"reader/{i}/inp"] for i in range(readers)]


def test_the_latest_parameters_win() -> None:
    writer, readers = params(readers=2)
    me = someone()
    assert readers[0].latest(me) is not None
    for _ in range(3):
        writer.publish(someone())
    for reader in readers:
        assert reader.latest(me) is None and me.version == 3 and me.fresh
    assert readers[0].latest(me) is None and not me.fresh


def test_a_lockstep_reader_reads_each_version_so_many_times() -> None:
    writer, (reader,) = params(lockstep=3)
    me = someone()
    assert reader.latest(me) is not None
    for _ in range(2):
        writer.publish(someone())
        assert [reader.latest(me) is None for _ in range(4)] == [True, True, True, False]


def replay(ratio: Ratio, writers: int = 1, count: int = 4) -> tuple[list[Any], Any]:
    p = Program("test")
    c = p.channel(Channel("c", "replay", STREAM, 2, ratio, TableSpec(10_000, gamma=1.0)))
    p.role("writer", object, replicas=writers, out=c.writer())
    p.role("reader", object, inp=c.reader(count))
    _, found = ends(p)
    return [found[f"writer/{i}/out"] for i in range(writers)], found["reader/0/inp"]


def test_a_replay_waits_for_its_first_items() -> None:
    (writer,), reader = replay(Ratio(min_size=12))
    assert put(writer, 1) and reader.insert() and reader.get(someone()) is not None
    assert put(writer, 1) and reader.insert() and reader.get(someone()) is None
    assert not reader.insert()


@pytest.mark.parametrize("per_insert", [0.5, 3.0])
def test_a_replay_keeps_its_ratio(per_insert: float) -> None:
    writers, reader = replay(Ratio(min_size=10, samples_per_insert=per_insert, slack=24.0), writers=2)
    held_back = 0
    for _ in range(400):
        for writer in writers:
            held_back += not put(writer, 1)
        while reader.insert():
            pass
        if reader.get(someone()) is None:
            assert abs(per_insert * (reader.inserted - 10) - reader.sampled) <= 24.0 + 1e-6
    assert reader.sampled > 200 and held_back > 0


def test_a_reduction_waits_until_every_member_has_put() -> None:
    p = Program("test")
    c = p.channel(Channel("c", "reduce", ITEM))
    p.role("rank", object, replicas=2, sums=c.member())
    _, found = ends(p)
    one, two = found["rank/0/sums"], found["rank/1/sums"]
    me = someone()
    assert one.put(me) is None and one.get(me) is not None
    assert two.put(me) is None and one.get(me) is None
    assert one.put(me) is None and one.get(me) is not None and two.get(me) is None


# ------------------------------------------------------------------------------------------ refusals
def pair(writer: tuple[Op, ...], reader: tuple[Op, ...]) -> tuple[Program, dict[str, list[Behaviour]]]:
    p = Program("pair")
    c, back = p.channel(Channel("c", "queue", ITEM)), p.channel(Channel("back", "queue", ITEM))
    p.role("writer", object, out=c.writer(), inp=back.reader())
    p.role("reader", object, out=back.writer(), inp=c.reader())
    return p, {"writer": [Behaviour((Step(writer),))], "reader": [Behaviour((Step(reader),))]}


def test_a_program_that_comes_to_a_stand_is_reported_with_the_ports_that_each_waits_for() -> None:
    steps = (Op("get", "inp"), work(0.1), Op("reserve", "out"), Op("commit", "out"))
    program, behaviours = pair(steps, steps)
    with pytest.raises(Deadlock, match=r"(?s)pair: deadlock.*writer\[0\]: inp.*reader\[0\]: inp"):
        simulate(program, behaviours, Machine.here(2), seconds=10)


def test_a_role_that_nobody_has_described_is_refused_by_name() -> None:
    program, behaviours = pair((work(0.1),), (work(0.1),))
    del behaviours["reader"]
    with pytest.raises(UsageError, match="does not know what role 'reader'"):
        simulate(program, behaviours, Machine.here(2), seconds=1)


@pytest.mark.parametrize(
    "op, told", [(Op("get", "nowhere"), "no port 'nowhere'"), (Op("publish", "out"), "publish by 'out'")]
)
def test_an_operation_that_a_port_does_not_have_is_refused(op: Op, told: str) -> None:
    program, behaviours = pair((work(0.1), op), (work(0.1),))
    with pytest.raises(UsageError, match=told):
        simulate(program, behaviours, Machine.here(2), seconds=1)


def test_a_channel_of_an_unknown_kind_is_refused_by_name() -> None:
    program, behaviours = pair((work(0.1),), (work(0.1),))
    object.__setattr__(program.channels["c"], "kind", "pigeon")
    with pytest.raises(UsageError, match="does not know channel 'c', which is a pigeon"):
        simulate(program, behaviours, Machine.here(2), seconds=1)
