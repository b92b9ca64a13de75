"""What a user is told of an environment that cannot be made, or is not found: where, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from shoal.api import UsageError
from shoal.envs import EnvOptions, make

OLD = """
import gymnasium as gym, numpy as np

class Env:  # as gym's of long ago
    def reset(self): return [0.0]
    def step(self, action): return [0.0], 0.0, True, {}

class BrosEnv(Env): ...

class Sisters(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

def bare(level=7):
    assert level < 3

def raising():
    raise FileNotFoundError("no assets\\nat all")

def inside():
    return np.zeros(3).reshape(2, 2)

def exits():
    raise SystemExit

def several():
    return gym.vector.SyncVectorEnv([Sisters] * 2)

def number():
    return 7

def needs_two(map, size):
    return Sisters()

def needs(task, *, level, color=1):
    return Sisters()

gym.register("Cousins-v0", entry_point=Sisters)
gym.register("Bare-v0", entry_point=bare)
gym.register("Aunts-v0", entry_point="oldgame:Sisters")
gym.register("Needs-v0", entry_point=needs)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "oldgame.py").write_text(OLD)
    monkeypatch.syspath_prepend(str(tmp_path))
    for id in ("Cousins-v0", "Bare-v0", "Aunts-v0", "Needs-v0"):
        monkeypatch.delitem(gym.registry, id, raising=False)
    yield "oldgame"
    for id in ("Cousins-v0", "Bare-v0", "Aunts-v0", "Needs-v0"):
        gym.registry.pop(id, None)
    sys.modules.pop("oldgame", None)


def refusal(env: str, given: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as told:
        make(env, 1, EnvOptions(env_kwargs=given or {}))
    return str(told.value)


@pytest.mark.parametrize(
    ("name", "said", "line"),
    [
        ("bare", "AssertionError at 'assert level < 3'", 14),
        ("Bare-v0", "AssertionError at 'assert level < 3'", 14),
        ("raising", "no assets", 17),
        ("exits", "SystemExit at 'raise SystemExit'", 23),
    ],
)
def test_what_cannot_be_made_is_told_with_its_file_and_line(module: str, name: str, said: str, line: int) -> None:
    told = refusal(f"{module}:{name}")
    assert f"cannot be made: {said} (" in told and told.endswith(f"oldgame.py, line {line})"), told


def test_an_error_inside_a_library_is_told_without_a_traceback(module: str) -> None:
    assert "cannot be made: cannot reshape array of size 3 into shape (2,2)" in refusal(f"{module}:inside")


def test_a_wrong_keyword_is_not_told_to_be_in_shoal() -> None:
    with pytest.raises(UsageError) as told:
        make("toy:catch", 1, EnvOptions(env_kwargs={"no_such": 1}))
    assert "no_such" in str(told.value) and "shoal/envs" not in str(told.value)


def test_an_environment_of_the_time_before_gymnasium_is_told_with_a_way(module: str) -> None:
    told = refusal(f"{module}:BrosEnv")
    assert "made oldgame.BrosEnv, which is not a gymnasium.Env" in told and "shimmy" in told
    assert refusal(f"{module}:number").endswith("made builtins.int, not a gymnasium.Env")


def test_a_maker_of_a_vector_environment_is_told_what_to_return(module: str) -> None:
    told = refusal(f"{module}:several")
    assert "SyncVectorEnv, which is a vector environment: return one environment" in told and "num_envs" in told
    assert "shimmy" not in told


def test_an_argument_that_a_constructor_misses_is_named_as_it_is_given(module: str) -> None:
    for name in ("Needs-v0", "needs"):
        told = refusal(f"{module}:{name}")
        assert "missing 1 required positional argument: 'task'" in told
        assert told.endswith("; --env-kwargs.task VALUE gives it, or FILE.py:NAME names a function that makes it")
    assert "--env-kwargs.level VALUE gives it" in refusal(f"{module}:needs", {"task": "a"})
    several = "'map' and 'size'; --env-kwargs.map VALUE --env-kwargs.size VALUE give them, or FILE.py:NAME"
    assert several in refusal(f"{module}:needs_two")


def test_no_name_is_suggested_that_would_be_refused(module: str) -> None:
    assert refusal(f"{module}:Bros-v0").endswith("has no 'Bros-v0' (`shoal envs oldgame` lists what it registers)")
    assert refusal(f"{module}:Sister").endswith("; did you mean 'Sisters'?")
    assert refusal(f"{module}:Aunt-v0").endswith("; did you mean 'Aunts-v0'?")


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_version_that_moved_away_is_told_with_the_latest() -> None:
    assert refusal("Walker2d-v2").endswith("gymnasium-robotics); its latest version is 'Walker2d-v5'")
