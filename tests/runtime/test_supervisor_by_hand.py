"""What the supervisor starts replicas with, when it ends a run, and what it puts into a checkpoint, by hand."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.local import checkpoint_commit as commits, processes, supervisor as supervisor_module
from shoal.local.checkpoint_commit import Checkpointer
from shoal.local.checkpoint_save import FINAL_CHECKPOINT
from shoal.local.failures import Failures, Patience
from shoal.local.supervisor import LAUNCH, Supervisor
from shoal.metering.aggregator import Aggregator
from shoal.program import Program
from shoal.records.checkpoint import SaveOptions
from shoal.runtime import seeds
from shoal.runtime.launch import Launch, Stop
from shoal.shm import layout
from shoal.shm.arena import Arena
from shoal.shm.layout import CHECKPOINT, LINE, MAKING, STOP


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


def toy() -> Program:
    p = Program("toy")
    p.role("actor", lambda ctx: None, replicas=2, on_failure="restart")
    p.role("learner", lambda ctx: None, on_failure="restore")
    return p


@pytest.fixture
def supervisors() -> Iterator[Any]:
    made: list[Supervisor] = []

    def make(**launch: Any) -> Any:
        program = toy()
        made.append(Supervisor(program, layout.plan(program), Launch(**launch), Failures(Patience()), 1.0, 60.0))
        return made[-1]

    yield make
    for one in made:
        one._news.close()
        os.close(one._wake_read)
        os.close(one._wake_write)
        one._arena.close()


def test_no_two_launches_share_a_generation_or_a_seed(
    supervisors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(processes, "start", lambda target, args, name: started.append((args[2], name)))
    one = supervisors(saving=SaveOptions(tmp_path, launch=3), spans=17, seed=5, stop=Stop(steps=10, updates=7))
    for each in one._replicas:
        one._start(each, None)
    jobs = [job for job, _ in started]
    assert [name for _, name in started] == ["shoal-actor[0]", "shoal-actor[1]", "shoal-learner[0]"]
    assert [job.generation for job in jobs] == [3 * LAUNCH] * 3
    assert [job.life for job in jobs] == [3 * seeds.LAUNCH + n for n in range(3)]
    assert {(job.spans, job.seed, job.limits) for job in jobs} == {(17, 5, (10, 7))}
    assert [job.saving is None for job in jobs] == [True, True, False]
    assert [r.generation for r in supervisors()._replicas] == [0] * 3


def test_one_that_failed_goes_on_from_the_newest_checkpoint_or_that_of_the_launch(
    supervisors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = supervisors(saving=SaveOptions(tmp_path), resume=SimpleNamespace(name="of the launch"))
    learner, found = one._replicas[2], [None, "newest"]
    monkeypatch.setattr(supervisor_module, "newest_with", lambda folder, name: found[0])
    assert one._newest(learner).name == "of the launch"
    found.reverse()
    assert one._newest(learner) == "newest"


def test_a_run_ends_by_the_limit_that_was_reached(supervisors: Any) -> None:
    one = supervisors(stop=Stop(steps=100, updates=7))
    words = one._arena.words
    at = [one._status(r) for r in one._replicas]
    assert one._ended() == ""
    words[STOP // 8] = 1
    for place, (steps, updates, making) in zip(at, ((60, 3, 5), (40, 3, 6), (0, 0, 0)), strict=True):
        words[place + 1], words[place + 2], words[place + MAKING] = steps, updates, making
    assert one._ended() == "steps"
    shown: list[Any] = []
    one._told = [SimpleNamespace(update=shown.append)]
    one._observe()
    assert shown[0].making == 11
    words[at[2] + 2] = 1
    assert one._ended() == "updates"


def test_it_sleeps_until_something_is_due(supervisors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(supervisor_module, "time", clock)
    one = supervisors(stop=Stop(seconds=60.0))
    one._aggregator = SimpleNamespace(seconds=0.0)
    assert one._timeout() == 1.0
    one._aggregator.seconds = 59.75
    assert one._timeout() == 0.25
    one._replicas[1].restart_at = clock.now + 0.125
    assert one._timeout() == 0.125
    one._aggregator.seconds = 61.0
    assert one._timeout() == 0.0


def test_a_restart_is_counted_and_saved_again(supervisors: Any) -> None:
    one, again = supervisors(), list[str]()
    actor = one._replicas[0]
    actor.reap, actor.cause = lambda: 1, "cause"
    one._checkpoints = SimpleNamespace(again=again.append)
    one._bury(actor)
    assert (one._aggregator.restarts, again) == (1, ["actor[0]"]) and actor.restart_at is not None


def test_rows_of_a_long_run_are_further_apart_and_a_new_life_has_not_stepped(
    supervisors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look each second: a row each half second at first, and each 7,200th of the time later."""
    clock, rows = Clock(), list[float]()
    monkeypatch.setattr(supervisor_module, "time", clock)
    one = supervisors(interval=0.5)
    actor, seen = one._replicas[0], list[tuple[int, int]]()
    for each in one._replicas:
        each.start = lambda: None
    actor.start = lambda: seen.append((actor.generation, int(one._arena.words[one._status(actor)])))
    one._look = one._publish = lambda: None
    one._observe = lambda: rows.append(clock.now - 1_000.0)
    looks = itertools.count()

    def wait(seconds: float) -> list[Any]:
        clock.now += 36_000.0 if (number := next(looks)) == 3 else 1.0
        if number == 1:
            one._arena.words[one._status(actor)] = 9
            actor.restart_at = clock.now
        elif number == 2:
            actor.restart_at = None
        elif number == 20:
            one._interrupts.reason = "interrupted"
        return []

    one._wait = wait
    assert one._supervise() == "interrupted"
    assert seen == [(0, 0), (1, 0)], "the new life begins at no step"
    assert rows[:4] == [1.0, 2.0, 3.0, 36_003.0] and [b - a for a, b in itertools.pairwise(rows[3:])] == [6.0] * 2


# ----------------------------------------------------------------------------------------- checkpoints
class Checkpoints:
    """A Checkpointer of two savers beside a role that is not saved; what it commits and asks for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, every: float) -> None:
        self.clock, self.committed, self.told, self.rung = Clock(), list[Any](), list[str](), 0
        monkeypatch.setattr(commits, "time", self.clock)
        self.program = Program("toy")
        self.program.role("actor", lambda ctx: None, replicas=2, on_failure="restart")
        self.program.role("learner", lambda ctx: None, replicas=2, on_failure="stop")
        self.plan = layout.plan(self.program)
        self.arena = cast(Arena, SimpleNamespace(words=memoryview(bytearray(8192)).cast("q")))
        records = commits.checkpoint
        monkeypatch.setattr(records, "commit", lambda folder, saving, files, facts: self.committed.append(facts))
        monkeypatch.setattr(records, "add", lambda folder, parts: {})
        monkeypatch.setattr(commits.state_files, "pack", self.packed.append)
        monkeypatch.setattr(commits.log, "warning", lambda *args: self.told.append(args[0] % args[1:]))
        self.made = Checkpointer(
            SaveOptions(folder, every=every), self.program, self.plan, self.arena, Aggregator(), self.ring, dict
        )

    packed: list[Any] = []  # noqa: RUF012 - of one test at a time

    def ring(self) -> None:
        self.rung += 1

    def count(self, role: str, index: int, *numbers: int) -> None:
        at = self.plan.status[role] // 8 + index * LINE
        for column, number in enumerate(numbers, 1):
            self.arena.words[at + column] = number

    def hear(self, index: int, kind: str, answer: Any, number: int = FINAL_CHECKPOINT + 1) -> None:
        self.made.hear(f"learner[{index}]", kind, (number, answer))


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Checkpoints:
    Checkpoints.packed.clear()
    (tmp_path / "checkpoints").mkdir()
    return Checkpoints(monkeypatch, tmp_path / "checkpoints", every=45.0)


def test_a_checkpoint_is_asked_for_when_it_is_due(checkpoints: Checkpoints) -> None:
    made, clock = checkpoints.made, checkpoints.clock
    assert made.timeout() == 45.0
    clock.now += 44.0
    made.look()
    assert not checkpoints.rung
    clock.now += 1.0
    made.look()
    assert checkpoints.rung == 1 and checkpoints.arena.words[CHECKPOINT // 8] == FINAL_CHECKPOINT + 1
    clock.now += 10.0
    for kind, answer in (("snapshot", [0, 0, 0]), ("saved", {})):
        for index in (0, 1):
            checkpoints.hear(index, kind, answer)
    assert len(checkpoints.committed) == 1 and made.timeout() == 45.0, "from the end of the one before"


def test_a_checkpoint_counts_what_its_savers_had_counted_when_they_were_saved(checkpoints: Checkpoints) -> None:
    checkpoints.count("actor", 0, 10, 1, 3)
    checkpoints.count("actor", 1, 20, 0, 4)
    checkpoints.count("learner", 0, 0, 5, 0)
    checkpoints.count("learner", 1, 0, 6, 0)
    checkpoints.clock.now += 45.0
    checkpoints.made.look()
    checkpoints.hear(1, "snapshot", [0, 7, 0])
    checkpoints.count("actor", 0, 12, 1, 3)
    checkpoints.hear(0, "snapshot", [0, 5, 0])
    checkpoints.count("learner", 0, 0, 50, 0)
    for index in (0, 1):
        checkpoints.hear(index, "saved", {})
    (facts,), (state,) = checkpoints.committed, checkpoints.packed
    assert (facts["steps"], facts["updates"]) == (32, 13)
    assert state["counts"] == {"actor": [[12, 1, 3], [20, 0, 4]], "learner": [[0, 5, 0], [0, 7, 0]]}
    assert state["aggregator"]["counts"] == {"env_steps": 32, "updates": 13, "actions": 7}


def test_another_life_saves_again_before_a_checkpoint_is_whole(checkpoints: Checkpoints) -> None:
    checkpoints.clock.now += 45.0
    checkpoints.made.look()
    for index in (0, 1):
        checkpoints.hear(index, "snapshot", [0, 0, 0])
    checkpoints.hear(0, "saved", {})
    checkpoints.made.again("learner[0]")
    checkpoints.hear(1, "saved", {})
    assert not checkpoints.committed
    checkpoints.hear(0, "saved", {})
    assert len(checkpoints.committed) == 1


def test_what_fails_is_told_once_until_one_succeeds(checkpoints: Checkpoints) -> None:
    for number, error in enumerate(("the disk is full", "", "it is full again", "and still", ""), FINAL_CHECKPOINT + 1):
        checkpoints.clock.now += 45.0
        checkpoints.made.look()
        for index in (0, 1):
            checkpoints.hear(index, "snapshot", [0, 0, 0], number)
            checkpoints.hear(index, "saved", {"error": "" if index else error}, number)
    assert [line.partition("steps: ")[2].partition(" (")[0] for line in checkpoints.told] == [
        "the disk is full", "it is full again",
    ]  # fmt: skip
    assert len(checkpoints.committed) == 2


def test_a_run_goes_on_with_what_each_had_counted(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"actor": [[12, 1, 3], [20, 0, 4]], "learner": [[0, 5, 0], [0, 7, 0]]}
    source: Any = SimpleNamespace(
        check_fits=lambda program: None, fitting=lambda part: contextlib.nullcontext(),
        read=lambda part: {"aggregator": Aggregator().state_dict(), "counts": counts},
    )  # fmt: skip
    commits.resume(source, checkpoints.program, checkpoints.plan, checkpoints.arena, Aggregator())
    assert commits.counted(checkpoints.arena, checkpoints.plan) == counts
    at = checkpoints.plan.status["actor"] // 8
    assert checkpoints.arena.words[at : at + 4].tolist() == [0, 12, 1, 3], "no life of this launch has stepped"


def test_each_channel_between_equals_is_saved_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_saved", lambda group, arena: {group: 1})
    assert commits.groups_state(SimpleNamespace(groups={"a": "x", "b": "y"}), None) == {"x": 1, "y": 1}  # type: ignore[arg-type]
