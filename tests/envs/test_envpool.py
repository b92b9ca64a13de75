"""EnvPool's semantics (where it is installed): run with Python of an environment that has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.api import UsageError
from shoal.envs import EnvOptions, make, spec
from shoal.envs.registry import _make_one

pytest.importorskip("envpool")


@pytest.mark.parametrize("env", ["Pendulum-v1", "Acrobot-v1", "FrozenLake-v1"])
def test_auto_takes_it_for_equal_ids(env: str) -> None:
    got = spec(env, EnvOptions())
    plain = spec(env, EnvOptions(backend="gymnasium"))
    assert got.backend == "envpool" and "EnvPool" in got.why
    assert (got.observations, got.action) == (plain.observations, plain.action)


def test_cartpole_stays_with_numpy_and_atari_with_ale() -> None:
    assert spec("CartPole-v1", EnvOptions()).backend == "gymnasium-vector"
    assert spec("ALE/Pong-v5", EnvOptions()).backend == "ale"
    assert spec("CartPole-v1", EnvOptions(backend="envpool")).backend == "envpool"


def test_other_versions_are_refused() -> None:
    with pytest.raises(UsageError, match="does not have"):
        spec("Taxi-v4", EnvOptions(backend="envpool"))


def test_next_step_with_true_last_observation() -> None:
    batch = make("CartPole-v1", 4, EnvOptions(backend="envpool"))
    obs, last, ends, episodes = batch.reset(0)["obs"], np.zeros(4, bool), 0, []
    for _ in range(80):
        step = batch.step(np.ones(4, np.int64))
        np.testing.assert_array_equal(step.valid, ~last)
        new = step.obs["obs"]
        assert (np.abs(new[last]) <= 0.05).all()  # a first observation, whatever the action
        assert not step.reward[last].any()
        moved = obs[:, 0] + 0.02 * obs[:, 1]
        np.testing.assert_allclose(new[~last, 0], moved[~last], atol=1e-6)  # also in the row that ends
        last, obs = step.terminated | step.truncated, new
        assert (np.abs(new[step.terminated, 2]) > 0.2).all()
        ends += int(last.sum())
        episodes += step.episodes
    assert len(episodes) == ends > 10 and all(e.ret == e.length for e in episodes)


def test_truncation_is_flagged() -> None:
    batch = make("Pendulum-v1", 3, EnvOptions(backend="envpool", max_episode_steps=20))
    batch.reset(0)
    for t in range(42):
        step = batch.step(np.zeros((3, 1), np.float32))
        assert not step.terminated.any() and step.truncated.all() == (t in (19, 40))
        assert all(e.length == 20 for e in step.episodes)


def test_reset_reseeds() -> None:
    batch = make("Pendulum-v1", 4, EnvOptions(backend="envpool"))
    a, b, c = (batch.reset(seed)["obs"].copy() for seed in (1, 2, 1))
    assert np.array_equal(a, c) and not np.array_equal(a, b) and len(np.unique(a, axis=0)) == 4


def test_same_physics_as_gymnasium() -> None:
    """From the same state, EnvPool's Pendulum does what Gymnasium's does."""
    batch = make("Pendulum-v1", 1, EnvOptions(backend="envpool"))
    obs = batch.reset(3)["obs"][0]
    one: Any = _make_one("Pendulum-v1", EnvOptions())
    one.reset(seed=0)
    one.unwrapped.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])
    for action in np.random.default_rng(0).uniform(-2, 2, (50, 1)).astype(np.float32):
        theirs = batch.step(action[None])
        ours, reward, *_ = one.step(action)
        np.testing.assert_allclose(theirs.obs["obs"][0], ours, atol=1e-3)
        np.testing.assert_allclose(theirs.reward[0], reward, atol=1e-2)


def test_ids_that_only_envpool_has() -> None:
    for env in ("CheetahRun-v1", "dm_control/cheetah-run-v0"):
        assert spec(env, EnvOptions()).backend == "envpool"
    assert spec("Pong-v5", EnvOptions()).backend == "ale", "which Gymnasium has, by another name"
