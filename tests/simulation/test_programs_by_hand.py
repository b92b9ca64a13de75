"""The simulator's programs: what replicas do in turn, which versions meet, and what is measured, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from test_promises import IDLE, ITEM, get, put, queue, replay, someone

from shoal.api import Field, spec_nbytes
from shoal.program import Channel, Program
from shoal.replay import Ratio
from shoal.simulation import Behaviour, Machine, Node, Op, Step, Times, simulate, steady
from shoal.simulation.behaviour import work
from shoal.simulation.channels import Queue, ReplayReader
from shoal.simulation.figures import Figures, quantiles
from shoal.simulation.groups import Board, Params, Shared
from shoal.simulation.processors import Processors
from shoal.simulation.replica import Replica
from shoal.simulation.simulator import Simulation
from shoal.simulation.wiring import Wiring

simpy = pytest.importorskip("simpy")


def test_a_distribution_has_its_spread_and_its_multiples() -> None:
    assert (Times((1.0, 3.0)).mean, Times((1.0, 3.0)).spread, Times((2.0,)).spread) == (2.0, 0.5, 0.0)
    assert Times((2.0,), "exponential").times(3.0) == Times((6.0,), "exponential")
    assert Times((1.0, 3.0)).times(0.5) == Times((0.5, 1.5)) and Times((2.0,), "exponential").spread == 1.0


# -------------------------------------------------------------------------------------------- channels
def test_what_was_read_of_every_writer_keeps_its_slots() -> None:
    writers, reader = queue(writers=2, capacity=1, each=True)
    assert put(writers[0], 1) and put(writers[1], 2) and get(reader) == [1, 2]
    assert not put(writers[0], 3) and not put(writers[1], 3)
    assert get(reader) is None and put(writers[0], 3) and put(writers[1], 4) and get(reader) == [3, 4]


@pytest.mark.parametrize("kind", ["queue", "replay"])
def test_an_item_of_a_replay_is_as_old_as_the_parameters_that_its_writer_has(kind: str) -> None:
    """In gradient steps. Of a queue's it is noted where it is learned from."""
    (writer,), _ = replay(Ratio()) if kind == "replay" else queue()
    me = someone(version=3)
    me.behaviour = replace(IDLE, steps_per_update=4.0)
    me.ends["params"] = SimpleNamespace(newest=lambda: 5)
    writer.commit(me)
    assert me.lags == ({8.0: 1} if kind == "replay" else {})


def test_a_learner_notes_how_old_what_it_takes_is() -> None:
    me = Replica("learner", 0, 0, replace(IDLE, steps_per_update=2.0), Random(0))
    me.received([1, 2])
    assert not me.lags, "it makes no parameters"
    me.published = 7
    me.received([0, 6, 7, 7])  # 0: made without any
    assert me.lags == {2.0: 1, 0.0: 2}


def test_a_replay_takes_one_of_each_writer_in_turn_and_counts_what_it_samples() -> None:
    writers, reader = replay(Ratio(), writers=2, count=4)
    assert [put(writer, 1) for writer in (*writers, *writers)] == [True] * 4
    left = []
    while reader.insert():
        left.append([len(ring.items) for ring in reader._rings])
    assert left == [[1, 2], [1, 1], [0, 1], [0, 0]]
    for n in (4, 8):
        assert reader.get(someone()) is None and reader.sampled == n
    assert reader.samples_per_insert == 8 / (reader.inserted - 1)


def test_a_part_is_as_large_as_the_part_is() -> None:
    p = Program("parts")
    channel = Channel("c", "queue", {"x": Field((100,), "float32", 0)}, 2, divided=3)
    c = p.channel(channel)
    p.role("writer", object, replicas=2, out=c.writer())
    p.role("reader", object, replicas=3, inp=c.reader())
    wiring = Wiring(p, {role.name: [IDLE] for role in p.roles}, Machine.here(1), 0)
    found = [sum(ring._nbytes for ring in rings) for rings in wiring.channels["c"].of_writer]
    assert len(found) == 2 and spec_nbytes(channel.spec) <= found[0] < 2 * spec_nbytes(channel.spec)


def test_parameters_in_parts_are_as_new_as_the_oldest() -> None:
    params = Params.__new__(Params)
    params.stores = [SimpleNamespace(seen={0: 3, 1: 2}), SimpleNamespace(seen={0: 5, 1: 1})]  # type: ignore[list-item]
    assert (params.newest(0), params.newest(1)) == (3, 1)


def test_only_those_who_have_put_more_often_are_ahead() -> None:
    puts = [2, 2, 3, 1, 4]
    assert [Board(puts, n).ahead() for n in range(5)] == [2, 2, 1, 4, 0]


def test_shared_parameters_are_of_the_first_version_once_they_are_offered() -> None:
    shared = Shared(simpy.Environment(), 2)
    shared.steps[:] = 1, 2
    assert shared.version == 0
    shared.offered = True
    assert shared.version == 4


# --------------------------------------------------------------------------------------------- replicas
def test_what_is_measured_begins_anew() -> None:
    me = someone()
    me.begin(1.0, (("a", 0.25), ("b", 0.75)))
    me.end(5.0)
    me.behind(3)
    me.begin(6.0, (("a", 1.0),), "port")
    assert me.seconds(8.0) == {"a": 1.0 + 2.0, "b": 3.0} and me.waits == "port"
    me.clear(9.0)
    assert me.seconds(9.5) == {"a": 0.5} and not me.lags and me.phases
    me.end(10.0)
    assert me.seconds(99.0) == {"a": 1.0} and me.waits == ""


def taken(behaviour: Behaviour, puts: list[int], n: int) -> list[str]:
    """The first steps of replica 0, by the phase of their work."""
    me = Replica("worker", 0, 0, behaviour, Random(0), {"board": Board(puts, 0)})
    steps = islice(Simulation._steps(None, me), n)  # type: ignore[arg-type]
    return [step.ops[0].phases[0][0] for step in steps]


def named(name: str, *ops: Op) -> Step:
    return Step((work(1.0, name), *ops))


CYCLE = named("0"), named("1"), named("2"), named("put", Op("put", "board")), named("after")


@pytest.mark.parametrize(
    "ahead, share, least, steps",
    [
        (2, 0.5, 1 / 3, "0 put after 0 put after"), (2, 0.5, 0.34, "0 1 put after 0 1"),
        (2, 0.5, 1.0, "0 1 2 put after 0"), (2, 0.5, 0.0, "0 put after 0 put after"),
        (1, 0.5, 0.0, "0 1 2 put after 0"),
        (3, 0.75, 2 / 3, "0 1 put after 0 1"), (2, 0.51, 0.0, "0 1 2 put after 0"),
    ],
)  # fmt: skip
def test_a_rollout_is_cut_short_once_enough_others_have_put(ahead: int, share: float, least: float, steps: str) -> None:
    assert taken(Behaviour(CYCLE, preempt=(share, least)), [0] + [1] * ahead + [0] * (3 - ahead), 6) == steps.split()


def test_the_first_steps_come_once_and_irregular_ones_are_drawn() -> None:
    assert taken(Behaviour(CYCLE[:2], first=(named("first"),) * 2), [0], 5) == ["first", "first", "0", "1", "0"]
    drawn = Counter(taken(Behaviour(CYCLE[:2], first=(named("first"),), regular=False), [0], 401))
    assert drawn["first"] == 1 and 150 < drawn["0"] < 250, "in no order, each as often"
    assert taken(Behaviour(CYCLE[:2], regular=False), [0], 40) != ["0", "1"] * 20


def test_work_takes_its_time_on_its_cores_and_less_without_news() -> None:
    """A version a second. Of the looks of a reader one takes 0.2 s, the others 0.05 s: 1 + 16 a second."""
    p = Program("looks")
    c = p.channel(Channel("c", "params", ITEM))
    p.role("writer", object, out=c.writer())
    p.role("reader", object, inp=c.reader())
    found = simulate(p, {
        "writer": [Behaviour((Step((work(1.0, cores=3), Op("publish", "out"))),), start=(Op("publish", "out"),))],
        "reader": [Behaviour((Step((Op("latest", "inp"), work(0.2, stale=Times((0.05,)))), {"looks": 1.0}),))],
    }, Machine.here(8), seconds=100)  # fmt: skip
    assert found.rates["looks"] == pytest.approx(17.0, rel=0.02) and found.cores == pytest.approx((0.5,), rel=1e-6)


# -------------------------------------------------------------------------------------------- measures
@pytest.mark.parametrize(
    "share, value", [(0.0, 1.0), (0.5, 1.0), (0.51, 2.0), (0.9, 2.0), (0.94, 2.0), (0.95, 3.0), (1.0, 9.0)]
)
def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, value: float) -> None:
    assert quantiles({9.0: 2, 1.0: 50, 3.0: 4, 2.0: 44}, share) == (value,)


def test_lags_are_those_of_all_replicas_of_a_role() -> None:
    lags: list[tuple[str, dict[float, int]]] = [("a", {0.0: 25, 1.0: 44}), ("b", {}), ("a", {0.0: 25, 2.0: 6})]
    replicas = [SimpleNamespace(role=role, lags=Counter(found)) for role, found in lags]
    made: Any = SimpleNamespace(wiring=SimpleNamespace(replicas=replicas))
    assert Simulation._lags(made) == {"a": (0.0, 2.0)}


class Sampled(ReplayReader):
    def __init__(self, name: str, ratio: float | None) -> None:
        self.name, self.ratio = name, ratio

    @property
    def samples_per_insert(self) -> float | None:
        return self.ratio


def test_the_ratio_of_a_replay_is_the_mean_of_its_readers() -> None:
    ends = [{"x": Sampled("r", 2.0)}, {"x": Sampled("r", 5.0), "y": Sampled("s", None)}, {"x": Sampled("r", None)}]
    made: Any = SimpleNamespace(wiring=SimpleNamespace(replicas=[SimpleNamespace(ends=e) for e in ends]))
    assert Simulation._ratios(made) == {"r": 3.5}


def told(**fields: Any) -> Figures:
    values: dict[str, Any] = dict(
        seconds=1.0, rates={"env_steps": 100.0}, shares={"actor": {"env": 1.0}}, fill={"c": 0.5}, lag={},
        samples_per_insert={}, sent=(0.0,), received=(0.0,), cores=(1.0,), links=(0.0,), traffic="",
    )  # fmt: skip
    return Figures(**{**values, **fields})


def test_a_link_is_the_bottleneck_when_it_is_nearly_full() -> None:
    links = dict(links=(0.1, 0.95), sent=(1.0, 5.0), received=(5.0, 1.0), traffic="queue")
    assert told(**links).bottleneck() == "network (link out of node 1: 95% in use, most of it by trajectories)"
    assert "into node 1" in told(**{**links, "sent": (5.0, 1.0), "received": (1.0, 5.0)}).bottleneck()
    assert told(**{**links, "links": (0.1, 0.9)}).limit() == "actor" and told(**links).limit() == "network"
    assert (told(lag={"a": (1.0, 2.0)}).policy_lag(), told().policy_lag()) == ((1.0, 2.0), None)


def test_a_window_is_steady_if_the_next_makes_about_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Program("line")
    c = p.channel(Channel("c", "queue", ITEM))
    p.role("writer", object, out=c.writer())
    p.role("reader", object, inp=c.reader())
    asked: list[float] = []
    windows = [(100, 0.5), (131, 0.5), (100, 0.5), (100, 0.56), (100, 0.5), (129, 0.54)]

    def measure(self: Any, seconds: float) -> Figures:
        steps, fill = windows[len(asked)]
        asked.append(seconds)
        return told(seconds=seconds, rates={"env_steps": float(steps)}, fill={"c": fill})

    monkeypatch.setattr(Simulation, "measure", measure)
    found = steady(p, {role.name: [IDLE] for role in p.roles}, Machine.here(2), seconds=8.0)
    assert asked == [8.0, 4.0, 12.0, 6.0, 18.0, 9.0] and found.seconds == 18.0


def test_a_link_is_as_full_as_its_busier_way_and_told_by_what_that_carries() -> None:
    """Ten items a second one way, and twenty smaller ones the other way."""
    p = Program("both")
    large, small = {"x": Field((1_000,), "float32", 0)}, {"x": Field((250,), "float32", 0)}
    c, back = p.channel(Channel("c", "queue", large)), p.channel(Channel("back", "queue", small))
    p.role("one", object, out=c.writer(), inp=back.reader())
    p.role("two", object, out=back.writer(), inp=c.reader())
    machine = Machine(tuple(Node(1, bandwidth=1e5, roles=(name,)) for name in ("one", "two")))
    send = Op("reserve", "out"), Op("commit", "out")
    found = simulate(p, {
        "one": [Behaviour((Step((work(0.1), *send, Op("get", "inp"), Op("get", "inp"))),))],
        "two": [Behaviour((Step((Op("get", "inp"), *send, *send)),))],
    }, machine, seconds=50, warm_up=5)  # fmt: skip
    (out, other), (into, _) = found.sent, found.received
    assert out == pytest.approx(2 * into, rel=0.05) and other == pytest.approx(into, rel=0.05)
    assert found.links == pytest.approx((out / 1e5, out / 1e5), rel=0.05) and found.traffic == "queue"


def test_a_node_that_receives_most_is_told_by_what_it_receives() -> None:
    """Two nodes send a third more than that sends to them."""
    p = Program("in")
    items = p.channel(Channel("items", "queue", {"x": Field((1_000,), "float32", 0)}))
    params = p.channel(Channel("params", "params", {"x": Field((250,), "float32", 0)}))
    p.role("actor", object, replicas=2, out=items.writer(), params=params.reader())
    p.role("learner", object, inp=items.reader(), params=params.writer())
    one, learner = (Node(1, bandwidth=1e5, roles=(name,)) for name in ("actor", "learner"))
    found = simulate(p, {
        "actor": [Behaviour((Step((Op("latest", "params"), work(0.1), Op("reserve", "out"), Op("commit", "out"))),))],
        "learner": [Behaviour((Step((Op("get", "inp"), Op("publish", "params"))),), start=(Op("publish", "params"),))],
    }, Machine((one, one, learner)), seconds=20, warm_up=5)  # fmt: skip
    assert found.links.index(max(found.links)) == 2 and found.received[2] > found.sent[2] > 0
    assert found.traffic == "queue"


# ---------------------------------------------------------------------------------------------- wiring
def test_each_replica_has_its_own_behaviour_and_draws_its_own_numbers() -> None:
    p = Program("wired")
    c = p.channel(Channel("c", "params", ITEM))
    p.role("writer", object, out=c.writer())
    p.role("reader", object, replicas=3, inp=c.reader(lockstep=2))
    p.role("beside", object, background=True, on_failure="ignore", inp=c.reader())
    one, two = replace(IDLE), replace(IDLE, insert=Times((1.0,)))
    nodes = Node(8, speed=2.0, busy=0.5), Node(1)
    wired = Wiring(p, {"writer": [IDLE], "reader": [one, two], "beside": [IDLE]}, Machine(nodes), 7)
    assert [(r.role, r.index) for r in wired.replicas] == [("writer", 0), ("reader", 0), ("reader", 1), ("reader", 2)]
    readers = wired.replicas[1:]
    assert [r.behaviour for r in readers] == [one, two, two]
    assert len({r.random.random() for r in wired.replicas}) == 4
    assert [r.ends["inp"]._lockstep for r in readers] == [2, 2, 2]
    cores: Processors = wired.processors[0]
    assert (cores.rate(1), cores.rate(8)) == (2.0, 1.0)


def test_members_on_one_node_need_no_message_to_add() -> None:
    """Three of four are on the first node: two nodes exchange half of the sum each way."""
    p = Program("reduce")
    c = p.channel(Channel("c", "reduce", {"x": Field((250,), "float32", 0)}))
    p.role("rank", object, replicas=4, sums=c.member())
    wired = Wiring(p, {"rank": [IDLE]}, Machine((Node(3, bandwidth=1e4), Node(1, bandwidth=1e4))), 0)
    nbytes = spec_nbytes(c.spec)
    assert wired.channels["c"]._delay() == pytest.approx(2 * nbytes / 2 / 1e4)
    assert isinstance(wired.channels, dict) and not any(isinstance(found, Queue) for found in wired.channels.values())
