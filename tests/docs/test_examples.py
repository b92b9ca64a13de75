"""Every example runs as its user would run it, with a small budget, and has learned by the end."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = {  # example -> how it is run, and the training return it must reach (what chance gives is in brackets)
    "own_environment.py": (["own_environment.py", "30000"], 20.0),  # 20 of 50 (10)
    "own_device_environment.py": (["own_device_environment.py", "100000"], -5.0),  # -2 of -1 (-11)
    "own_network.py": (["own_network.py", "12000"], 30.0),  # CartPole (22)
    "own_system.py": (
        ["-m", "shoal", "train", "own_system.py", "--env", "CartPole-v1", "--steps", "60000", "--actors", "2"],
        50.0,  # CartPole (22)
    ),
    "own_ppo.py": (
        ["-m", "shoal", "train", "own_ppo.py", "--env", "CartPole-v1", "--steps", "60000"],
        100.0,  # CartPole (22)
    ),
}
PENDULUM = {  # example -> seconds of a busy core; random play has -1,200, and -150 is solved
    "own_sac.py": 70,
    "own_td3.py": 60,
}
LINES = {"own_sac.py": 92, "own_td3.py": 83, "own_ppo.py": 36}


SEARCHES = {  # without a run: arguments, what is printed, fewer lines than this
    "own_objective.py": (["2"], r"score 1\.1\d\d|score 1\.200", 30),
    "own_curriculum.py": (["25000"], r"100 episodes: (1[6-9]|2\d|3[0-2])$", 50),  # 2 at first
    "own_self_play.py": (["12000", "games"], r"round 2: (0\.[89]\d|1\.00) ", 60),  # 0 by chance
    "own_reward_model.py": (["15000"], r"in an episode: -([0-9]|1[0-7])\.\d$", 60),  # -30 by chance
    "own_classifier.py": (["1500"], r"^1500 updates: (9[5-9]\.\d|100\.0) % ", 70),  # a third by chance
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == COMMANDS.keys() | SEARCHES.keys() | PENDULUM.keys()


@pytest.mark.parametrize("example", [*COMMANDS, *SEARCHES, *PENDULUM])
def test_is_short(example: str) -> None:
    lines = len((EXAMPLES / example).read_text(encoding="utf-8").splitlines())
    assert lines < (SEARCHES[example][2] if example in SEARCHES else LINES.get(example, 60))


@pytest.mark.parametrize("example", [*COMMANDS, *PENDULUM])
def test_a_system_needs_nothing_private(example: str) -> None:
    found = re.findall(r"^(?:from|import) (shoal\S*) import (\w+)", (EXAMPLES / example).read_text("utf-8"), re.M)
    assert all(module in ("shoal", "shoal.building", "shoal.systems") for module, _ in found), found


@pytest.mark.parametrize("example", SEARCHES)
def test_searches_and_finds(example: str, tmp_path: Path) -> None:
    words, printed, _ = SEARCHES[example]
    command = [sys.executable, "-W", "error", str(EXAMPLES / example), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(printed, done.stdout, re.M), done.stdout


@pytest.mark.parametrize("example", COMMANDS)
def test_runs_and_learns(example: str, tmp_path: Path) -> None:
    words, required = COMMANDS[example]
    command = [sys.executable, "-W", "error", *(str(EXAMPLES / w) if w == example else w for w in words)]
    # a learner's and an actor's thread each: the machine may have two cores
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert report["reason"] == "steps" and report["updates"] > 0 and report["restarts"] == 0
    assert report["episode_return"] >= required, done.stdout
    assert all(bool(torch.isfinite(v).all()) for v in load_file(run / "params-params.safetensors").values())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", PENDULUM)
def test_actor_critics_of_ones_own_learn_pendulum(example: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "shoal", "train", str(EXAMPLES / example), "--env", "Pendulum-v1"]
    done = subprocess.run(
        [*command, "--steps", "7000", "--run-dir", "run", "--quiet"], cwd=tmp_path, capture_output=True, text=True,
        timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "run" / "episodes.csv", encoding="utf-8") as file:
        returns = [float(row["return"]) for row in csv.DictReader(file)]
    assert sum(returns[-5:]) / 5 > -500.0, returns
