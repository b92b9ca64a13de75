"""Rollouts fit a run that is short, or an environment that is slow, unless the user has set them."""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from shoal import systems
from shoal.envs import EnvOptions, given, looking, spec
from shoal.envs._make import describe
from shoal.settings.config import resolve
from shoal.topology.fitting import LEAST_STEPS, ROUNDS, SECONDS, Fit

FREE = ("envs", "total_envs", "unroll", "minibatches", "min_replay")


def short(system: str, **given: Any) -> Any:
    return resolve(systems.load(system), None, None, {"actors": 2, **given})


@pytest.mark.parametrize("system", ["recurrent-ppo", "dd-ppo", "impala", "dqn", "apex-dqn", "a3c", "r2d2"])
def test_a_round_of_messages_is_a_16th_of_a_short_run(system: str) -> None:
    cfg = short(system, steps=6_000).cfg
    assert cfg.num_actors() * cfg.envs * cfg.unroll <= 6_000 / ROUNDS
    long = short(system).cfg
    assert long.envs * long.unroll >= cfg.envs * cfg.unroll, "the preset's own"


def test_what_the_user_sets_stays_and_a_long_run_has_its_presets_values() -> None:
    resolved = short("recurrent-ppo", steps=2_000, envs=16, unroll=64)
    assert (resolved.cfg.envs, resolved.cfg.unroll, resolved.fitted) == (16, 64, "")
    resolved = short("recurrent-ppo", steps=2_000, envs=16)
    assert resolved.cfg.envs == 16 and resolved.cfg.unroll == 8 and resolved.origins["unroll"].endswith(", fitted")
    assert short("recurrent-ppo").fitted == ""
    asked = resolve(systems.load("recurrent-ppo"), "classic", None, {"steps": 2_000})
    assert (asked.cfg.envs, asked.cfg.unroll, asked.fitted) == (32, 32, ""), "a preset that was asked for"


def test_a_preset_whose_unroll_is_longer_than_the_run_is_cut() -> None:
    resolved = short("recurrent-ppo", env="HalfCheetah-v5", steps=1_500, actors=1)
    assert resolved.preset == "mujoco" and resolved.cfg.unroll == 64 and resolved.cfg.minibatches == 2
    assert "unroll 64 (not 2048)" in resolved.fitted and "the run has 1,500 steps" in resolved.fitted


@pytest.mark.parametrize("steps", [1, 2, 10, 100, 1_000])
@pytest.mark.parametrize("system", sorted(set(systems.SYSTEMS) - {"r2d3", "unreal"}))
def test_every_system_can_be_a_program_of_however_few_steps(system: str, steps: int) -> None:
    module = systems.load(system)
    continuous = system in ("apex-dpg", "d4pg", "qt-opt")
    cfg = resolve(module, None, None, {"env": "Pendulum-v1" if continuous else "CartPole-v1", "steps": steps}).cfg
    module.program(cfg).validate()


def test_a_system_of_whole_episodes_keeps_its_unroll_in_the_shortest_run() -> None:
    resolved = short("es", env="CartPole-v1", steps=7)
    assert resolved.fitted == "" and systems.load("es").program(resolved.cfg).roles


def test_minibatches_of_whole_trajectories_still_divide_them() -> None:
    cfg = short("recurrent-ppo", core="lstm", total_envs=6, actors=1, steps=2_000).cfg
    assert 6 % cfg.minibatches == 0


def test_updates_from_a_replay_begin_after_a_quarter_of_the_run() -> None:
    assert short("dqn", steps=2_000).cfg.min_replay == 500
    assert short("dqn", steps=2_000, min_replay=1_500).cfg.min_replay == 1_500


def test_a_round_of_messages_of_a_slow_environment_takes_half_a_minute() -> None:
    cfg = short("recurrent-ppo").cfg
    found = cfg.fitted(Fit(FREE, math.inf, pace=3.0))
    assert found["envs"] * 2 * found["unroll"] <= 3.0 * 2 * SECONDS
    assert found["envs"] * 2 * found["unroll"] > 3.0 * SECONDS, "no smaller than it must be"
    assert not cfg.fitted(Fit(FREE, math.inf, pace=1e4))
    found = cfg.fitted(Fit(FREE, math.inf, pace=1e-3))
    assert found["envs"] * 2 * found["unroll"] == LEAST_STEPS
    assert short("dqn").cfg.fitted(Fit(FREE, math.inf, pace=1.0))["min_replay"] == 240


def test_games_of_several_agents_stay_whole() -> None:
    found = short("recurrent-ppo", envs=12).cfg.fitted(Fit(FREE, math.inf, pace=0.1, agents=3))
    assert found["envs"] % 3 == 0


class Slow(gym.Env[np.ndarray, int]):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        time.sleep(0.15)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Broken(Slow):
    def step(self, action: int) -> Any:
        raise RuntimeError("not now")


def test_an_environment_is_timed_only_where_that_is_asked_for() -> None:
    for factory, timing, least, most in ((Slow, True, 1e-3, 7.0), (Slow, False, 0.0, 0.0), (Broken, True, 0.0, 0.0)):
        env = given(lambda factory=factory: factory())
        with looking(lambda function: function(), timing=timing):
            assert spec(env, EnvOptions()).action.kind == "discrete"
            assert least <= describe(env, EnvOptions()).pace <= most
