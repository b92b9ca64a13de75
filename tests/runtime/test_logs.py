"""One log per role, and the run's: what processes print, tracebacks, restarts; bounded, and out of the display."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import api
from shoal.local.runtime import LocalRuntime
from shoal.program import Program
from shoal.records import logs
from shoal.records.run_dir import RunDirectory
from shoal.runtime.launch import Launch, Stop


class Talker:
    """Prints, by Python and behind its back; its first life ends in an exception. Each makes 30 steps, so that a run of
    50 needs a second life of both."""

    def __init__(self, ctx: api.Context) -> None:
        self.ctx, self.made = ctx, 0
        print("hello from Python", flush=True)
        os.write(1, b"hello from C\n")
        os.write(2, b"a library complains\n")

    def step(self) -> None:
        if self.made == 30:
            time.sleep(0.01)
            return
        self.made += 1
        self.ctx.metrics.count("env_steps")
        if self.ctx.generation == 0:
            raise ValueError("the first life is over")


def talk(tmp_path: Path, on_failure: Any) -> Path:
    program = Program("talk")
    program.role("talker", Talker, replicas=2, on_failure=on_failure)
    directory = RunDirectory(tmp_path / "r")
    try:
        LocalRuntime().launch(program, Launch(seed=5, stop=Stop(steps=50), run_dir=directory.path))
    finally:
        directory.close()
    return directory.path / "logs"


def test_what_a_role_prints_is_in_its_log_and_nowhere_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = talk(tmp_path, "restart")
    assert sorted(p.name for p in logs.iterdir()) == ["run.log", "talker-0.log", "talker-1.log"]
    text = (logs / "talker-1.log").read_text()
    for part in ("talker[1] starts: generation 0, seed", "hello from Python", "hello from C", "a library complains"):
        assert part in text
    assert "Traceback (most recent call last)" in text and "ValueError: the first life is over" in text
    assert "generation 1" in text
    run = (logs / "run.log").read_text()
    assert "talker[1] failed, restarting" in run and "in step" in run and "the first life is over" in run
    assert "ended: steps" in run
    shown = capfd.readouterr()
    assert "hello" not in shown.out + shown.err and "complains" not in shown.err
    assert "talker[1] failed, restarting" in shown.err and shown.err.count("the first life is over") == 2  # once, told
    assert "ended: steps" not in shown.err


def test_a_failure_is_in_the_logs_in_full(tmp_path: Path) -> None:
    with pytest.raises(api.RoleFailed):
        talk(tmp_path, "stop")
    run = (tmp_path / "r" / "logs" / "run.log").read_text()
    assert "ERROR" in run and 'raise ValueError("the first life is over")' in run


def test_a_log_stays_small(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from shoal.records import logs
logs.LIMIT = 10_000
log = logs.RoleLog(Path(sys.argv[1]), "actor", 0)
for n in range(5_000):
    os.write(1, b"line %d\\n" % n)
    log.trim()
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    text = (tmp_path / "logs" / "actor-0.log").read_text()
    assert len(text) <= 10_100 and text.endswith("line 4999\n") and "is left out" in text


def test_the_runs_log_is_rotated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LIMIT", 10_000)
    log = logs.RunLog(tmp_path)
    try:
        for n in range(1_000):
            logging.getLogger("shoal").info("line %d", n)
    finally:
        log.close()
    files = {p.name: p.read_text() for p in (tmp_path / "logs").iterdir()}
    assert files.keys() == {"run.log", "run.log.1"} and all(len(text) <= 10_000 for text in files.values())
    assert files["run.log"].endswith("line 999\n")
    assert len(re.findall("line", "".join(files.values()))) > 200, "the older file is kept too"


def test_a_system_leaves_a_log_per_role(tmp_path: Path) -> None:
    run = shoal.train(
        "impala", env="CartPole-v1", preset="none", actors=2, envs=2, hidden=(8,), steps=200, run_dir=tmp_path / "r"
    )
    names = {p.name for p in (run.path / "logs").iterdir()}
    assert names == {"run.log", "actor-0.log", "actor-1.log", "learner-0.log"}
    assert (run.path / "logs").stat().st_mode & 0o077 == 0
