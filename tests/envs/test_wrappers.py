"""What is put around environments, from numbers that are worked out by hand, with settings away from their defaults."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from shoal.api import Action, EnvSpec, EnvStep, Episode, Observation, UsageError
from shoal.envs import EnvOptions, make, pool as envpool_module
from shoal.envs.batch import sub_seeds
from shoal.envs.wrappers import LastActionReward, TrainingReward, training_reward

HERE = str(Path(__file__))
REWARDS = np.array([-3.0, -0.5, 0.0, 0.25, 7.0], np.float32)


class Given:
    """A batch that returns what it is given."""

    def __init__(self, action: Action, autoreset: str = "next_step", rewards: np.ndarray = REWARDS) -> None:
        observations = {"obs": Observation((1,), "float32")}
        self.spec = EnvSpec("Given", observations, action, autoreset=autoreset)  # type: ignore[arg-type]
        self.num_envs, self.rewards = len(rewards), rewards
        self.ends = np.zeros(self.num_envs, bool)
        self.valid = np.ones(self.num_envs, bool)
        self.closed = False

    def reset(self, seed: int) -> Any:
        return {"obs": np.full((self.num_envs, 1), seed, np.float32)}

    def step(self, action: Any) -> EnvStep:
        obs = {"obs": np.zeros((self.num_envs, 1), np.float32)}
        final = {"obs": np.ones((self.num_envs, 1), np.float32)} if self.spec.autoreset == "same_step" else None
        none = np.zeros(self.num_envs, bool)
        return EnvStep(
            obs,
            self.rewards,
            self.ends & (REWARDS > 0),
            self.ends & ~(REWARDS > 0),
            self.valid | none,
            final,
            [Episode(9.0, 2)],
        )

    def close(self) -> None:
        self.closed = True


DISCRETE = Action("discrete", (4,))


# ------------------------------------------------------------------------------------------ rewards
@pytest.mark.parametrize(
    "clip,scale,wanted",
    [
        ("none", 1.0, [-3.0, -0.5, 0.0, 0.25, 7.0]),
        ("none", -0.5, [1.5, 0.25, 0.0, -0.125, -3.5]),
        ("sign", 1.0, [-1.0, -1.0, 0.0, 1.0, 1.0]),
        ("sign", 3.0, [-3.0, -3.0, 0.0, 3.0, 3.0]),
        ("unit", 1.0, [-1.0, -0.5, 0.0, 0.25, 1.0]),
        ("unit", 4.0, [-4.0, -2.0, 0.0, 1.0, 4.0]),
    ],
)
def test_rewards_are_clipped_and_then_scaled(clip: Any, scale: float, wanted: list[float]) -> None:
    assert training_reward(REWARDS, clip, scale).tolist() == wanted
    inner = Given(DISCRETE)
    batch = TrainingReward(inner, clip, scale)  # type: ignore[arg-type]
    assert batch.reset(3)["obs"][0, 0] == 3 and (batch.num_envs, batch.spec) == (5, inner.spec)
    step = batch.step(np.zeros(5, np.int64))
    assert step.reward.tolist() == wanted and step.reward.dtype == np.float32 and step.episodes == [Episode(9.0, 2)]
    batch.close()
    assert inner.closed


@pytest.mark.parametrize("clip,scale", [("none", 0.5), ("sign", 1.0), ("unit", 2.0), ("none", 1.0)])
def test_both_settings_of_rewards_are_read(clip: Any, scale: float) -> None:
    raw, trained = (
        make("Pendulum-v1", 2, EnvOptions()),
        make("Pendulum-v1", 2, EnvOptions(reward_clip=clip, reward_scale=scale, last_action_reward=True)),
    )
    for batch in (raw, trained):
        batch.reset(5)
    for _ in range(4):
        action = np.array([[1.0], [-2.0]], np.float32)
        wanted, step = training_reward(raw.step(action).reward, clip, scale), trained.step(action)
        np.testing.assert_array_equal(step.reward, wanted)
        np.testing.assert_array_equal(step.obs["obs/last_reward"][:, 0], wanted, "as it is learned from")
        np.testing.assert_array_equal(step.obs["obs/last_action"], action)


# ------------------------------------------------------------------------------- last action and reward
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(
    "action,taken",
    [
        (DISCRETE, np.array([3, 1, 2, 3, 1])),
        (Action("multi_discrete", (4, 3)), np.array([[3, 2]] * 5)),
        (Action("continuous", (), (-1.0, -1.0), (1.0, 1.0)), np.array([[0.5, -0.25]] * 5)),
    ],
)
def test_the_last_action_and_reward_of_every_kind(mode: str, action: Action, taken: np.ndarray) -> None:
    inner = Given(action, mode, np.arange(1, 6, dtype=np.float32))
    spec = EnvSpec(**{**inner.spec.__dict__, "observations": LastActionReward.observations(inner.spec)})
    batch = LastActionReward(inner, spec)  # type: ignore[arg-type]
    width = 1 if taken.ndim == 1 else 2
    shown = spec.observations["obs/last_action"]
    assert shown.shape == (width,) and spec.observations["obs/last_reward"] == Observation((1,), "float32")
    assert (shown.kind, shown.size) == (("vector", ()) if action.kind == "continuous" else ("one_hot", action.sizes))
    obs = batch.reset(2)
    assert obs["obs"][0, 0] == 2 and obs["obs/last_action"].dtype == np.dtype(shown.dtype)
    assert obs["obs/last_action"].shape == (5, width) and obs["obs/last_reward"].shape == (5, 1)
    assert not obs["obs/last_action"].any() and not obs["obs/last_reward"].any()
    begins = np.array([True, False, False, True, True])
    if mode == "next_step":  # the row that is ignored shows an episode's first observation
        inner.valid, inner.rewards = ~begins, np.where(begins, 0, inner.rewards).astype(np.float32)
    else:
        inner.ends = begins
    given = taken.copy()
    step = batch.step(given)
    wanted = np.where(begins[:, None], 0, taken.reshape(5, -1))
    np.testing.assert_array_equal(step.obs["obs/last_action"], wanted)
    np.testing.assert_array_equal(step.obs["obs/last_reward"][:, 0], np.where(begins, 0, [1, 2, 3, 4, 5]))
    np.testing.assert_array_equal(given, taken, "what it was given is left alone")
    assert not np.shares_memory(step.obs["obs/last_reward"], step.reward)
    assert not np.shares_memory(step.obs["obs/last_action"], given)
    if mode == "same_step":
        assert step.final_obs is not None and (step.final_obs["obs"] == 1).all()
        np.testing.assert_array_equal(step.final_obs["obs/last_action"][begins], taken.reshape(5, -1)[begins])
        np.testing.assert_array_equal(step.final_obs["obs/last_reward"][begins, 0], [1, 4, 5])
    batch.close()
    assert inner.closed


def test_an_environment_that_shows_them_itself_is_refused() -> None:
    spec = EnvSpec("E", {"obs/last_reward": Observation((1,), "float32")}, DISCRETE)
    with pytest.raises(UsageError, match="shows 'last_reward' itself: leave out last_action_reward"):
        LastActionReward.observations(spec)


# -------------------------------------------------------------------------------------- time limits
class Endless(gym.Env[Any, Any]):
    observation_space, action_space = gs.Box(-9, 9, (1,), np.float32), gs.Discrete(2)

    def __init__(self, first: float = 0.0) -> None:
        self.first = first

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.array([self.first], np.float32), {}

    def step(self, action: Any) -> Any:
        return np.array([1.0], np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    "env,backend",
    [
        ("CartPole-v1", "gymnasium"),
        ("CartPole-v1", "gymnasium-vector"),
        ("toy:corridor", "auto"),
        ("Pendulum-v1", "gymnasium"),
        (f"{HERE}:Endless", "auto"),
    ],
)
def test_a_time_limit_truncates_in_its_very_step(env: str, backend: Any) -> None:
    batch = make(env, 2, EnvOptions(max_episode_steps=6, backend=backend))
    batch.reset(0)
    lengths: list[int] = []
    ends: list[int] = []
    zero = np.zeros((2, *batch.spec.action.shape), batch.spec.action.dtype)
    for t in range(1, 21):
        step = batch.step(zero + (t % 2 if env == "CartPole-v1" else 0).__int__())
        assert not step.terminated.any()
        if step.truncated.any():
            assert step.truncated.all()
            ends.append(t)
        lengths += [e.length for e in step.episodes]
    assert ends == [6, 13, 20] and set(lengths) == {6}
    batch.close()


def test_arguments_reach_the_constructor() -> None:
    batch = make(f"{HERE}:Endless", 1, EnvOptions(env_kwargs={"first": 4.0}))
    assert batch.reset(0)["obs"].tolist() == [[4.0]]
    for backend in ("gymnasium", "gymnasium-vector"):
        batch = make("CartPole-v1", 3, EnvOptions(env_kwargs={"sutton_barto_reward": True}, backend=backend))
        batch.reset(0)
        assert set(batch.step(np.zeros(3, np.int64)).reward.tolist()) == {0.0}


@pytest.mark.parametrize("num,seeds", [(3, [8, 9, 10]), (1, [8])])
def test_every_environment_has_a_seed_of_its_own(num: int, seeds: list[int]) -> None:
    assert sub_seeds(7, num) == seeds and sub_seeds(2**31 - 3, 3) == [2**31 - 2, 2**31 - 1, 0]
    together = make("Pendulum-v1", num, EnvOptions(backend="gymnasium")).reset(7)["obs"]
    for i, seed in enumerate(seeds):
        alone, _ = gym.make("Pendulum-v1").reset(seed=seed)
        np.testing.assert_array_equal(together[i], alone)


# ------------------------------------------------------------------------------------------- EnvPool
class Pool:
    """One that EnvPool would make."""

    def __init__(self) -> None:
        self.closed = False

    def reset(self) -> Any:
        return np.zeros((2, 3), np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones((2, 3), np.float32), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {"action": action}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What an EnvPool that is not installed was asked for, and what it made."""
    calls: list[Any] = []
    module: Any = types.ModuleType("envpool")

    def make_spec(env: str, **kwargs: Any) -> Any:
        calls.append(("spec", env, kwargs))
        text = gs.Dict({"mission": gs.Box(0, 255, (9,), np.uint8), "image": gs.Box(-1, 1, (3,), np.float32)})
        space = text if env == "MiniGrid" else gs.Box(-1, 1, (3,), np.float32)
        if env == "Broken":
            raise ValueError("no such option")
        return types.SimpleNamespace(gymnasium_observation_space=space, gymnasium_action_space=gs.Discrete(2))

    def make_gymnasium(env: str, **kwargs: Any) -> Pool:
        calls.append(("make", env, kwargs, pool := Pool()))
        return pool

    module.make_spec, module.make_gymnasium = make_spec, make_gymnasium
    monkeypatch.setitem(sys.modules, "envpool", module)
    return calls


def test_envpool_is_told_the_options_and_the_seeds(made: list[Any]) -> None:
    env: Any = envpool_module.make("Ant", 2, EnvOptions(max_episode_steps=9, env_kwargs={"gravity": 3}))
    kwargs = {"num_threads": 1, "gravity": 3, "max_episode_steps": 9}
    assert made == [("spec", "Ant", kwargs)] and env.num_envs == 2
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP and env.single_action_space == gs.Discrete(2)
    env.reset(seed=4)
    assert made[1][:3] == ("make", "Ant", {"num_envs": 2, "seed": [5, 6], **kwargs})
    assert env.step(np.array([1, 0]))[4]["action"].tolist() == [1, 0]
    env.reset(seed=9)  # it seeds environments only when it is built
    assert made[1][3].closed and made[2][2]["seed"] == [10, 11] and not made[2][3].closed
    env.close()
    env.close()
    assert made[2][3].closed
    envpool_module.make("Ant", 1, EnvOptions())
    assert made[3] == ("spec", "Ant", {"num_threads": 1})


def test_envpool_leaves_out_text_and_names_its_mistakes(made: list[Any]) -> None:
    env: Any = envpool_module.make("MiniGrid", 1, EnvOptions())
    assert list(env.single_observation_space.spaces) == ["image"]
    with pytest.raises(UsageError, match="EnvPool cannot make 'Broken' with these options: no such option"):
        envpool_module.make("Broken", 1, EnvOptions())
