"""Environments that do what few do: they are played as they are, or refused in a sentence that names them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from strange_env import MASK, Pushed

from shoal import own_code
from shoal.api import EnvironmentFailed, UsageError
from shoal.envs import EnvOptions, make, spec
from shoal.envs.from_callable import given
from shoal.envs.infos import episode_numbers
from shoal.envs.looks import looking
from shoal.envs.spaces import ObservationCodec, batch_of

FILE = str(Path(__file__).with_name("strange_env.py"))


def made(name: str, num: int = 3, **options: Any) -> Any:
    return make(f"{FILE}:{name}", num, EnvOptions(**options))


def played(name: str, num: int = 3, steps: int = 7, **options: Any) -> Any:
    """The last of some steps, with actions of its own space."""
    batch = made(name, num, **options)
    batch.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        if batch.spec.action.kind == "continuous":
            action: np.ndarray = rng.uniform(-1, 1, (num, len(batch.spec.action.low))).astype(np.float32)
        else:
            action = rng.integers(batch.spec.action.sizes[0], size=num)
        step = batch.step(action)
    return step


# ----------------------------------------------------------------------------------------- masks
@pytest.mark.parametrize("name", ["Masked", "Pushed"])
def test_what_is_no_mask_is_an_observation_like_any_other(name: str) -> None:
    described = spec(f"{FILE}:{name}", EnvOptions(action_mask="none"))
    assert described.observations.keys() == {"obs/x", "obs/action_mask_"}
    assert described.observations["obs/action_mask_"].kind == "one_hot"
    assert played(name, action_mask="none").obs["obs/action_mask_"].tolist() == [[0] * 4] * 3
    if name == "Pushed":  # has nothing to mask
        assert spec(f"{FILE}:Pushed", EnvOptions()).observations.keys() == described.observations.keys()
        assert Pushed.action_space.contains(np.zeros(2, np.float32))


def test_a_mask_in_info_goes_before_that_of_a_dict() -> None:
    step = played("Masked", action_mask="info")
    assert step.obs["obs/action_mask"].tolist() == [MASK.astype(bool).tolist()] * 3
    assert "obs/action_mask_" in step.obs
    with pytest.raises(EnvironmentFailed, match="forbids every action"):
        played("Masked")


# ------------------------------------------------------------------------------- one environment
def test_an_environment_that_fails_when_it_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    batch = made("CloseRaises")
    batch.reset(0)
    batch.close()
    assert "CloseRaises' failed when it was closed: OSError: the door is stuck" in caplog.text


def test_rewards_that_are_arrays() -> None:
    assert played("Rewards", steps=2).reward.tolist() == [2.5] * 3
    with pytest.raises(EnvironmentFailed, match=r"a reward of shape \[2\] instead of a number \(index 0, action \d"):
        played("Rewards", env_kwargs={"size": 2})


@pytest.mark.parametrize("bad, says", [
    ("reset", r"returned ndarray from reset instead of \(observation, info\)"),
    ("none", r"returned \(ndarray, NoneType\) from reset instead of"),
    ("step", r"returned \(ndarray, float, bool, dict\) from step instead of \(observation, reward, terminated, trunc"),
])  # fmt: skip
def test_resets_and_steps_of_before(bad: str, says: str) -> None:
    with pytest.raises(EnvironmentFailed, match=says):
        played("Old", env_kwargs={"bad": bad})


@pytest.mark.parametrize("name, options, says", [
    ("Differs", {}, r"another observation_space each time it is made: Box.*\(3,\).*, then Box.*\(2,\)"),
    ("Exits", {}, "Exits' cannot be made: 3"),
    ("Twins", {}, "two observations that flatten to 'obs/a/b'"),
    ("OwnLast", {"last_action_reward": True}, "shows 'last_action' itself: leave out last_action_reward"),
])  # fmt: skip
def test_environments_that_are_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made(name, **options)


def test_names_in_info_that_mean_something_elsewhere() -> None:
    step = played("Tells", steps=5)
    told = {"success": 1.0, "return": 4.0, "final_info": 2.0, "3": 1.0}
    assert [dict(episode.info) for episode in step.episodes] == [told] * 3


def test_a_file_without_a_name_in_it() -> None:
    with pytest.raises(UsageError, match=r"is a file: say which of its classes or functions, as in .*strange_env.py:N"):
        make(FILE, 1, EnvOptions())


def test_a_file_imports_its_neighbour_and_is_pickled_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes of the user's own, of an AsyncVectorEnv for one, need it: they know no such module."""
    (tmp_path / "strange_neighbour.py").write_text("NUMBER = 7\n")
    (tmp_path / "strange_file.py").write_text(
        "from strange_neighbour import NUMBER\n\ndef found():\n    return NUMBER\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = own_code.by_path(tmp_path / "strange_file.py", "_strange_name", "it")
    code = "import sys, pickle; print(pickle.loads(sys.stdin.buffer.read())())"
    blob = cloudpickle.dumps(module.found)
    done = subprocess.run([sys.executable, "-c", code], input=blob, capture_output=True, check=False)
    assert done.stdout == b"7\n", done.stderr


# ------------------------------------------------------------------------------------- in vectors
@pytest.mark.parametrize("bad, says", [
    ("number", "made 4 environments when it was asked for 3"),
    ("spaces", "it made Batch, which has no single_action_space"),
    ("nonsense", "the autoreset_mode 'sometimes' in its metadata, expected AutoresetMode.NEXT_STEP, Auto"),
])  # fmt: skip
def test_vector_environments_that_are_refused(bad: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made("Batch", env_kwargs={"bad": bad})


def test_a_factory_that_takes_num_envs_and_makes_one() -> None:
    with pytest.raises(UsageError, match=r"should make a gymnasium\.vector\.VectorEnv: it made Plain, which has"):
        made("one")


@pytest.mark.parametrize("bad, says", [
    ("flags", r"'terminated' of shape \[1\] and 'truncated' of \[1\] instead of \[3\]"),
    ("array", "observations that are no batch of its space: ndarray"),
])  # fmt: skip
def test_vector_environments_that_fail(bad: str, says: str) -> None:
    with pytest.raises(EnvironmentFailed, match=says):
        played("Batch", env_kwargs={"bad": bad}, action_mask="none")


@pytest.mark.parametrize("bad", ["", "text", "none", "list", "short", "final"])
def test_vector_environments_that_are_played(bad: str) -> None:
    batch = made("Batch", env_kwargs={"bad": bad})
    assert batch.spec.autoreset == ("next_step" if bad == "none" else "same_step")
    if bad in ("list", "final", "none"):  # the last observations of their episodes are nowhere
        return
    batch.reset(0)
    action = np.ones(3, np.int64)
    ended = [batch.step(action) for _ in range(5)][-1]
    assert [(e.ret, e.length) for e in ended.episodes] == [(5.0, 5)] * 3
    assert action.tolist() == [1, 1, 1], "what it writes into is its own"


def test_numbers_that_are_not_for_each_environment() -> None:
    info: Any = {"x": np.zeros(2), "y": np.arange(4.0), 5: np.ones(4), "final_info": None}
    assert episode_numbers(info, np.array([1, 3]), 4) == [{"y": 1.0}, {"y": 3.0}]


# ---------------------------------------------------------------------------------------- spaces
def test_stacks_of_pictures_whose_channels_are_first() -> None:
    for shape in ((4, 9, 13, 3), (4, 3, 9, 13)):
        codec = ObservationCodec(gs.Box(0, 255, shape, np.uint8), "env")
        picture = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
        assert codec.observations["obs"].shape == (12, 9, 13)
        moved = picture.transpose(0, 1, 4, 2, 3) if shape[-1] == 3 else picture
        np.testing.assert_array_equal(codec(picture)["obs"], moved.reshape(2, 12, 9, 13))


@pytest.mark.parametrize("space, obs, says", [
    (gs.Discrete(5, start=3), 8, "found the value 8"),
    (gs.Discrete(5, start=3), 2, "found the value 2"),
    (gs.Discrete(5), 1.5, "found values of dtype float64"),
    (gs.Discrete(5), None, "found values of dtype object"),
    (gs.MultiDiscrete([2, 3]), [1, 3], "found the value 3"),
    (gs.MultiBinary(2), [0, 2], "found the value 2"),
    (gs.Box(0, 255, (2, 2), np.uint8), np.ones((2, 2)), "found values of dtype float64"),
    (gs.Box(0, 255, (2, 2), np.uint8), np.full((2, 2), 256), "found the value 256"),
    (gs.Box(-1, 1, (2,), np.float32), [0.0, np.nan], "found a value that is not finite"),
    (gs.Box(-1, 1, (2,), np.float64), [0.0, 1e300], "found a value that is not finite, or too large for float32"),
    (gs.Box(-1, 1, (1,), np.float32), ["4"], "found values of dtype <U1"),
])  # fmt: skip
def test_observations_that_a_policy_is_given(space: gs.Space[Any], obs: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        batch_of(space, obs)
    batch_of(space, space.sample())


@pytest.mark.parametrize("reward", [np.zeros(2), [0.0, 0.0], (0, 1)])
def test_a_reward_of_several_numbers_is_refused_before_a_run(reward: Any) -> None:
    """``shoal train`` looks at an environment and times its steps before anything starts: exit code 2."""

    class Several(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

        def reset(self, **given: Any) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), reward, False, False, {}

    with (
        looking(lambda call: call(), timing=True),
        pytest.raises(UsageError, match=r"a reward of shape \[2\] .*gymnasium.RewardWrapper"),
    ):
        spec(given(Several), EnvOptions())
