"""Runs of the serial runtime, turn by turn: who steps, and what is told and saved when, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from turns import Idle, Rows, Turns, program, run, turns

from shoal.api import Field
from shoal.metering.recorder import OTHER
from shoal.program import Channel, Program
from shoal.records.checkpoint import SaveOptions
from shoal.serial import runtime

pytestmark = pytest.mark.timeout(30)


# -------------------------------------------------------------------------------------- who steps
def test_a_role_steps_when_it_has_something_to_do_and_need_not_wait() -> None:
    order: list[str] = []

    class Choosy(Turns):
        def due(self) -> bool:
            return len(order) > 2

        def would_wait(self) -> bool:
            return len(order) > 5

    def note(role: Turns) -> None:
        order.append(role.ctx.role)

    run(program(turns(note, 1), turns(note, 0, Choosy)), steps=5)
    assert order == ["a", "a", "a", "b", "a", "b", "a"]


@pytest.mark.parametrize("cut_short", ["a", "b"])
def test_the_end_of_a_sweep_that_was_cut_short_comes_first(cut_short: str) -> None:
    order: list[str] = []

    class Long(Turns):
        @property
        def unfinished(self) -> bool:
            return self.ctx.role == cut_short and not self.turns

    def note(role: Turns) -> None:
        order.append(role.ctx.role)

    run(program(turns(note, 1, Long), turns(note, 1, Long)), steps=5)
    assert order == [cut_short, "a", "b", "a", "b"]


def test_a_role_is_charged_for_its_own_turns_alone() -> None:
    roles: dict[str, Turns] = {}
    found: list[tuple[str, str]] = []

    def look(role: Turns) -> None:
        roles[role.ctx.role] = role
        for name, other in roles.items():
            recorder: Any = other.ctx.metrics
            before = recorder.enter("look")
            recorder.enter(before)
            found.append((role.ctx.role + name, before))

    run(program(turns(look, 1), turns(look)), steps=2)
    turn, own = "wait:turn", OTHER
    assert found == [("aa", own), ("ba", turn), ("bb", own), ("aa", own), ("ab", turn), ("ba", turn), ("bb", own)]


def test_as_many_threads_compute_as_the_role_that_asks_for_most() -> None:
    seen, before = list[int](), torch.get_num_threads()
    wired = Program("test")
    for name, threads in (("a", 1), ("b", 3), ("c", 2)):
        wired.role(name, turns(lambda role: seen.append(torch.get_num_threads()), 1), threads=threads)
    run(wired, steps=3)
    assert seen == [3, 3, 3] and torch.get_num_threads() == before


# ------------------------------------------------------------------------- what is told and saved when
@pytest.mark.parametrize(
    "each, steps, rows",
    [(400, 2_400, [1_200, 2_000, 2_400]), (400, 3_000, [1_200, 2_000, 3_200]), (500, 2_000, [1_000, 2_000])],
)
def test_a_row_is_due_whenever_another_thousand_steps_is_full_and_at_the_end(
    each: int, steps: int, rows: list[int]
) -> None:
    observer = Rows()
    run(program(turns(each=each)), steps=steps, observers=[observer])
    assert observer.seen == rows


def test_no_row_is_told_in_a_sweep_that_was_cut_short() -> None:
    class Long(Turns):
        @property
        def unfinished(self) -> bool:
            return self.turns in (1, 2)

    observer = Rows()
    run(program(turns(each=1_000, kind=Long)), steps=4_000, observers=[observer])
    assert observer.seen == [3_000, 4_000]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that shows what its only number is."""
    now = [0.0]
    monkeypatch.setattr(runtime, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_display_is_told_at_its_interval_and_at_the_end(clock: list[float]) -> None:
    def quarter(role: Turns) -> None:
        clock[0] += 0.25

    display = Rows(lambda snapshot: (clock[0], snapshot.steps))
    run(program(turns(quarter, 1)), steps=6, display=display, interval=0.5)
    assert display.seen == [(0.5, 2), (1.0, 4), (1.5, 6), (1.5, 6)]


@pytest.mark.parametrize("every, at", [(0.0, [1.75]), (0.5, [0.5, 1.0, 1.5, 1.75]), (0.75, [0.75, 1.5, 1.75])])
def test_a_checkpoint_is_due_so_long_after_the_one_before_and_at_the_end(
    every: float, at: list[float], clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[float] = []

    def quarter(role: Turns) -> None:
        clock[0] += 0.25

    monkeypatch.setattr(runtime.checkpoint, "save", lambda *given: saved.append(clock[0]))
    run(program(turns(quarter, 1)), steps=7, saving=SaveOptions(tmp_path / "checkpoints", every=every))
    assert saved == at


def test_a_row_tells_how_full_queues_are_divided_or_not() -> None:
    wired = Program("test")
    whole = wired.channel(Channel("whole", "queue", {"x": Field((4,))}, 4))
    cut = wired.channel(Channel("cut", "queue", {"x": Field((4,))}, 2, divided=1))

    def put(role: Turns) -> None:
        if role.turns == 0:
            role.ends["whole"].put({"x": np.zeros(4, np.float32)})
            role.ends["cut"].put({"x": np.zeros(4, np.float32)}, [0, 0])

    wired.role("a", turns(put, 1_000), whole=whole.writer(), cut=cut.writer())
    wired.role("b", turns(kind=Idle), replicas=2, cut=cut.reader())
    wired.role("c", turns(kind=Idle), whole=whole.reader())
    observer = Rows(lambda snapshot: snapshot.fill)
    run(wired, steps=1_000, observers=[observer])
    assert observer.seen == [{"whole": 0.25, "cut": 0.5}]


@pytest.mark.parametrize("spans", [0, 8])
def test_phases_are_kept_with_their_times_where_a_profile_asks_for_them(spans: int) -> None:
    observer = Rows(lambda snapshot: bool(snapshot.spans))
    run(program(turns(each=1_000)), steps=1_000, observers=[observer], spans=spans)
    assert observer.seen == [spans > 0]
