"""What fails in the same way each time ends the run at once, with file and line and no advice to go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.api import EnvironmentFailed, RoleFailed, UsageError
from shoal.errors import repeats

SMALL: dict[str, Any] = dict(
    preset="none", steps=2_000, actors=1, envs=2, unroll=5, hidden=(8,), device="cpu", checkpoint_every=0.0
)  # fmt: skip


class Sound(gym.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}


class TwoRewards(Sound):
    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), np.ones(2), False, False, {}


class Misspelt(Sound):
    def step(self, action: Any) -> Any:
        return self.obzervation  # type: ignore[attr-defined]  # a slip of the user's


class OldReset(Sound):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32)


class NotFinite(Sound):
    def step(self, action: Any) -> Any:
        return np.full(2, np.nan, np.float32), 1.0, False, False, {}


class Unmakeable(Sound):
    def __init__(self) -> None:
        assert self.observation_space is None


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    "env, says, line",
    [
        (TwoRewards, "a reward of shape [2]", "class TwoR"), (OldReset, "returned ndarray from reset", "class OldR"),
        (Misspelt, "has no attribute 'obzervation'", "class Misspelt"),
    ],
)  # fmt: skip
def test_an_environment_that_always_fails_ends_the_run_at_once(
    env: type, says: str, line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RoleFailed) as failure:
        shoal.train("impala", env=env, run_dir=tmp_path / "r", **SMALL)
    text = str(failure.value)
    nearby = [f"{__file__}, line {line_of(line) + more}" for more in (1, 2)]
    assert says in text and any(place in text for place in nearby) and failure.value.generation == 0
    assert "shoal resume" not in text and "gave up" not in text and "restarting" not in caplog.text
    assert "roles/actor.py" not in text, "lines of Shoal's own are in the log of the role"


class AnotherSpace(Sound):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.action_space = spaces.Discrete(1 + self.made)


class BreaksLater(Sound):
    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2 if self.steps < 40 else 3, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("runtime", ["local", "serial"])
def test_a_mistake_of_the_users_that_a_role_finds_is_one_sentence(
    runtime: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UsageError, match=r"^environment .* has another action_space each time it is made") as failure:
        shoal.train("impala", env=AnotherSpace, run_dir=tmp_path / "r", runtime=runtime, **SMALL)
    assert "\n" not in str(failure.value) and "Traceback" not in caplog.text
    assert not (tmp_path / "r").exists(), "nothing is left of a run that was refused before its first step"


def test_a_mistake_that_is_met_again_and_again_ends_the_run_after_two_more_tries(tmp_path: Path) -> None:
    with pytest.raises(RoleFailed, match=r"shape \[3\](.|\n)*gave up after 3 failures"):
        shoal.train("impala", env=BreaksLater, run_dir=tmp_path / "r", **{**SMALL, "steps": 10**6})


def test_numbers_that_are_not_finite_are_given_another_try(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RoleFailed, match="gave up after"):
        shoal.train("impala", env=NotFinite, run_dir=tmp_path / "r", **SMALL)
    assert "restarting" in caplog.text


def test_an_environment_that_cannot_be_made_names_the_line(tmp_path: Path) -> None:
    place = f"{__file__}, line {line_of('assert self.observation_space is None')}"
    with pytest.raises(UsageError, match="cannot be made: AssertionError") as failure:
        shoal.train("impala", env=Unmakeable, run_dir=tmp_path / "r", **SMALL)
    assert place in str(failure.value)
    with pytest.raises(UsageError) as failure:
        shoal.train("impala", env="CartPole-v1", env_kwargs={"speed": 3}, run_dir=tmp_path / "r", **SMALL)
    assert "line" not in str(failure.value), "it is no line of the user's"


def test_what_will_fail_again_is_known_by_its_error() -> None:
    def caused(cause: BaseException) -> BaseException:
        error = EnvironmentFailed("x")
        error.__cause__ = cause
        return error

    again = [UsageError("x"), NameError("x"), EnvironmentFailed("x"), caused(TypeError("x"))]
    once = [OSError("x"), EnvironmentFailed("x", chance=True), caused(ConnectionError("x")), caused(ValueError("x"))]
    assert all(map(repeats, again)) and not any(map(repeats, once))
