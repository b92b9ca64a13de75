"""The simulator's machines: what a file says of one, where replicas are placed, and how cores and links are shared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.api import UsageError
from shoal.simulation.machine import NO_LINK, Machine, Node, quantity, read
from shoal.simulation.placement import memory, place
from shoal.simulation.processors import Network, Processors

simpy = pytest.importorskip("simpy")


# --------------------------------------------------------------------------------------- their files
@pytest.mark.parametrize(
    "name, text, number",
    [("bandwidth", "8 Gbit/s", 1e9), ("bandwidth", "8 Mbit/s", 1e6), ("bandwidth", "2 GB/s", 2e9),
     ("bandwidth", " 3MB/s ", 3e6), ("latency", "5 us", 5e-6), ("latency", "0 ms", 0.0), ("latency", "1.5 s", 1.5),
     ("memory", "2 GB", 2e9), ("memory", "1 GiB", 2.0**30), ("memory", "1 TB", 1e12), ("time", "3 ms", 3e-3)],
)  # fmt: skip
def test_a_quantity_is_in_bytes_and_seconds(name: str, text: str, number: float) -> None:
    assert quantity("here", name, text) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize("name, text", [("bandwidth", "0 GB/s"), ("latency", "-1 s"), ("latency", "1 GB"), ("time", 3)])
def test_what_is_none_is_refused(name: str, text: object) -> None:
    with pytest.raises(UsageError, match=f"here: {name} is"):
        quantity("here", name, text)


def test_a_machine_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(
        'reduce = "tree"\n[[node]]\ncount = 2\ncores = 8\nspeed = 1.5\nbusy = 0.75\nbandwidth = "8 Gbit/s"\n'
        'latency = "10 us"\nmemory = "4 GB"\nroles = ["actor"]\n[[node]]\ncores = 2\nbusy = 1\nbandwidth = "1 GB/s"\n'
        'latency = "0 s"\n[gpu.learn]\n20 = "2 ms"\n4 = "1 ms"\n'
    )
    found = read(file)
    about: Any = pytest.approx(1e-5)
    actors = Node(8, 1.5, 0.75, 1e9, about, 4e9, ("actor",))
    assert found.nodes == (actors, actors, Node(2, 1.0, 1.0, 1e9, 0.0, 0.0, ())) and found.reduce == "tree"
    assert found.gpu == {"learn": ((4.0, pytest.approx(1e-3)), (20.0, pytest.approx(2e-3)))}
    for nodes in (2, 3, 5):
        more = found.repeated(nodes)
        assert more.nodes == (*found.nodes, found.nodes[2], found.nodes[2])[:nodes]
        assert (more.reduce, more.gpu) == (found.reduce, found.gpu)
    file.write_text("[[node]]\ncores = 2\nbusy = 1.01\n")
    with pytest.raises(UsageError, match=r"busy is 1\.01, expected a share of at most 1"):
        read(file)
    assert Machine.here(3, 0.5) == Machine((Node(3, 1.0, 0.5, NO_LINK),))


# ------------------------------------------------------------------------------------------ placement
def role(name: str, replicas: int = 1, **fields: Any) -> Any:
    values = dict(threads=1, device="cpu", on_failure="restart", background=False, memory=0, ports={})
    return SimpleNamespace(name=name, replicas=replicas, **{**values, **fields})


def placed(cores: tuple[int, ...], *roles: Any) -> dict[str, list[int]]:
    """role -> the node of each replica."""
    program: Any = SimpleNamespace(roles=roles)
    found = place(program, Machine(tuple(map(Node, cores))))
    return {r.name: [found[r.name, i] for i in range(r.replicas)] for r in roles}


def test_each_thread_has_a_core_while_there_are_any() -> None:
    assert placed((3, 3), role("a", 2, threads=2)) == {"a": [0, 1]}
    assert placed((2, 8), role("a", 2, threads=2)) == {"a": [0, 1]}
    assert placed((4, 8), role("a", 3, threads=2)) == {"a": [0, 0, 1]}


def test_those_for_whom_there_is_no_core_go_where_most_are_for_each_thread() -> None:
    assert placed((1, 4), role("a", 7)) == {"a": [0, 1, 1, 1, 1, 1, 1]}
    assert placed((2, 3), role("a", 9))["a"][5:] == [1, 0, 1, 0]


def test_the_order_is_that_of_what_a_run_cannot_do_without() -> None:
    assert placed((1, 1), role("a"), role("b", device="cuda")) == {"a": [1], "b": [0]}
    assert placed((1, 1), role("a"), role("b", on_failure="stop")) == {"a": [1], "b": [0]}
    assert placed((1, 1), role("a", on_failure="stop"), role("b", device="cuda")) == {"a": [1], "b": [0]}
    assert placed((2, 2), role("a"), role("b", threads=2)) == {"a": [1], "b": [0]}


def test_a_role_in_the_background_takes_no_core() -> None:
    assert placed((1, 1), role("a", on_failure="stop", background=True), role("b")) == {"a": [0], "b": [0]}


def test_those_who_change_the_same_memory_are_where_most_cores_are() -> None:
    port = SimpleNamespace(channel=SimpleNamespace(kind="shared"))
    assert placed((2, 4, 3), role("a", 3, ports={"p": port})) == {"a": [1, 1, 1]}


def test_the_memory_of_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A role's own where its replicas are, a queue where it is read, parameters wherever they are."""
    monkeypatch.setattr("shoal.program.held", lambda program: {"actor": 20})
    actor, learner = role("actor", 2, memory=100), role("learner", 3, memory=1_000)
    kinds = {"actor": "queue", "params": "params"}  # a channel may be called like a role
    readers = {"actor": learner, "params": actor}
    every = SimpleNamespace(of=lambda replicas: replicas)
    program: Any = SimpleNamespace(
        roles=[actor, learner], channels={name: SimpleNamespace(name=name, kind=kind) for name, kind in kinds.items()},
        memory=lambda: {"actor": 60 + 2 * 100, "params": 8}, ends=lambda channel, way: [(readers[channel.name], every)],
    )  # fmt: skip
    where = {("actor", 0): 0, ("actor", 1): 1, ("learner", 0): 1, ("learner", 1): 1, ("learner", 2): 2}
    found = memory(program, Machine((Node(1),) * 3), where)
    assert found == [110 + 8, 110 + 2 * 1_000 + 40 + 8, 1_000 + 20]


# ----------------------------------------------------------------------------------- cores and links
def test_cores_slow_down_with_those_at_work() -> None:
    cores = Processors(simpy.Environment(), 4, speed=2.0, busy=0.4)
    assert [cores.rate(n) for n in range(5)] == pytest.approx([0.0, 2.0, 1.6, 1.2, 0.8])
    assert Processors(simpy.Environment(), 1, busy=0.5).rate(1) == 1.0


def ends(cores: int, *lives: list[float], speed: float = 1.0) -> tuple[dict[int, list[float]], float]:
    """When each job of some owners ends, who begin one after the other, and the core seconds of all."""
    env = simpy.Environment()
    processors, out = Processors(env, cores, speed), {number: list[float]() for number in range(len(lives))}

    def live(number: int, jobs: list[float]) -> Iterator[Any]:
        for seconds in jobs:
            yield processors.run(seconds, number)
            out[number].append(round(env.now, 9))

    for number, jobs in enumerate(lives):
        env.process(live(number, jobs))
    env.run()
    return out, round(processors.used(), 9)


def test_an_owner_has_what_is_left_of_a_turn_and_no_new_one() -> None:
    """Of a turn of 4 ms 3 go to its first job and 1 to its second, which then waits for the other's 2."""
    assert ends(1, [0.003, 0.003], [0.002]) == ({0: [0.003, 0.008], 1: [0.006]}, 0.008)


def test_a_long_job_has_a_64th_of_itself_at_a_time() -> None:
    """One of 100 ms has 25 turns, before each of which it waits for 100 ms."""
    assert ends(1, [6.4], [0.1]) == ({0: [6.5], 1: [2.6]}, 6.5)


def test_the_seconds_of_cores_are_those_in_which_they_are_at_work() -> None:
    assert ends(4, [1.0], [2.0], speed=0.5) == ({0: [2.0], 1: [4.0]}, 6.0)


def test_a_link_carries_one_message_at_a_time_each_way() -> None:
    """At the rate of the slower end, with the longer latency; what goes to one node comes in one after the other."""
    env = simpy.Environment()
    network = Network(env, [100.0, 50.0, 100.0, 100.0], [0.0, 0.0, 0.25, 0.125])
    came: dict[tuple[int, int], float] = {}

    def note(way: tuple[int, int], _: object) -> None:
        came[way] = env.now

    for way in ((0, 1), (0, 2), (3, 2), (2, 3), (1, 0)):
        arrival = network.send("queue", *way, 100)
        assert arrival.callbacks is not None
        arrival.callbacks.append(partial(note, way))
    env.run()
    assert came == {(0, 1): 2.0, (0, 2): 3.25, (3, 2): 4.25, (2, 3): 1.25, (1, 0): 2.0}
    assert [c["queue"] for c in network.sent] == [200, 100, 100, 100]
    assert [c["queue"] for c in network.received] == [100, 100, 200, 100]


@pytest.mark.parametrize("tree, seconds", [(False, 2 * 3 * (1.0 + 0.25)), (True, 2 * 2 * (4.0 + 0.25))])
def test_all_that_an_all_reduce_carries_is_counted(tree: bool, seconds: float) -> None:
    network = Network(simpy.Environment(), [100.0, 200.0, 300.0, 100.0], [0.0, 0.25, 0.125, 0.0])
    assert network.all_reduce([2], 400) == 0.0 and not network.sent[2]
    assert network.all_reduce([0, 1, 2, 3], 400, tree) == seconds
    assert [c["reduce"] for c in network.sent] == [c["reduce"] for c in network.received] == [600] * 4
