"""Roles that the run can do without: their failures, their share of the processors, and when they are due."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from programs import pipeline

from shoal import api
from shoal.local.pace import BACKGROUND_CPU_SHARE, NICE
from shoal.local.runtime import LocalRuntime
from shoal.runtime.launch import Launch, Stop


class Extra:
    """Beside the pipeline. ``burn``: seconds of processor time a step; ``fail``: raise, or die by a signal."""

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
            self.told.write_text(f"{self.ctx.steps()} {os.nice(0)} {time.process_time()}")
        end = time.process_time() + self.burn
        while time.process_time() < end:
            pass


def with_extra(**options: Any) -> Any:
    program = pipeline()
    program.role("extra", partial(Extra, **options), on_failure="ignore", background=True)
    return program


@pytest.mark.parametrize("fail", ["raise", "kill"])
def test_a_role_that_keeps_failing_does_not_stop_the_run(fail: str, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def lost() -> list[str]:
        return [r.getMessage() for r in caplog.records if "goes on without it" in r.getMessage()]

    def interrupt() -> None:
        """End the run a second after the role was given up."""
        while not ended.wait(0.1):
            if lost():
                if not ended.wait(1.0):
                    os.kill(os.getpid(), signal.SIGINT)
                return

    threading.Thread(target=interrupt, daemon=True).start()
    runtime = LocalRuntime(backoff=0.01, still_born=2)
    with caplog.at_level(logging.WARNING, "shoal.runtime"):
        report = runtime.launch(with_extra(fail=fail), Launch(seed=0, stop=Stop(seconds=60)))
    ended.set()
    assert report.reason == "interrupted" and report.updates > 100
    (told,) = lost()
    assert "extra[0]" in told and ("evaluation is broken" if fail == "raise" else "SIGKILL") in told


def test_a_role_in_the_background_takes_no_more_than_its_share(tmp_path: Path) -> None:
    told = tmp_path / "told"
    started = time.monotonic()
    LocalRuntime().launch(with_extra(burn=0.01, told=told), Launch(seed=0, stop=Stop(seconds=8)))
    _, nice, spent = told.read_text().split()
    assert int(nice) >= min(os.nice(0) + NICE, 19)
    cores = len(os.sched_getaffinity(0))
    allowed = BACKGROUND_CPU_SHARE * cores * (time.monotonic() - started) + 0.5  # what it may save up, and its start
    assert 0.05 < float(spent) < allowed + 1.0


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
