"""The simulator against queueing theory: cases whose answer is a formula, to 2 % of a whole sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.api import Field, Spec, Tensors
from shoal.program import Channel, Program
from shoal.simulation import Behaviour, Behaviours, Machine, Node, Op, Step, Times, simulate, steady
from shoal.simulation.behaviour import work
from shoal.simulation.processors import Processors

simpy = pytest.importorskip("simpy")
ITEM = {"x": Field((250,), "float32", 0)}  # 1,000 bytes
CLOSE = 0.02  # as a share
CUSTOMERS = 30_000  # whose mean wait is known to about 1 %


@pytest.fixture(params=[0.25, 1.0], ids=["quarter", "whole"])
def share(request: pytest.FixtureRequest) -> float:
    """How much of a drawn sample is taken: ``whole`` is of the long tier."""
    share: float = request.param
    return share


def close(share: float) -> float:
    """How far from a formula a share of a sample may be: errors fall with the root of its size."""
    return CLOSE / math.sqrt(share)


def role(*ops: Op, name: str = "") -> list[Behaviour]:
    return [Behaviour((Step(ops, {name: 1.0} if name else {}),))]


def exponential(mean: float) -> Times:
    return Times((mean,), "exponential")


def line(capacity: int, writers: int = 1, **reader: int | bool) -> Program:
    p = Program("line")
    c = p.channel(Channel("c", "queue", ITEM, capacity))
    p.role("writer", object, replicas=writers, out=c.writer())
    p.role("reader", object, inp=c.reader(**reader))  # type: ignore[arg-type]
    return p


def sender(service: Times) -> list[Behaviour]:
    return role(work(service), Op("reserve", "out"), Op("commit", "out"), name="sent")


def receiver(service: Times) -> list[Behaviour]:
    return role(Op("get", "inp"), work(service), name="served")


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_is_measured_is_what_goes_on_once_queues_are_full(nodes: int) -> None:
    """A thousand slots are filled at a hundred a second, and then one a second is served. Between two nodes there are
    as many at either end, and at the writer's they fill last."""
    p = line(1_000)
    behaviours: Behaviours = {
        "writer": [Behaviour((Step((work(0.01), Op("reserve", "out"), Op("commit", "out")), {"env_steps": 1.0}),))],
        "reader": receiver(Times((1.0,))),
    }
    machine = Machine((Node(2 // nodes),) * nodes)  # two nodes of one core have a role each
    at_once = simulate(p, behaviours, machine, seconds=2)
    assert at_once.steps == pytest.approx(100, rel=CLOSE)
    found = steady(p, behaviours, machine, seconds=2)
    assert found.steps == pytest.approx(1.0, rel=0.1) and found.seconds > 10 and found.fill["c"] <= 1.0


def test_a_window_in_which_nothing_ends_is_too_short() -> None:
    behaviours: Behaviours = {
        "writer": [Behaviour((Step((work(10.0), Op("reserve", "out"), Op("commit", "out")), {"env_steps": 1.0}),))],
        "reader": receiver(Times((0.1,))),
    }
    assert steady(line(2), behaviours, Machine.here(2), seconds=2).steps > 0


def test_a_program_that_makes_no_steps_is_steady_in_its_updates() -> None:
    behaviours: Behaviours = {
        "writer": sender(Times((0.1,))), "reader": role(Op("get", "inp"), work(Times((0.05,))), name="updates")
    }  # fmt: skip
    found = steady(line(2), behaviours, Machine.here(2), seconds=5)
    assert found.seconds == 5 and found.updates == pytest.approx(10, rel=0.1)


def test_a_poisson_stream_to_a_constant_server_waits_as_pollaczek_and_khinchine_say(share: float) -> None:
    """M/D/1: the mean number in the system is rho + rho^2 / (2 (1 - rho))."""
    rho = 0.6
    program, room = line(capacity=100), 100
    behaviours: Behaviours = {"writer": sender(exponential(1.0)), "reader": receiver(Times((rho,)))}
    found = simulate(program, behaviours, Machine.here(2), seconds=2 * share * CUSTOMERS, warm_up=1_000)
    assert found.rates["served"] == pytest.approx(1.0, rel=close(share))
    assert found.shares["reader"]["work"] == pytest.approx(rho, rel=close(share))
    assert found.fill["c"] * room == pytest.approx(rho + rho**2 / (2 * (1 - rho)), rel=close(share))


def test_a_saturated_server_serves_at_its_own_rate_however_many_send(share: float) -> None:
    behaviours: Behaviours = {"writer": sender(exponential(1.0)), "reader": receiver(exponential(0.25))}
    found = simulate(line(2, writers=16), behaviours, Machine.here(32), seconds=8_000 * share, warm_up=100)
    assert found.rates["served"] == pytest.approx(4.0, rel=close(share))
    assert found.limit() == "reader"
    assert found.fill["c"] > 0.9


@pytest.mark.parametrize("room", [1, 3])
def test_two_exponential_stations_with_blocking_have_the_throughput_of_their_markov_chain(
    room: int, share: float
) -> None:
    """Equal rates mu, a buffer of b: a chain of b + 3 equally likely states, of which one stops the second station, so
    (b + 2) / (b + 3) of mu. An item that is being served keeps its slot, so of ``room`` slots one is no buffer."""
    behaviours: Behaviours = {"writer": sender(exponential(1.0)), "reader": receiver(exponential(1.0))}
    found = simulate(line(room), behaviours, Machine.here(2), seconds=CUSTOMERS * share, warm_up=100)
    states = room - 1 + 3
    assert found.rates["served"] == pytest.approx((states - 1) / states, rel=close(share))


@pytest.mark.parametrize("workers", [1, 4, 10])
def test_lockstep_with_exponential_workers_takes_a_harmonic_number_of_means(workers: int, share: float) -> None:
    p = Program("lockstep")
    c = p.channel(Channel("c", "queue", ITEM, 1))
    params = p.channel(Channel("params", "params", ITEM))
    p.role("worker", object, replicas=workers, out=c.writer(), params=params.reader(lockstep=1))
    p.role("learner", object, inp=c.reader(each=True), params=params.writer())
    behaviours: Behaviours = {
        "worker": role(Op("reserve", "out"), Op("latest", "params"), work(exponential(1.0)), Op("commit", "out")),
        "learner": [
            Behaviour(
                (Step((Op("get", "inp"), Op("publish", "params")), {"updates": 1}),), start=(Op("publish", "params"),)
            )
        ],
    }
    found = simulate(p, behaviours, Machine.here(workers), seconds=20_000 * share, warm_up=100)
    assert 1 / found.updates == pytest.approx(sum(1 / k for k in range(1, workers + 1)), rel=close(share))
    assert found.lag["learner"] == (0.0, 0.0)


@pytest.mark.parametrize("workers", [2, 8])
def test_a_reduction_takes_as_long_as_the_slowest_of_all(workers: int, share: float) -> None:
    p = Program("reduce")
    c = p.channel(Channel("c", "reduce", ITEM))
    p.role("rank", object, replicas=workers, sums=c.member())
    behaviours = {"rank": role(work(exponential(1.0)), Op("put", "sums"), Op("get", "sums"), name="rounds")}
    found = simulate(p, behaviours, Machine.here(workers), seconds=20_000 * share, warm_up=100)
    assert workers / found.rates["rounds"] == pytest.approx(sum(1 / k for k in range(1, workers + 1)), rel=close(share))


def test_more_replicas_than_cores_share_them_equally(share: float) -> None:
    behaviours = {"worker": role(work(exponential(1.0)), Op("copy", "shared"), name="steps")}
    p = Program("cores")
    c = p.channel(Channel("shared", "shared", ITEM, rule=_Rule()))
    p.role("worker", object, replicas=6, shared=c.member())
    behaviours["worker"] = [Behaviour(behaviours["worker"][0].cycle, start=(Op("offer", "shared"),))]
    found = simulate(p, behaviours, Machine.here(2), seconds=4_000 * share, warm_up=100)
    assert found.rates["steps"] == pytest.approx(2.0, rel=close(share))
    assert found.cores[0] == pytest.approx(1.0, rel=1e-6)
    slower = Machine((Node(2, speed=0.5, busy=0.8),))
    assert simulate(p, behaviours, slower, seconds=8_000 * share).rates["steps"] == pytest.approx(0.8, rel=close(share))


@pytest.mark.parametrize(
    "seconds, round_of", [(0.001, 0.002), (0.004, 0.008), (0.4, 0.6)], ids=["short", "a slice", "long"]
)
def test_three_that_wait_for_each_other_on_two_cores_take_turns_of_a_slice(seconds: float, round_of: float) -> None:
    """Of work within a slice one of three waits until another is done: two lots. Long work is shared: one and a half
    lots."""
    p = Program("reduce")
    c = p.channel(Channel("c", "reduce", ITEM))
    p.role("rank", object, replicas=3, sums=c.member())
    behaviours = {"rank": role(work(seconds), Op("put", "sums"), Op("get", "sums"), name="rounds")}
    found = simulate(p, behaviours, Machine.here(2), seconds=200 * round_of, warm_up=1)
    assert 3 / found.rates["rounds"] == pytest.approx(round_of, rel=CLOSE)


def test_an_owner_goes_on_with_its_slice_and_a_newcomer_waits_for_its_end() -> None:
    """Two jobs of one owner, 1 ms each, then another's; one core. A third that comes meanwhile is served last."""
    env = simpy.Environment()
    cores, ended = Processors(env, 1), []

    def live(owner: str, jobs: list[float], start: float) -> Iterator[Any]:
        yield env.timeout(start)
        for seconds in jobs:
            yield cores.run(seconds, owner)
            ended.append((owner, round(env.now, 6)))

    env.process(live("first", [0.001, 0.001], 0.0))
    env.process(live("second", [0.005], 0.0))
    env.process(live("third", [0.001], 0.0005))
    env.run(0.1)
    assert ended == [("first", 0.001), ("first", 0.002), ("third", 0.007), ("second", 0.008)]
    assert cores.used() == pytest.approx(0.008)


class _Rule:
    def statistics(self, params: Spec) -> Spec:
        return {}

    def apply(self, params: Tensors, statistics: Tensors, gradient: Tensors, lr: float) -> None: ...


def test_a_link_carries_no_more_than_its_bandwidth() -> None:
    """1,000 bytes an item over 100,000 bytes a second: 100 items a second, from however many writers."""
    behaviours: Behaviours = {"writer": sender(Times((0.001,))), "reader": receiver(Times((0.0001,)))}
    nodes = Node(8, bandwidth=1e5, latency=0.001, roles=("writer",)), Node(1, bandwidth=1e5, roles=("reader",))
    found = simulate(line(2, writers=4), behaviours, Machine(nodes), seconds=50, warm_up=5)
    assert found.rates["served"] == pytest.approx(100, rel=CLOSE)
    assert found.sent[0] == pytest.approx(1e5, rel=CLOSE) and found.received[1] == pytest.approx(1e5, rel=CLOSE)
    assert found.limit() == "network" and found.traffic == "queue" and "trajectories" in found.bottleneck()


def test_a_full_link_is_told_by_what_it_carries() -> None:
    """Items go one way and parameters the other: 1,000 bytes for each item, and as many for each of two versions."""
    p = Program("both")
    items, params = p.channel(Channel("items", "queue", ITEM, 2)), p.channel(Channel("params", "params", ITEM))
    p.role("actor", object, replicas=1, out=items.writer(), params=params.reader())
    p.role("learner", object, inp=items.reader(), params=params.writer())
    work_of = {
        "actor": role(Op("latest", "params"), work(Times((0.3,))), Op("reserve", "out"), Op("commit", "out")),
        "learner": [
            Behaviour(
                (Step((Op("get", "inp"), *(Op("publish", "params"), work(Times((0.04,)))) * 2), {"updates": 1.0}),),
                start=(Op("publish", "params"),),
            )
        ],
    }
    nodes = tuple(Node(1, bandwidth=1e4, latency=0.0, roles=(name,)) for name in ("actor", "learner"))
    found = simulate(p, work_of, Machine(nodes), seconds=20, warm_up=5)
    assert found.traffic == "params" and found.sent[1] > 1.5 * found.sent[0]


@pytest.mark.parametrize("tree, seconds", [(False, 2 * 3 * (1_000 / 4 / 1e4 + 0.01)), (True, 2 * 2 * (0.1 + 0.01))])
def test_an_all_reduce_between_nodes_takes_a_ring_or_a_tree_of_messages(tree: bool, seconds: float) -> None:
    p = Program("reduce")
    c = p.channel(Channel("c", "reduce", ITEM))
    p.role("rank", object, replicas=4, sums=c.member())
    behaviours = {"rank": role(work(0.1), Op("put", "sums"), Op("get", "sums"), name="rounds")}
    machine = Machine((Node(1, bandwidth=1e4, latency=0.01),) * 4, "tree" if tree else "ring")
    found = simulate(p, behaviours, machine, seconds=200, warm_up=10)
    assert 4 / found.rates["rounds"] == pytest.approx(0.1 + seconds, rel=CLOSE)


def test_the_same_seed_gives_the_same_answer_and_another_seed_another() -> None:
    behaviours: Behaviours = {"writer": sender(exponential(1.0)), "reader": receiver(exponential(0.8))}
    one, same, other = (
        simulate(line(3, writers=2), behaviours, Machine.here(2), seconds=500, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same and one != other
    assert math.isclose(sum(one.shares["reader"].values()), 1.0)
