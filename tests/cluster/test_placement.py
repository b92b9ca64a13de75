"""What a program asks of nodes, and the sentences where a cluster does not have it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from shoal.api import Field, UsageError
from shoal.ops import SharedRMSProp
from shoal.program import Channel, Program
from shoal.ray_runtime import placement
from shoal.ray_runtime.placement import Node, check, draw, fit, units, units_on
from shoal.ray_runtime.versions import compare, versions
from shoal.replay import TableSpec
from shoal.systems import load

STREAM = {"reward": Field((4, 2)), "action": Field((4, 2), "int64"), "obs": Field((4, 2, 3))} | {
    name: Field((4, 2), "bool") for name in ("first", "terminated", "truncated", "valid")
}


def program(actors: int = 3, device: str = "cpu") -> Program:
    p = Program("test")
    items = p.channel(Channel("replay", "replay", STREAM, table=TableSpec(1000)))
    params = p.channel(Channel("params", "params", {"w": Field((2,))}))
    p.role("actor", None, replicas=actors, out=items.writer(), params=params.reader())
    p.role("learner", None, threads=2, device=device, memory=10**9, items=items.reader(), params=params.writer())
    p.role("evaluator", None, background=True, params=params.reader())
    return p


def node(name: str, **resources: float) -> Node:
    return Node(name, name, {"memory": 64e9, **resources})


def test_a_replica_asks_for_its_threads_its_gpu_and_its_table() -> None:
    found = {unit.label: unit.needs for unit in units(program(device="cuda:0"))}
    table = TableSpec(1000).nbytes(STREAM, 3)
    assert found.pop("learner[0]") == {"CPU": 2.0, "GPU": 1.0, "memory": 1e9 + table}
    assert found.pop("evaluator[0]") == {"CPU": placement.BACKGROUND}
    assert found == {f"actor[{i}]": {"CPU": 1.0} for i in range(3)}


def test_the_learner_comes_first_and_the_rest_beside_it() -> None:
    placed, over = fit(units(program()), [node("a", CPU=4), node("b", CPU=1)])
    assert [unit.label for unit in placed["a"]] == ["learner[0]", "actor[0]", "actor[1]"]
    assert [unit.label for unit in placed["b"]] == ["actor[2]"]
    assert [unit.label for unit in over] == ["evaluator[0]"]


def served(device: str, servers: int = 1) -> Program:
    p = Program("test")
    sent = p.channel(Channel("trajectories", "queue", STREAM))
    asked = p.channel(Channel("observations", "queue", STREAM))
    answers = p.channel(Channel("answers", "queue", {"action": Field((3, 2), "int64", axis=0)}, divided=1))
    params = p.channel(Channel("params", "params", {"w": Field((2,))}))
    p.role(
        "actor",
        None,
        replicas=3,
        on_failure="restart",
        out=sent.writer(),
        asked=asked.writer(),
        answers=answers.reader(),
    )
    p.role(
        "inference", None, replicas=servers, on_failure="restart", device=device, asked=asked.reader(),
        answers=answers.writer(), params=params.reader(),
    )  # fmt: skip
    p.role("learner", None, device=device, items=sent.reader(), params=params.writer())
    return p


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_server_comes_before_its_actors_and_they_fill_its_node_first(device: str) -> None:
    """Here the learner fills a node, or has its only GPU."""
    nodes = [node("a", CPU=1 + 2 * (device == "cuda"), GPU=1), node("b", CPU=3, GPU=1)]
    placed, over = fit(units(served(device)), nodes)
    assert [unit.label for unit in placed["b"]] == ["inference[0]", "actor[0]", "actor[1]"]
    rest = [unit.label for unit in [*placed["a"], *over]]
    assert rest == ["learner[0]", "actor[2]"] and bool(over) == (device == "cpu")


def test_only_who_is_asked_and_answers_is_a_server() -> None:
    assert {unit.label: unit.server for unit in units(served("cpu"))} == {
        "learner[0]": "", "inference[0]": "", **{f"actor[{i}]": "inference" for i in range(3)},
    }  # fmt: skip
    served_here: dict[str, dict[str, Any]] = {"impala": {"inference": "server"}}
    for system in ("gorila", "impala", "recurrent-ppo", "qt-opt"):
        fields = served_here.get(system, {})
        found = {unit.server for unit in units(load(system).program(load(system).Config(device="cpu", **fields)))}
        assert found == ({"", "inference"} if system == "impala" else {""}), system


def test_workers_that_share_parameters_are_not_parted() -> None:
    p = Program("test")
    shared = p.channel(Channel("params", "shared", {"w": Field((2,))}, rule=SharedRMSProp(0.99, 0.1)))
    p.role("worker", None, replicas=4, params=shared.member())
    p.role("evaluator", None, background=True, params=shared.reader())
    (unit,) = units(p)
    assert len(unit.replicas) == 5 and unit.needs["CPU"] == pytest.approx(4.01)
    with pytest.raises(UsageError, match=r"'worker' and 'evaluator', which needs 4\.01 CPUs on one node: the largest"):
        check([unit], [node("a", CPU=3), node("b", CPU=3)])


@pytest.mark.parametrize(
    "nodes, sentence",
    [
        ([node("a", CPU=8)], "no room for learner[0], which needs 1 GPU on one node: the largest of its 1 node has 0"),
        ([node("a", CPU=1, GPU=1), node("b", CPU=1)], "learner[0], which needs 2 CPUs on one node: the largest of"),
        ([Node("a", "a", {"CPU": 9, "GPU": 1, "memory": 5e8})], "needs 0.9 GiB of memory on one node"),
        (
            [node("a", CPU=3, GPU=1)],
            "it needs 5.01 CPUs, found 3 CPUs on 1 node; without room: 2 x actor, 1 x evaluator",
        ),
    ],
)  # fmt: skip
def test_a_cluster_that_is_too_small_is_told_which_role_lacks_what(nodes: list[Node], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(units(program(device="cuda")), nodes)
    assert sentence in str(caught.value)


def test_a_cluster_with_room_is_fine_and_drawn() -> None:
    nodes = [node("node a", CPU=4), node("node b", CPU=2)]
    check(units(program()), nodes)
    assert draw(units(program()), nodes).splitlines() == [
        "node a  (4 CPUs, 59.6 GiB of memory)",
        "  1 x learner",
        "  2 x actor",
        "node b  (2 CPUs, 59.6 GiB of memory)",
        "  1 x actor",
        "  1 x evaluator",
    ]


def test_a_node_with_another_version_is_named() -> None:
    here = versions()
    compare("node a", here)
    for package in here:
        with pytest.raises(
            UsageError, match=f"^node b has {package} 0.1, but the driver has {re.escape(here[package])}:"
        ):
            compare("node b", {**here, package: "0.1"})


@pytest.mark.parametrize(
    ("gpus", "servers", "part"), [(1, 1, 0.5), (2, 1, 1.0), (1, 2, 0.3333), (2, 2, 0.5), (2, 3, 0.5), (0, 1, 1.0)]
)
def test_a_learner_and_its_servers_share_gpus_where_there_are_too_few(gpus: int, servers: int, part: float) -> None:
    p, nodes = served("cuda", servers), [node("a", CPU=20, GPU=gpus)]
    wanted = units_on(p, nodes)
    assert {unit.needs["GPU"] for unit in wanted if unit.gpus} == {part}
    assert all("GPU" not in unit.needs for unit in wanted if not unit.gpus)
    assert bool(fit(wanted, nodes)[1]) is (gpus == 0)


def test_learners_do_not_share_a_gpu() -> None:
    p = served("cuda")
    p.roles = [replace(role, replicas=2) if role.name == "learner" else role for role in p.roles]
    assert {unit.needs["GPU"] for unit in units_on(p, [node("a", CPU=9, GPU=2)]) if unit.gpus} == {1.0}
