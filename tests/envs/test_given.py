"""Environments given in Python, and where environments are made: nowhere that does not step them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import counting_env as counting
import gymnasium as gym
import numpy as np
import pytest
from noting_env import Noting, noted
from present import present

import shoal
from shoal.api import UsageError
from shoal.cli.main import main
from shoal.envs import EnvOptions, given, make, spec
from shoal.envs.from_callable import CallableEnv
from shoal.local.apart import apart

FILE = Path(__file__).with_name("noting_env.py")
SMALL: dict[str, Any] = dict(
    preset="none", actors=1, envs=2, unroll=5, hidden=(8,), device="cpu", checkpoint_every=0.0
)  # fmt: skip


def test_what_was_given_is_told_in_words() -> None:
    def local() -> None: ...

    words = [given(env) for env in (Noting, local, lambda: None, partial(Noting, "folder"))]
    where = "test_what_was_given_is_told_in_words"
    assert words == [
        f"<Noting of {Noting.__module__}>", f"<{where}.local of {__name__}>", f"<{where}.lambda of {__name__}>",
        f"<Noting of {Noting.__module__}>",
    ]  # fmt: skip
    assert given("CartPole-v1") == "CartPole-v1" and json.dumps(words[2]) == f'"<{where}.lambda of {__name__}>"'
    again = cloudpickle.loads(cloudpickle.dumps(words[0]))
    assert isinstance(again, CallableEnv) and again.factory is Noting and again == words[0]


@pytest.mark.parametrize(
    "env, found",
    [
        (gym.make("CartPole-v1"), "found one that is made"),
        (3, "found 3"),
        (gym.spec("CartPole-v1"), "give its id, 'CartPole-v1'"),
    ],
)
def test_what_makes_no_environment_is_refused(env: Any, found: str) -> None:
    with pytest.raises(UsageError, match=f"env expects a name, or a class or function .*{found}"):
        shoal.train("impala", env=env)


def test_two_environments_in_the_same_words_are_two() -> None:
    """As where a cell of a notebook defines a class once more."""

    def sized(n: int) -> Any:
        class Mine(gym.Env[Any, Any]):
            observation_space = gym.spaces.Box(-1, 1, (n,), np.float32)
            action_space = gym.spaces.Discrete(2)

        return given(Mine)

    one, two = sized(3), sized(4)
    assert one == two
    assert [spec(env, EnvOptions()).observations["obs"].shape for env in (one, two)] == [(3,), (4,)]


def test_what_takes_num_envs_makes_a_batch() -> None:
    batch = make(given(counting.next_step), 3, EnvOptions())
    assert batch.num_envs == 3 and batch.spec.backend == "gymnasium-vector"
    batch.close()


def test_a_closure_trains_in_processes_and_is_asked_for_again(tmp_path: Path) -> None:
    folder = str(tmp_path)
    run = shoal.train("impala", env=lambda: Noting(folder), run_dir=tmp_path / "r", steps=60, **SMALL)
    facts = json.loads((run.path / "config.json").read_text())
    assert facts["config"]["env"].startswith("<test_a_closure") and facts["config"]["env"].endswith(f"of {__name__}>")
    assert os.getpid() not in noted(tmp_path, "made")
    assert run.policy().evaluate(2, envs=2) == [5.0, 5.0]  # the run knows its environment
    missing = "was given in Python and no file holds it: give it again"
    for call in (
        lambda: shoal.Run.open(run.path).policy(), lambda: shoal.evaluate(run.path), lambda: shoal.resume(run.path),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=missing):
            call()
    assert main(["eval", str(run.path)]) == main(["resume", str(run.path), "--steps", "90"]) == 2
    assert shoal.evaluate(run.path, env=lambda: Noting(folder), episodes=3, envs=2) == [5.0] * 3
    assert present(shoal.resume(run.path, env=lambda: Noting(folder), steps=90).report).steps >= 90
    run.policy().save(tmp_path / "policy")
    with pytest.raises(UsageError, match=missing):
        shoal.load(tmp_path / "policy")
    assert shoal.load(tmp_path / "policy", env=lambda: Noting(folder)).act(np.zeros(2)) in (0, 1)


def test_an_environment_that_cannot_travel_is_refused_in_a_sentence(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to the processes that step it"):
        shoal.train("impala", env=lambda: lock and None, run_dir=tmp_path / "r", steps=60, **SMALL)
    with pytest.raises(UsageError, match="ended the process in which it was made: the process exited"):
        shoal.train("impala", env=lambda: os._exit(3), run_dir=tmp_path / "r", steps=60, **SMALL)
    with pytest.raises(UsageError, match="cannot be made: not today"):
        shoal.train("impala", env=partial(_raise, "not today"), run_dir=tmp_path / "r", steps=60, **SMALL)
    assert not (tmp_path / "r").exists()


def _raise(text: str) -> None:
    raise ValueError(text)


def test_env_is_for_runs_whose_environment_was_given(tmp_path: Path) -> None:
    run = shoal.train("impala", env="toy:bandit-identity", run_dir=tmp_path / "r", runtime="serial", steps=60, **SMALL)
    with pytest.raises(UsageError, match="env is for what was trained in an environment given in Python"):
        run.policy(env=Noting)


def test_no_process_makes_it_but_those_that_step_it(tmp_path: Path) -> None:
    """The command ends although the environment leaves a thread behind that never does."""
    words = (
        "--env-kwargs.thread true --preset none --actors 2 --envs 2 --unroll 5 --hidden 8 --device cpu --steps 400 "
        "--eval-every 200 --eval-episodes 2 --quiet"
    )
    places = ("--env", f"{FILE}:Noting", "--env-kwargs.folder", str(tmp_path), "--run-dir", str(tmp_path / "r"))
    command = [sys.executable, "-m", "shoal", "train", "impala", *places, *words.split()]
    ended = subprocess.run(command, timeout=100, check=False)
    assert ended.returncode == 0
    made, stepped = noted(tmp_path, "made"), noted(tmp_path, "stepped")
    assert stepped <= made and len(stepped) >= 3  # two actors, the evaluation at the end
    assert len(made - stepped) <= 2  # the process that looked at its spaces; an evaluator that had no time
    assert (tmp_path / "r" / "evaluations.csv").read_text().count("\n") >= 2


def test_drawing_a_program_makes_it_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "dqn", "--env", f"{FILE}:Noting", "--env-kwargs.folder", str(tmp_path)]) == 0
    assert "obs [" in capsys.readouterr().out
    made = noted(tmp_path, "made")  # once to see of what kind it is, once with the preset of that kind
    assert 1 <= len(made) <= 2 and os.getpid() not in made


def test_a_serial_run_makes_it_here_and_only_here(tmp_path: Path) -> None:
    shoal.train(
        "impala", env=Noting, env_kwargs={"folder": str(tmp_path)}, run_dir=tmp_path / "r", runtime="serial", steps=60,
        **SMALL,
    )  # fmt: skip
    assert noted(tmp_path, "made") == noted(tmp_path, "stepped") == {os.getpid()}


def test_what_a_package_prints_is_shown_only_if_its_environment_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def greets() -> str:
        print("hello from a package")
        os.system("echo and from its library")
        return "made"

    def fails() -> None:
        greets()
        raise UsageError("no window")

    def dies() -> None:
        greets()
        sys.stdout.flush()
        os._exit(3)

    assert apart(greets) == "made" and capfd.readouterr() == ("", "")
    for function, says in ((fails, "no window"), (dies, "exited by itself with code 3")):
        with pytest.raises(UsageError, match=says):
            apart(function)
        printed = capfd.readouterr().err
        assert "hello from a package" in printed and "and from its library" in printed
