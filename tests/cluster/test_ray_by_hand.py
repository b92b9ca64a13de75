"""The parts of a run on a cluster by hand, without one: what is told again is done once, what was ordered is never
taken back, and a replica starts with what its run says."""

from __future__ import annotations

import selectors
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

pytest.importorskip("ray")

from shoal.api import Field
from shoal.local import child
from shoal.program import Channel, Program, RoleSpec
from shoal.ray_runtime import agent as agent_module, routes, station as station_module
from shoal.ray_runtime.agent import Agent, Life, Orders
from shoal.ray_runtime.control import Control
from shoal.ray_runtime.news import fill, items_moved
from shoal.ray_runtime.station import RemoteReplica, Station
from shoal.ray_runtime.supervisor import _newer
from shoal.records.checkpoint import SaveOptions
from shoal.replay import TableSpec
from shoal.shm import layout
from shoal.shm.arena import Arena
from shoal.shm.layout import ALIGN


def program(writers: int = 3) -> Program:
    p = Program("test")
    items = p.channel(Channel("items", "queue", {"n": Field((1,), "int64", 0)}, 2))
    p.role("writer", None, replicas=writers, out=items.writer())
    p.role("reader", None, inp=items.reader())
    return p


# ---------------------------------------------------------------------------------------------- control
def test_what_the_driver_has_ordered_is_never_taken_back() -> None:
    plan = layout.plan(program())
    control = Control(Arena(plan.total), plan)
    control.order(0, 5)
    assert (control.stop, control.checkpoint) == (0, 5)
    control.order(1, 3)  # said before, and late on its way
    control.order(0, 4)
    assert (control.stop, control.checkpoint) == (1, 5)


def test_the_lines_of_some_replicas_are_taken_and_no_others() -> None:
    plan = layout.plan(program())
    here, there = (Control(Arena(plan.total), plan) for _ in range(2))
    for replica in there.replicas:
        there._words[there.status(replica)] = 10 + replica[1]
    here.take(there.copy(), [("writer", 1), ("reader", 0)])
    found = {replica: int(here._words[here.status(replica)]) for replica in here.replicas}
    assert found == {("writer", 0): 0, ("writer", 1): 11, ("writer", 2): 0, ("reader", 0): 10}
    pulse = plan.pulses["writer"]
    there._bytes[pulse : pulse + 3 * ALIGN] = 7
    here.take(there.copy(), [("writer", 2)])
    assert here._bytes[pulse : pulse + 3 * ALIGN].reshape(3, -1).any(1).tolist() == [False, False, True]


# ------------------------------------------------------------------------------------------------ agent
def test_an_agent_tells_an_event_until_the_driver_has_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module.memory, "used", lambda: 0)
    agent: Any = Agent.__new__(Agent)
    plan = layout.plan(program())
    agent._control, agent._replicas = Control(Arena(plan.total), plan), {}
    agent._urgent, agent._hurry, agent._failure = threading.Condition(), True, ""
    agent._happened, agent._number = list("abcde"), 9  # events 5 to 9
    agent._orders, agent._reduces = SimpleNamespace(plan=SimpleNamespace(rings={})), set()
    agent._outgoing = SimpleNamespace(traffic={})
    told = []
    for heard in (0, 4, 6, 6, 9):
        agent._hurry = True  # else it waits for more
        news = agent.exchange(agent._control.copy(), heard)
        told.append(("".join(news.events), news.number))
    assert told == [("abcde", 9), ("abcde", 9), ("cde", 9), ("cde", 9), ("", 9)]


def test_an_agent_that_is_told_twice_of_a_life_starts_it_once() -> None:
    agent: Any = Agent.__new__(Agent)
    agent._lock, life = threading.RLock(), Life(2, 0, None, False, None)
    agent._lives = {("writer", 0): life}
    agent.start("writer", 0, life, None, None, {})  # with orders it would start a process: there are none
    agent.start("writer", 0, Life(1, 0, None, False, None), None, None, {})
    assert agent._lives == {("writer", 0): life}


def test_a_replica_starts_with_what_its_run_and_its_life_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []
    monkeypatch.setattr(agent_module.processes, "start", lambda *what: started.append(what))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    agent: Any = Agent.__new__(Agent)
    saving, resume, joins = SaveOptions(tmp_path), object(), {"sum": object()}
    agent._arena, blobs = object(), {"learner": b"learns", "actor": b"acts"}
    agent._orders = SimpleNamespace(
        blobs=blobs, seed=5, limits=(100, None), run_dir=tmp_path, spans=7, saving=saving, savers={"learner"}
    )
    agent._lives = {("learner", 1): Life(4, 9, resume, True, "3"), ("actor", 0): Life(0, 2, None, False, None)}  # type: ignore[arg-type]
    agent._joins = {("learner", 1): joins, ("actor", 0): {}}
    for name, index, generation in (("learner", 1, 4), ("actor", 0, 0)):
        role = SimpleNamespace(name=name)
        replica = SimpleNamespace(role=role, index=index, generation=generation, label=f"{name}[{index}]")
        agent._launch(replica, "pipe")
    (main, (arena, blob, job, pipe), label), (_, (_, _, other, _), _) = started
    assert (main, arena, blob, pipe, label) == (child.main, agent._arena, b"learns", "pipe", "shoal-learner[1]")
    assert job.environ["CUDA_VISIBLE_DEVICES"] == "3" and "CUDA_VISIBLE_DEVICES" not in other.environ
    assert job == child.Job(1, 4, 5, 9, (100, None), tmp_path, job.environ, 7, saving, resume, True, joins)  # type: ignore[arg-type]
    assert (other.saving, other.resume, other.again, other.life) == (None, None, False, 2)


def test_an_agent_gives_its_replicas_up_after_as_long_as_the_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = []
    monkeypatch.setattr(agent_module, "Watch", lambda arena, plan, seconds: watched.append(seconds))
    monkeypatch.setattr(agent_module.processes, "prepare", lambda: None)
    monkeypatch.setattr(agent_module.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(Agent, "_supervise", lambda self: None)
    p = program()
    orders = Orders(p, layout.plan(p), {}, frozenset(), 5, (), None, 0, None, None, 12.5, {})
    Agent(cloudpickle.dumps(orders), sys.path)
    assert watched == [12.5]


# -------------------------------------------------------------------------------------------- the driver
def test_a_replica_without_a_place_has_not_begun_its_life() -> None:
    role = RoleSpec("actor", lambda ctx: None, {})  # type: ignore[arg-type, return-value]
    replica = RemoteReplica(role, 0, lambda replica: 123.0, selectors.DefaultSelector())
    replica.generation = 3
    replica.start()
    assert (replica.generation, replica.restart_at, replica.process) == (2, 123.0, None)


def test_a_station_says_which_event_it_has_heard_of_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, heard, lost = [], [], threading.Event()

    def get(number: int, timeout: float) -> Any:
        asked.append(number)
        if len(asked) == 4:
            raise RuntimeError("the node died")
        return SimpleNamespace(number=10 * len(asked), traffic={})

    monkeypatch.setattr(station_module, "ray", SimpleNamespace(get=get, exceptions=station_module.ray.exceptions))
    agent = SimpleNamespace(exchange=SimpleNamespace(remote=lambda control, number: number))
    station = Station("id", "node a", agent, None)
    station.listen(lambda: None, lambda s, news: heard.append(news.number), lambda s, why: lost.set())  # type: ignore[arg-type, return-value]
    assert lost.wait(20) and station.gone
    assert asked == [0, 10, 20, 30] and heard == [10, 20, 30] and station.latest.number == 30  # type: ignore[union-attr]


def test_of_two_nodes_boards_each_writers_latest_row_is_saved() -> None:
    one: dict[str, Any] = {"rows": {"done": np.array([5, 6, 7])}, "puts": np.array([3, 1, 2])}
    other: dict[str, Any] = {"rows": {"done": np.array([50, 60, 70])}, "puts": np.array([2, 4, 2])}
    for first, second in ((one, other), (other, one)):
        found = _newer(first, second)
        assert found["rows"]["done"][:2].tolist() == [5, 60] and found["puts"].tolist() == [3, 4, 2]
    assert one["rows"]["done"].tolist() == [5, 6, 7], "as it was"


def test_a_ring_on_two_nodes_is_as_full_as_both_parts_and_never_more_than_full() -> None:
    news = [SimpleNamespace(fill={"a": 0.25, "b": 0.75}), SimpleNamespace(fill={"a": 0.5, "b": 0.5, "c": 0.125})]
    assert fill(news) == {"a": 0.75, "b": 1.0, "c": 0.125}  # type: ignore[arg-type]


def test_an_item_that_went_from_node_to_node_is_counted_once() -> None:
    """Writer 0 is on the first node, with the reader; of the seven items that writer 1 has put elsewhere, five came."""
    first = SimpleNamespace(moved={"a": np.array([3, 5]), "b": np.array([0])})
    second = SimpleNamespace(moved={"a": np.array([0, 7]), "b": np.array([0]), "c": np.array([2])})
    assert items_moved([first, second]) == items_moved([second, first]) == {"a": 10, "c": 2}  # type: ignore[list-item]
    assert items_moved([]) == {}


def test_the_items_of_each_writer_go_to_the_reader_that_has_its_ring() -> None:
    stream = {"reward": Field((4, 2)), "action": Field((4, 2), "int64"), "obs": Field((4, 2, 3))} | {
        name: Field((4, 2), "bool") for name in ("first", "terminated", "truncated", "valid")
    }
    p = Program("test")
    items = p.channel(Channel("items", "replay", stream, table=TableSpec(1000)))
    p.role("writer", None, replicas=4, out=items.writer())
    p.role("reader", None, replicas=2, inp=items.reader())
    where = {**{("writer", i): f"w{i}" for i in range(4)}, ("reader", 0): "r0", ("reader", 1): "r1"}
    found = routes.routes(p, layout.plan(p), where)
    assert [(r.source, r.target, r.end) for r in found] == [
        ("w0", "r0", 0), ("w1", "r1", 1), ("w2", "r0", 0), ("w3", "r1", 1),
    ]  # fmt: skip
