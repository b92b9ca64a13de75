"""The working directory that a command was started in: an environment may leave it for its assets, and the user may
remove it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli.main import main
from shoal.paths import fixed, shown, working_directory

MOVING = '''
import os, gymnasium as gym, numpy as np

class Moving(gym.Env):
    """Lives in a folder of its own, as simulators do."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, folder="."):
        os.chdir(folder)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, False, self.t == 10, {}
'''
SMALL = ["--preset", "none", "--actors", "1", "--envs", "2", "--unroll", "8", "--hidden", "8", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the environment's file, beside the environment's own folder."""
    (tmp_path / "assets").mkdir()
    home = tmp_path / "home"
    home.mkdir()
    (home / "moving.py").write_text(MOVING)
    monkeypatch.chdir(home)
    return home


def started(home: Path, *args: str) -> None:
    """Run a command as if it were started in ``home``."""
    os.chdir(home)
    assert main([*args]) == 0


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_relative_paths_are_below_where_the_command_was_started(folder: Path, runtime: str) -> None:
    own = ["--env", "moving.py:Moving", "--env-kwargs.folder", str(folder.parent / "assets")]
    learning = ["--steps", "800", "--min-replay", "100", "--batch", "8", "--eval-every", "300", "--eval-episodes", "1"]
    started(folder, "train", "dqn", *own, "--runtime", runtime, "--run-dir", "here/run", *SMALL, *learning)
    started(folder, "eval", "here/run", "--episodes", "1")
    started(folder, "resume", "here/run", "--steps", "1100", "--quiet")
    started(folder, "export", "here/run", "--to", "torchscript")
    started(folder, "export", "here/run", "--to", "torchscript", "--out", "there", "--best")
    run = folder / "here" / "run"
    for name in ("report.json", "metrics.csv", "checkpoints", "best", "evaluations.csv", "export/torchscript-last"):
        assert (run / name).exists(), name
    assert (folder / "there").is_dir()
    assert os.listdir(folder.parent / "assets") == [], "nothing of Shoal's is in the environment's folder"


def test_a_run_directory_that_is_not_named_is_below_where_the_command_was_started(folder: Path) -> None:
    own = ["--env", "moving.py:Moving", "--env-kwargs.folder", str(folder.parent / "assets"), "--runtime", "serial"]
    started(folder, "train", "dqn", *own, *SMALL, "--steps", "300", "--min-replay", "100", "--batch", "8")
    (run,) = (folder / "runs").iterdir()
    assert (run / "report.json").is_file() and run.name.startswith("dqn-moving.py-Moving")


def test_runs_one_after_the_other_lie_side_by_side(folder: Path) -> None:
    """A serial run returns to where it was started, whatever its environment did."""
    own = ["--env", "moving.py:Moving", "--env-kwargs.folder", str(folder.parent / "assets"), "--runtime", "serial"]
    learning = ["--steps", "300", "--min-replay", "100", "--batch", "8"]
    started(folder, "train", "dqn", *own, *SMALL, *learning, "--seeds", "0", "1", "--run-dir", "both")
    assert os.getcwd() == str(folder) and {path.name for path in (folder / "both").iterdir()} == {"seed-0", "seed-1"}
    started(folder, "train", "dqn", *own, *SMALL, *learning, "--seeds", "0", "1")
    assert len([*(folder / "runs").iterdir()]) == 2 and os.listdir(folder.parent / "assets") == []


def test_a_population_of_such_an_environment_is_below_where_the_command_was_started(folder: Path) -> None:
    own = ["--env", "moving.py:Moving", "--env-kwargs.folder", str(folder.parent / "assets")]
    rules = ["--of", "dqn", "--population", "2", "--mutate", "learning_rate", "--interval", "200", "--slots", "1"]
    learning = ["--steps", "400", "--min-replay", "100", "--batch", "8"]
    started(folder, "train", "pbt", *rules, *own, "--run-dir", "people", *SMALL, *learning)
    assert (folder / "people" / "state.json").is_file()
    assert os.listdir(folder.parent / "assets") == []


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_run_goes_on_when_the_working_directory_is_removed(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last evaluation starts a process in either runtime."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "scratch")

    def once(row: Any) -> None:
        shutil.rmtree(tmp_path / "scratch", ignore_errors=True)

    run = shoal.train(
        "dqn", env="CartPole-v1", preset="none", actors=1, envs=2, unroll=8, hidden=(8,), min_replay=64, batch=8,
        steps=3_000, runtime=runtime, run_dir=tmp_path / "run", observers=once, quiet=True,
        evaluation=shoal.Evaluation(every=1_000_000, episodes=1),
    )  # fmt: skip
    assert run.report is not None and run.report.reason == "steps" and (tmp_path / "run" / "evaluations.csv").is_file()
    assert not (tmp_path / "scratch").exists()
    assert len(run.evaluate(1)) == 1


def test_a_working_directory_that_was_removed_is_left_for_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert working_directory() == str(tmp_path) and fixed("runs/a") == tmp_path / "runs" / "a"
    assert shown(tmp_path / "runs" / "a") == "runs/a" and shown(tmp_path) == str(tmp_path)
    assert shown(tmp_path.parent / "b") == str(tmp_path.parent / "b")
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert working_directory() == "/" == os.getcwd()
    assert shown(tmp_path) == str(tmp_path)
