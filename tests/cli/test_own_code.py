"""Modules of the user's own as systems, environments, torsos and policies: how they are found, and their mistakes."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from present import present

from shoal import Evaluation, train

from .conftest import FAKE, Shoal

MISTAKES = {
    "import json\nraise ValueError('no such data')\n": "ValueError: no such data",
    "import nothing_of_this_name\n": "No module named 'nothing_of_this_name'",
    "def broken(:\n": "SyntaxError: invalid syntax",
    "import sys\nsys.exit(3)\n": "SystemExit: 3",
}
SPACES = """
import gymnasium as gym, numpy as np
class Env(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}
class Blind(Env):
    observation_space = None
class Tied(Env):
    action_space = 2
"""


@pytest.fixture(autouse=True)
def own(shoal: Shoal, tmp_path: Path) -> Iterator[None]:
    """Modules of one test are not those of the next."""
    before, path = {*sys.modules}, [*sys.path]
    yield
    sys.path[:] = path
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("text, says", MISTAKES.items(), ids=["raises", "lacks", "syntax", "exits"])
@pytest.mark.parametrize(
    "words",
    [
        "train mistaken --env CartPole-v1", "train mistaken.py --env CartPole-v1", "train dqn --env mistaken:Env",
        "train dqn --env mistaken.py:Env", "train dqn --env CartPole-v1 --torso mistaken:torso",
        "train r2d3 --env CartPole-v1 --demonstrations mistaken:played",
        "record mistaken:policy --env CartPole-v1 --out data",
    ],
)  # fmt: skip
def test_a_module_that_fails_is_one_sentence(words: str, text: str, says: str, shoal: Shoal) -> None:
    Path("mistaken.py").write_text(text)
    code, out, err = shoal(*words.split())
    assert code == 2 and out == "" and err.startswith("shoal: ") and err.count("\n") == 1
    assert "'mistaken" in err and f"cannot be imported: {says}" in err and ", line " in err and "mistaken.py" in err
    assert not Path("runs").exists()


def test_a_system_by_the_name_of_its_module(shoal: Shoal) -> None:
    Path("my_fake.py").write_text(Path(FAKE).read_text())
    code, _, err = shoal("train", "my_fake", "--runtime", "serial", "--run-dir", "r", "--quiet")
    assert (code, err) == (0, "")
    assert shoal("eval", "r", "--episodes", "1")[0] == 0
    for name, says in (("math", "'math' is not a system: it lacks 'Config'"), ("__main__", "__main__"),
                       ("impalla", "did you mean 'impala'?"), ("no.such", "unknown system 'no.such'")):  # fmt: skip
        code, _, err = shoal("train", name, "--env", "CartPole-v1")
        assert code == 2 and says in err and err.count("\n") == 1, err


@pytest.mark.parametrize("name, says", [
    ("Blind", "needs an observation_space of gymnasium.spaces: has none"),
    ("Tied", "needs an action_space of gymnasium.spaces: found int"),
])  # fmt: skip
def test_an_environment_without_its_spaces(name: str, says: str, shoal: Shoal) -> None:
    Path("spaces.py").write_text(SPACES)
    code, _, err = shoal("train", "dqn", "--env", f"spaces.py:{name}", "--runtime", "serial")
    assert code == 2 and says in err and err.count("\n") == 1, err


TORSO = """
import torch
class Sum(torch.nn.Module):
    features = 1
    def forward(self, obs):
        return obs["obs"].sum(-1, keepdim=True)
def torso(observations):
    return Sum()
def wrong(observations):
    raise KeyError("x")
"""
SMALL = ("--runtime", "serial", "--steps", "60", "--envs", "2", "--unroll", "5", "--quiet")


def test_a_run_with_a_torso_of_its_own_opens_from_another_directory(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("nets_of_mine.py").write_text(TORSO)
    (tmp_path / "other").mkdir()
    for torso, run in (("nets_of_mine.py:torso", "by_file"), ("nets_of_mine:torso", "by_name")):
        words = ("--env", "CartPole-v1", "--torso", torso, "--run-dir", run, *SMALL)
        assert shoal("train", "impala", *words)[0] == 0
    monkeypatch.chdir(tmp_path / "other")
    assert shoal("eval", "../by_file", "--episodes", "1")[0] == 0
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    del sys.modules["nets_of_mine"]
    code, _, err = shoal("eval", "../by_name", "--episodes", "1")
    assert code == 2 and err.count("\n") == 1
    assert "needs 'nets_of_mine:torso', and the module is not found from here" in err and "neither" not in err


def test_a_torso_that_fails_is_one_sentence(shoal: Shoal) -> None:
    Path("nets_of_mine.py").write_text(TORSO)
    for system in ("impala", "d4pg"):
        env = "Pendulum-v1" if system == "d4pg" else "CartPole-v1"
        code, out, err = shoal("train", system, "--env", env, "--torso", "nets_of_mine.py:wrong", *SMALL)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert "torso 'nets_of_mine.py:wrong' cannot be made: KeyError: 'x'" in err and "mine.py, line 10" in err


def test_an_edited_environment_is_read_again(shoal: Shoal) -> None:
    """As from one cell of a notebook to the next; the edit has the same size, and may be of the same second."""
    for runtime in ("serial", "local"):
        for numbers, reward in ((2, 1.0), (2, 7.0), (3, 7.0)):
            text = SPACES.replace("0.0, False, False", f"{reward}, True, False")
            Path("edited.py").write_text(text.replace("(2,)", f"({numbers},)").replace("zeros(2", f"zeros({numbers}"))
            run = train("impala", env="edited.py:Env", runtime=runtime, steps=100, actors=1, envs=2, unroll=5)
            policy = run.policy()
            assert policy.spec.observations["obs"].shape == (numbers,)
            assert policy.evaluate(1) == [reward] == [present(run.report).episode_return]


def test_an_environment_edited_within_a_run_stays_as_it_was(shoal: Shoal) -> None:
    """Its last evaluation is of what was trained."""
    text = SPACES.replace("0.0, False, False", "1.0, True, False")
    file = Path("changing.py").resolve()
    file.write_text(text)
    edit = lambda row: file.write_text(text.replace("1.0, True", "9.0, True")) and None  # noqa: E731
    how = Evaluation(every=50_000, episodes=1)
    run = train("dqn", env="changing.py:Env", runtime="serial", steps=1_200, observers=edit, evaluation=how)
    assert "9.0, True" in file.read_text()
    with open(run.path / "evaluations.csv", newline="") as rows:
        assert [float(row["mean"]) for row in csv.DictReader(rows)] == [1.0]
    assert run.policy().evaluate(1) == [9.0], "what comes after the run is another matter"
