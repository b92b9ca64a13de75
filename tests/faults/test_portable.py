"""Runs without what only Linux has (``tests/portable``): processes, shared memory and checkpoints all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = {  # system -> flags that keep it small
    "impala": "--hidden 8 --unroll 8 --envs 4 --actors 2 --steps 4000",
    "es": "--hidden 8 --pairs 16 --envs 4 --actors 2 --steps 4000 --noise-table 100000",
    "recurrent-ppo": "--hidden 8 --unroll 16 --envs 4 --actors 2 --steps 4000",
    "apex-dqn": "--hidden 8 --unroll 8 --envs 4 --actors 2 --min-replay 100 --batch 8 --steps 2000",
    "gorila": "--hidden 8 --unroll 8 --envs 4 --actors 2 --min-replay 100 --batch 8 --steps 2000",
}


def portable(code: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "tests" / "portable"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


def test_the_imitation_takes_it_away(tmp_path: Path) -> None:
    code = "import os; from shoal.shm import futex; from shoal.machine import cores; " \
        "print(hasattr(os, 'memfd_create'), futex.WEAK, os.path.exists('/proc/self'), cores() > 0)"  # fmt: skip
    assert portable(["-c", code], tmp_path).stdout.split() == ["False", "True", "False", "True"]


@pytest.mark.parametrize("system", RUNS)
def test_trains_and_goes_on_without_what_linux_has(system: str, tmp_path: Path) -> None:
    flags = ["--env", "CartPole-v1", "--preset", "none", "--run-dir", "r", "--quiet", *RUNS[system].split()]
    done = portable(["-W", "error", "-m", "shoal", "train", system, *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r" / "report.json").read_text(encoding="utf-8"))
    assert report["reason"] == "steps" and report["updates"] > 0 and report["restarts"] == 0
    if system == "impala":
        done = portable(["-W", "error", "-m", "shoal", "resume", "r", "--steps", "6000", "--quiet"], tmp_path)
        assert done.returncode == 0, done.stderr
