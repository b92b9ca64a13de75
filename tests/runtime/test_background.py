"""Roles that the run can do without: their failures, their share of the processors, and when they are due."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from programs import Source, pipeline

from shoal import api
from shoal.local import pace
from shoal.local.pace import NICE, Pace
from shoal.local.runtime import LocalRuntime
from shoal.machine import cores
from shoal.metering.aggregator import Snapshot
from shoal.records.atomic_write import write_atomic
from shoal.runtime.launch import Launch, Stop


class Calm(Source):
    """Leaves the processors to others."""

    def step(self) -> None:
        time.sleep(0.002)
        super().step()


class Extra:
    """Beside the pipeline. ``burn``: seconds of processor time a step; ``fail``: raise, or die by a signal. ``told``
    gets the run's steps, and its own niceness."""

    def __init__(self, ctx: api.Context, burn: float = 0.0, fail: str = "", due_at: int = 0, told: Path | None = None):
        self.ctx, self.burn, self.fail, self.due_at, self.told = ctx, burn, fail, due_at, told

    def due(self) -> bool:
        return self.ctx.steps() >= self.due_at

    def step(self) -> None:
        if self.fail == "raise":
            raise ValueError("evaluation is broken")
        if self.fail == "kill":
            os.kill(os.getpid(), 9)
        if self.told is not None:
            write_atomic(self.told, f"{self.ctx.steps()} {os.nice(0)}")
        end = time.process_time() + self.burn
        while time.process_time() < end:
            pass


class Poor(Extra):
    """Has next to no share of the processors; ``told`` gets how often it might step, and how often not, as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        pace.BACKGROUND_CPU_SHARE = 1e-9
        ready, answers = Pace.ready, []

        def counted(own: Pace) -> bool:
            answers.append(ready(own))
            assert self.told is not None
            write_atomic(self.told, f"{os.nice(0)} {answers.count(True)} {answers.count(False)}")
            return answers[-1]

        Pace.ready = counted  # type: ignore[method-assign, assignment]  # of this process, which ends with it

    def step(self) -> None:
        end = time.process_time() + self.burn
        while time.process_time() < end:
            pass


def with_extra(make: Any = Extra, **options: Any) -> Any:
    program = pipeline(Calm)
    program.role("extra", partial(make, **options), on_failure="ignore", background=True)
    return program


class UntilUpdates:
    """Asks for the end of a run that has made a hundred updates since ``begun``."""

    def __init__(self, begun: Callable[[], bool]) -> None:
        self.begun, self.updates, self.enough = begun, 0, False

    def update(self, snapshot: Snapshot) -> None:
        self.updates = self.updates or (snapshot.updates if self.begun() else 0)
        self.enough = bool(self.updates) and snapshot.updates >= self.updates + 100


@pytest.mark.parametrize("fail", ["raise", "kill"])
def test_a_role_that_keeps_failing_does_not_stop_the_run(fail: str, caplog: pytest.LogCaptureFixture) -> None:
    def lost() -> list[str]:
        return [r.getMessage() for r in caplog.records if "goes on without it" in r.getMessage()]

    going = UntilUpdates(lambda: bool(lost()))
    runtime = LocalRuntime(backoff=0.01, still_born=2)
    stop = Stop(seconds=60, asked=lambda: going.enough)
    with caplog.at_level(logging.WARNING, "shoal.runtime"):
        report = runtime.launch(with_extra(fail=fail), Launch(seed=0, stop=stop, observers=[going], interval=0.1))
    assert report.reason == "observer" and report.updates > 100
    (told,) = lost()
    assert "extra[0]" in told and ("evaluation is broken" if fail == "raise" else "SIGKILL") in told


def test_a_role_in_the_background_takes_no_more_than_its_share_and_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes when it works and when it rests: an hour of nothing, and one of always something to do."""
    clock = SimpleNamespace(spent=5.0, now=100.0)
    told = SimpleNamespace(process_time=lambda: clock.spent, monotonic=lambda: clock.now)
    monkeypatch.setattr(pace, "time", told)

    def rest(seconds: float) -> None:
        clock.now += seconds

    own = Pace(SimpleNamespace(rest=rest), SimpleNamespace(), background=True)  # type: ignore[arg-type]
    clock.now += 3600.0  # for which nothing is saved up
    while clock.now < 100 + 2 * 3600:
        if own.ready():
            clock.spent += 0.01
            clock.now += 0.02  # a processor that it shares
    share = pace.BACKGROUND_CPU_SHARE * cores() * (clock.now - 100 - 3600)
    assert abs(clock.spent - 5.0 - share) <= 2 * pace.SAVED + 0.01, "what it saves, or owes, and a step"


def test_a_process_of_a_role_in_the_background_rests_when_it_has_had_its_share(tmp_path: Path) -> None:
    told = tmp_path / "told"

    def found() -> list[int]:
        return [int(n) for n in told.read_text().split()] if told.exists() else [0, 0, 0]

    program = with_extra(Poor, burn=3 * pace.SAVED, told=told)
    stop = Stop(seconds=60, asked=lambda: found()[1] > 1 or found()[2] > 3)
    assert LocalRuntime().launch(program, Launch(seed=0, stop=stop, interval=0.1)).reason == "observer"
    nice, steps, rests = found()
    assert nice >= min(os.nice(0) + NICE, 19) and steps == 1 and rests > 3


@pytest.mark.parametrize("runtime", ["local", "serial"])
def test_a_role_is_stepped_when_it_is_due(runtime: str, tmp_path: Path) -> None:
    from shoal.run.runtimes import make_runtime

    launcher: Any = make_runtime(runtime, hang_timeout=60.0)
    told = tmp_path / "told"
    program = with_extra(due_at=500, told=told)
    if runtime == "serial":
        from shoal.program import Program

        program = Program("test", program.channels, program.roles)
    launcher.launch(program, Launch(seed=0, stop=Stop(steps=400)))
    assert not told.exists()

    class UntilTold:
        def update(self, snapshot: Any) -> None:
            if told.exists():
                os.kill(os.getpid(), signal.SIGINT)

    launcher.launch(program, Launch(seed=0, stop=Stop(seconds=60), observers=[UntilTold()]))
    assert int(told.read_text().split()[0]) >= 500
