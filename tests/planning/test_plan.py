"""``shoal plan``: what roles are seen to do, what is refused, and the files that it reads and writes."""

from __future__ import annotations

import json
import math
import os
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal import systems
from shoal.api import UsageError
from shoal.cli.main import main
from shoal.planning.command import command
from shoal.planning.costs import Costs, at_size, network, size
from shoal.planning.costs_file import read
from shoal.planning.regularity import behaviour, period
from shoal.planning.rehearsal import rehearse
from shoal.planning.scan import Planner, Point, Row, advice, knee
from shoal.program import Program
from shoal.simulation import Behaviour, Behaviours, Machine, Op, Step, Times, machine as machines, simulate
from shoal.simulation.behaviour import work
from shoal.simulation.figures import Figures

pytest.importorskip("simpy")
TOY = "toy:chain"


def program(system: str, **fields: Any) -> Program:
    module = systems.load(system)
    found: Program = module.program(
        module.Config(env="CartPole-v1", **{"actors": 1, "envs": 2, "total_envs": 0, **fields})
    )
    return found


def seen(found: Program, least: int = 3) -> dict[str, list[Behaviour]]:
    """What the roles of a program are seen to do in a moment, or in as long as a busy machine needs for ``least``
    steps of each."""
    for seconds in (0.2, 1.0, 5.0, 25.0):
        players = rehearse(found, seconds)
        if all(len(player.steps) >= least for player in players):
            break
    lockstep = {r.name: [k for k, p in r.ports.items() if p.lockstep] for r in found.roles}
    out: dict[str, list[Behaviour]] = {}
    for player in players:
        out.setdefault(player.name, []).append(behaviour(player, lockstep[player.name]))
    return out


def at_pace(costs: Costs, seconds: dict[str, float]) -> Costs:
    """Costs of the same roles, which take so many seconds for each step of their cycle."""

    def step(known: Step, role: str) -> Step:
        works = sum(op.do == "work" for op in known.ops)
        busy, idle = Times((seconds[role] / works,)), Times((0.0,))
        ops = tuple(replace(op, busy=busy, idle=idle) if op.do == "work" else op for op in known.ops)
        return replace(known, ops=ops)

    def steps(known: Behaviour, role: str) -> Behaviour:
        return replace(known, cycle=tuple(step(one, role) for one in known.cycle))

    roles = {r: [(s, [steps(b, r) for b in known]) for s, known in found] for r, found in costs.roles.items()}
    return replace(costs, roles=roles)


def order(steps: tuple[Step, ...]) -> list[tuple[str, str]]:
    return [(op.do, op.port) for step in steps for op in step.ops if op.do != "work"]


@pytest.fixture(scope="module")
def impala() -> Costs:
    found = program("impala")
    roles = {
        name: [(size(found, role), known)]
        for role in found.roles
        for name, known in seen(found, least=100).items()
        if name == role.name
    }
    return Costs("impala", "CartPole-v1", network(found), 2, "a processor", 0.9, roles)


def test_what_an_actor_and_a_learner_do_is_seen(impala: Costs) -> None:
    actor, learner = impala.roles["actor"][0][1][0], impala.roles["learner"][0][1][0]
    assert order(actor.cycle) == [("reserve", "trajectories"), ("latest", "params"), ("commit", "trajectories")]
    assert actor.cycle[0].counts["env_steps"] == pytest.approx(40, abs=2)  # all but the steps that reset
    assert order(learner.cycle) == [("get", "trajectories"), ("publish", "params")]
    assert [(op.do, op.port) for op in learner.start] == [("publish", "params")]
    works = [op for op in actor.cycle[0].ops if op.do == "work"]
    assert {"env", "inference"} <= {name for op in works for name, _ in op.phases}
    assert all(sum(share for _, share in op.phases) == pytest.approx(1.0) for op in works)


def test_a_rank_is_seen_to_collect_in_slices_and_to_reduce_each_minibatch() -> None:
    rank, other = seen(program("dd-ppo", unroll=32, epochs=1, minibatches=2, actors=2), least=6 * 35)["rank"]
    assert rank.regular and rank.preempt == (0.6, 0.25)
    ops = order(rank.cycle)
    assert ops.count(("put", "gradients")) == ops.count(("get", "gradients")) == 2
    assert ops[:2] == [("put", "progress"), ("put", "moments")] and ("publish", "params") in ops
    assert len(rank.cycle) == 32 + 1 + 2  # slices, the sum of moments, a step of each minibatch
    assert ("publish", "params") not in order(other.cycle)


def test_a_replay_that_takes_items_in_only_when_it_is_read_is_no_deadlock() -> None:
    """Its reader is asked after its writer, whose queue is full: who has waited for that is ready a round later."""
    known = seen(program("gorila", envs=8, learners=1))
    assert {name: len(behaviours) for name, behaviours in known.items()} == {"actor": 1, "learner": 1, "server": 2}


def test_what_was_seen_can_be_simulated(impala: Costs) -> None:
    module = systems.load("impala")
    cfg = module.Config(env="CartPole-v1", actors=1, envs=2, total_envs=0)
    costs = at_pace(impala, {"actor": 0.01, "learner": 0.004})  # what was measured depends on who else is at work
    rows = Planner(module, cfg, costs, Machine.here(16), seeds=1).rows([Point(1), Point(2), Point(16)])
    assert all(row.steps > 0 for row in rows) and rows[1].steps > 1.2 * rows[0].steps
    assert rows[0].figures is not None and rows[0].figures.updates * 40 == pytest.approx(rows[0].steps, rel=0.1)
    assert knee(rows) is not None  # one learner has not the work of sixteen actors


@pytest.mark.parametrize(
    "steps, expected",
    [
        ("aaaa", (0, 1)),
        ("xababab", (1, 2)),
        ("xyaabaab", (2, 3)),
        ("abcd", None),
        ("a", None),
    ],
)
def test_the_period_of_steps(steps: str, expected: tuple[int, int] | None) -> None:
    assert period([((c, ""),) for c in steps]) == expected


def test_costs_between_two_sizes_lie_on_a_line() -> None:
    def takes(seconds: float, steps: float) -> list[Behaviour]:
        return [Behaviour((Step((work(Times((seconds, 3 * seconds))),), {"env_steps": steps}),))]

    known = [(10.0, takes(1.0, 10)), (30.0, takes(2.0, 30))]
    for wanted, seconds, steps in ((10, 1.0, 10), (20, 1.5, 20), (50, 3.0, 50), (30, 2.0, 30)):
        (found,) = at_size(known, wanted)
        assert found.cycle[0].ops[0].busy.values == pytest.approx((seconds, 3 * seconds))
        assert found.cycle[0].counts["env_steps"] == pytest.approx(steps)


def test_costs_are_the_same_after_a_file(impala: Costs, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    impala.write(path)
    again = read(path)
    assert again.network == impala.network and again.roles.keys() == impala.roles.keys()
    (_, (mine, *_)), (_, (theirs, *_)) = impala.roles["learner"][0], again.roles["learner"][0]
    assert order(mine.cycle) == order(theirs.cycle) and mine.start == theirs.start
    for a, b in zip(mine.cycle[0].ops, theirs.cycle[0].ops, strict=True):
        assert a.busy.values == pytest.approx(b.busy.values, rel=1e-3)


def test_a_rank_that_lags_is_preempted() -> None:
    """Of four ranks one takes ten times as long for a slice: the others do not wait for the whole of its rollout."""
    found = program("dd-ppo", actors=4, unroll=32, epochs=1, minibatches=1)

    def rank(seconds: float, preempt: tuple[float, float] | None) -> Behaviour:
        part = work(seconds, "env")
        slices = [Step((part,), {"env_steps": 1})] * 31
        ended = Step((part, Op("put", "progress"), Op("put", "moments")), {"env_steps": 1})
        learn = Step((Op("get", "moments"), Op("put", "gradients"))), Step((Op("get", "gradients"),), {"updates": 0.25})
        return Behaviour((*slices, ended, *learn), preempt=preempt)

    def rounds(preempt: tuple[float, float] | None) -> float:
        behaviours: Behaviours = {"rank": [rank(0.01, preempt)] * 3 + [rank(0.1, preempt)]}
        return simulate(found, behaviours, Machine.here(4), seconds=100, warm_up=10).updates

    assert rounds(None) == pytest.approx(1 / 3.2, rel=0.05)
    assert rounds((0.6, 0.25)) == pytest.approx(1 / 0.9, rel=0.05)  # a quarter of 32, and the last
    assert rounds((0.6, 1.0)) == pytest.approx(1 / 3.2, rel=0.05)


# ------------------------------------------------------------------------------------------ refusals
MACHINE = '[[node]]\ncores = 4\ncount = 2\nbandwidth = "25 Gbit/s"\nlatency = "50 us"\n'


def test_a_machine_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(MACHINE + '[gpu]\nlearn = { 640 = "3 ms" }\n')
    found = machines.read(path)
    assert [n.cores for n in found.nodes] == [4, 4] and found.nodes[0].bandwidth == 25e9 / 8
    assert found.nodes[1].latency == pytest.approx(5e-5) and found.gpu == {"learn": ((640.0, 0.003),)}


@pytest.mark.parametrize(
    "before, after, told",
    [
        ("25 Gbit/s", "25 Gbit", "node 1: bandwidth is '25 Gbit', expected a number and Gbit/s"),
        ('"25 Gbit/s"', "25", "node 1: bandwidth is 25, expected a number and"),
        ("cores = 4\n", "", "node 1 has no cores"),
        ('latency = "50 us"\n', "", "node 1 has no latency, which every one of several nodes needs"),
        ("cores = 4", "core = 4", "has no field 'core'; did you mean 'cores'?"),
        ("cores = 4", "cores = -4", "cores is -4, expected a whole number above 0"),
        ("cores = 4", "cores = 4.5", "cores is 4.5, expected a whole number above 0"),
        ("[[node]]", "[node]", r"has no \[\[node\]\]"),
        ("[[node]]", "[[node", "is not TOML"),
        ("cores = 4", 'cores = 4\nspeed = "fast"', "speed is 'fast', expected a number above 0"),
    ],
)
def test_a_wrong_machine_file_is_refused_in_a_sentence(before: str, after: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(MACHINE.replace(before, after))
    with pytest.raises(UsageError, match=told):
        machines.read(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["plan", *args])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize(
    "args, told",
    [
        ((), "needs a system first"),
        (("impala", "--actors", "0"), "--actors expects integers from 1 to 10000, such as"),
        (("impala", "--actors", "a,b"), "--actors expects integers from 1 to 10000, such as"),
        (("impala", "--target", "-1"), "--target expects a finite number above 0"),
        (("impala", "--seconds", "3601"), "--seconds expects a number of seconds above 0 and at most 3600, found 3601"),
        (("impala", "--actors", "9" * 5_000), "--actors expects integers from 1 to 10000, such as 1,2,4,8, found 999"),
        (("impala", "--actors", "\u00b2"), "--actors expects integers from 1 to 10000"),
        (("impala", "--envs", "2147483648"), "--envs expects integers from 1 to 4095"),
        (("impala", "--seed", "-1"), "--seed expects an integer of at least 0"),
        (("impala", "--nodes", "2"), "--machine FILE.toml"),
        (("impala", "--out", "plan.png"), "ends in .svg"),
        (("impala", "--costs", "nowhere.json"), "no file of costs 'nowhere.json'"),
        (("impala", "--machine", "nowhere.toml"), "no machine file 'nowhere.toml'"),
        (("impala", "--targt", "3"), "did you mean"),
    ],
)
def test_a_wrong_command_is_refused_in_a_sentence(
    args: tuple[str, ...],
    told: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *args)
    assert code == 2 and told in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "args, told",
    [
        (("dqn",), "has the costs of the system impala, not of dqn"),
        (("impala", "--env", "Acrobot-v1"), "of the environment CartPole-v1, not of Acrobot-v1"),
        (("impala", "--hidden", "8,8"), "another network"),
        (("impala", "--target", "1e12"), "no size reaches 1,000,000,000,000 steps per second: the most is"),
    ],
)
def test_costs_that_do_not_fit_and_targets_that_nothing_reaches_are_refused(
    args: tuple[str, ...], told: str, impala: Costs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "costs.json"
    impala.write(path)
    code, _, err = run(capsys, *args, "--costs", str(path), "--preset", "none", "--actors", "1,2", "--envs", "2")
    assert code == 2 and told in err.splitlines()[-1]


FIRST_COSTS = ("roles", "actor", 0, "behaviours", 0)
FIRST_OP = (*FIRST_COSTS, "cycle", 0, "ops", 0)


@pytest.mark.parametrize(
    "where, value",
    [
        (("system",), ["impala"]), (("processor",), 5), (("cores",), 10**30), (("busy",), math.nan), (("busy",), -1.0),
        (("network", "params/value.linear.bias"), ["many"]), (("roles", "actor"), []), (("roles",), "none"),
        ((*FIRST_COSTS, "cycle"), []), ((*FIRST_COSTS, "insert"), [-1.0]), ((*FIRST_COSTS, "regular"), "no"),
        ((*FIRST_COSTS, "steps_per_update"), math.inf), ((*FIRST_COSTS, "preempt"), [0.5, 0.5]),
        ((*FIRST_OP, "busy"), [1e300]), ((*FIRST_OP, "busy"), [math.nan]), ((*FIRST_OP, "do"), "__init__"),
        ((*FIRST_OP, "cores"), 10**12), ((*FIRST_OP, "idle"), None), (("strange",), 1),
        ((*FIRST_COSTS, "cycle"), [{"ops": [], "counts": {}}]),
    ],
)  # fmt: skip
def test_costs_of_a_stranger_are_refused_in_a_sentence(
    where: tuple[Any, ...], value: Any, impala: Costs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "costs.json"
    impala.write(path)
    facts = json.loads(path.read_text())
    inner = facts
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    path.write_text(json.dumps(facts))
    code, _, err = run(capsys, "impala", "--costs", str(path), "--preset", "none", "--actors", "1", "--envs", "2")
    assert code == 2 and "is not a file of costs" in err and len(err.splitlines()) == 1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("flag", ["--costs", "--machine"])
def test_no_plan_waits_for_a_pipe_or_reads_what_is_nested_without_end(
    flag: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "given"
    for make in (
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: path.write_text("x = " * (flag != "--costs") + "[" * 99_999),
    ):
        make()
        code, _, err = run(capsys, "impala", "--env", "CartPole-v1", flag, str(path))
        assert code == 2 and len(err.splitlines()) == 1 and len(err) < 600
        path.rmdir() if path.is_dir() else path.unlink()


def test_phases_of_a_strangers_costs_are_shown_as_text(
    impala: Costs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, picture = tmp_path / "costs.json", tmp_path / "plan.svg"
    impala.write(path)
    facts = json.loads(path.read_text())
    for sized in facts["roles"]["learner"]:
        for op in (op for one in sized["behaviours"] for step in one["cycle"] for op in step["ops"]):
            if op["do"] == "work":
                op |= {"phases": {"[/x]\x1b[2J<b>\ud800": 1.0}, "busy": [1.0]}
    path.write_text(json.dumps(facts))
    words = ("--costs", str(path), "--preset", "none", "--actors", "1", "--envs", "2", "--out", str(picture))
    code, out, err = run(capsys, "impala", *words)
    assert code == 0 and "[/x]" in out + err and not {"\x1b", "\ud800"} & set(out + err), (out, err)
    ET.fromstring(picture.read_text())


def test_a_plan_is_told_as_json_and_drawn(impala: Costs, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, picture = tmp_path / "costs.json", tmp_path / "plan.svg"
    impala.write(path)
    code, out, _ = run(
        capsys, "impala", "--costs", str(path), "--preset", "none", "--actors", "1,2", "--learners", "1,2",
        "--envs", "2", "--json", "--out", str(picture),
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert [(row["actors"], row["learners"]) for row in found["rows"]] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert "must be no more than actors" in found["rows"][2]["why"]
    assert "wired otherwise" in found["rows"][3]["why"]
    assert found["rows"][0]["steps_per_second"] > 0
    assert {"shares", "fill", "lag", "bottleneck", "memory"} <= found["rows"][0].keys()
    limit = (
        found["rows"][0]["bottleneck"].partition("-bound")[0].partition(" (")[0]
    )  # who that is depends on the machine
    assert limit and picture.read_text().startswith("<svg") and f">{limit}<" in picture.read_text()


def test_a_plan_with_an_inference_server_is_refused() -> None:
    with pytest.raises(UsageError, match="not a server: give --inference actor"):
        command(["impala", "--env", "CartPole-v1", "--inference", "server"])


@pytest.mark.parametrize(
    "system, traffic, told",
    [
        ("gorila", "params", "--shards"),
        ("impala", "params", "fewer nodes with more cores each"),
        ("apex-dqn", "replay", "--replay-shards"),
        ("impala", "queue", "--learners"),
        ("recurrent-ppo", "queue", "smaller observations"),
        ("dd-ppo", "reduce", "fewer nodes with more cores each"),
    ],
)
def test_what_is_advised_of_a_full_link_follows_from_what_it_carries(system: str, traffic: str, told: str) -> None:
    figures = Figures(1.0, {}, {}, {}, {}, {}, (9.5,), (0.0,), (0.5,), (0.95,), traffic)
    assert told in advice(Row(Point(1), figures), systems.load(system).Config())


def test_processes_of_a_learner_on_another_machine_are_asked_for(
    impala: Costs, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They follow from the cores of the machine that plans, unless they are given."""
    monkeypatch.setattr(systems.load("impala").Config, "shares_gradient", True)
    (costs, machine) = tmp_path / "costs.json", tmp_path / "machine.toml"
    impala.write(costs)
    machine.write_text(MACHINE)
    given = ("impala", "--costs", str(costs), "--preset", "none", "--actors", "1", "--envs", "2")
    told = [
        run(capsys, *given, *more)[2]
        for more in ((), ("--machine", str(machine)), ("--machine", str(machine), "--learner-processes", "1"))
    ]
    assert ["--learner-processes N" in err for err in told] == [False, True, False]


@pytest.mark.parametrize(
    "system, told",
    [("impala", "--learners or a faster device"), ("recurrent-ppo", "--learner-processes or a faster device")],
)
def test_a_busy_learner_is_told_only_the_switches_that_its_system_has(system: str, told: str) -> None:
    figures = Figures(1.0, {}, {"learner": {"learn": 1.0}}, {}, {}, {}, (0.0,), (0.0,), (0.5,), (0.0,), "")
    assert advice(Row(Point(1), figures), systems.load(system).Config()) == told


def test_where_ranks_wait_for_their_sum_fewer_nodes_or_less_latency_are_advised() -> None:
    shares = {"rank": {"wait:gradients": 0.94, "wait:stop": 0.02, "learn": 0.03, "env": 0.01}}
    figures = Figures(1.0, {}, shares, {}, {}, {}, (0.0,), (0.0,), (0.5,), (0.0,), "")
    assert figures.bottleneck() == "waiting (rank: 94% of its time for the channel 'gradients')"
    assert "links with less latency" in advice(Row(Point(1), figures), systems.load("dd-ppo").Config())
    assert replace(figures, shares={"rank": {"start": 1.0}}).bottleneck() == "not known"
