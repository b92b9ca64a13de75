"""Modules of the user's own as systems, environments, torsos and policies: how they are found, and their mistakes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
