"""Rollouts fit a run that is short, or an environment that is slow, unless the user has set them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from shoal import systems
from shoal.envs import EnvOptions, given, looking, spec
from shoal.envs._make import describe
from shoal.settings.config import resolve
from shoal.topology.fitting import (
    LEAST_STEPS,
    ROUNDS,
    SECONDS,
    Fit,
    fitted,
    fitted_minibatches,
    fitted_replay,
)  # fmt: skip

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


class Slow(gym.Env[np.ndarray, Any]):
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


@dataclass
class Rollouts:
    """What of a configuration is fitted; each test gives values that are not the defaults."""

    envs: int = 1
    total_envs: int = 0
    unroll: int = 1
    minibatches: int = 1
    min_replay: int = 1
    batch: int = 1
    core: str = "none"

    def num_actors(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (2_048, {"envs": 4, "unroll": 16}),  # 16 x 32 -> 16 x 16 -> 8 x 16 = 2048 / 16
        (2_047, {"envs": 4, "unroll": 8}),
        (8_192, {}),
        (8_191, {"unroll": 16}),
        (16, {"envs": 4, "unroll": 8}),  # 64 steps, the fewest
    ],
)
def test_a_round_is_halved_until_it_is_a_16th_of_the_steps(steps: int, found: Any) -> None:
    assert fitted(Rollouts(envs=8, unroll=32), Fit(FREE, steps)) == found
    # 2 actors that make 1/480 of the steps in a second each have half a minute for the same
    assert fitted(Rollouts(envs=8, unroll=32), Fit(FREE, math.inf, pace=steps / 960)) == found
    assert fitted(Rollouts(envs=8, unroll=32), Fit(FREE, steps, pace=1e9)) == found
    total = {"total_envs" if name == "envs" else name: n * (2 if name == "envs" else 1) for name, n in found.items()}
    assert fitted(Rollouts(envs=8, total_envs=16, unroll=32), Fit(FREE, steps)) == total


@pytest.mark.parametrize(
    ("given", "fit", "found"),
    [
        (Rollouts(envs=8, unroll=32), Fit(("unroll",), 16), {"unroll": 8}),
        (Rollouts(envs=8, unroll=40), Fit(("envs", "total_envs"), 16), {"envs": 1}),
        (Rollouts(envs=8, total_envs=16, unroll=32), Fit(("envs", "unroll"), 16), {"unroll": 8}),
        (Rollouts(envs=6, unroll=15), Fit(FREE, 16), {"envs": 3}),  # 3 is odd, and 7 steps are too few
        (Rollouts(envs=12, unroll=15), Fit(FREE, 16, agents=3), {"envs": 3}),
        (Rollouts(envs=8, unroll=17), Fit(FREE, 1_600), {"envs": 4, "unroll": 8}),
        (Rollouts(envs=8, unroll=32), Fit((), 16), {}),
    ],
)
def test_a_round_is_halved_only_where_that_leaves_whole_parts_and_the_users_settings(
    given: Any, fit: Fit, found: Any
) -> None:
    assert fitted(given, fit) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (Rollouts(envs=4, unroll=16, minibatches=4), {}),  # 128 steps, 32 in each
        (Rollouts(envs=4, unroll=15, minibatches=4), {"minibatches": 2}),
        (Rollouts(envs=4, unroll=1, minibatches=16), {"minibatches": 1}),
        (Rollouts(envs=3, unroll=64, minibatches=4), {}),
        (Rollouts(envs=3, unroll=64, minibatches=4, core="lstm"), {"minibatches": 2}),  # of 6 trajectories
        (Rollouts(envs=3, unroll=64, minibatches=3, core="lstm"), {}),
        (Rollouts(envs=3, unroll=64, minibatches=5, core="lstm"), {"minibatches": 2}),
        (Rollouts(envs=1, unroll=8, minibatches=2, core="lstm"), {"minibatches": 1}),
    ],
)
def test_a_minibatch_has_32_steps_and_whole_trajectories(given: Any, found: Any) -> None:
    assert fitted_minibatches(given, Fit(FREE, 1_000)) == found
    assert fitted_minibatches(given, Fit((), 1_000)) == {}


@pytest.mark.parametrize(
    ("given", "fit", "found"),
    [
        (Rollouts(min_replay=900, batch=32), Fit(FREE, 2_000), 500),
        (Rollouts(min_replay=900, batch=32), Fit(FREE, 2_003), 500),
        (Rollouts(min_replay=900, batch=32), Fit(FREE, 2_000, pace=1.5), 360),  # 2 minutes of 2 actors
        (Rollouts(min_replay=900, batch=32), Fit(FREE, 2_000, pace=5.0), 500),
        (Rollouts(min_replay=900, batch=100), Fit(FREE, 40), 100),
        (Rollouts(min_replay=900, batch=32), Fit(FREE, 40), 64),
        (Rollouts(min_replay=501, batch=32), Fit(FREE, 2_000), 500),
        (Rollouts(min_replay=500, batch=32), Fit(FREE, 2_000), None),
        (Rollouts(min_replay=50, batch=100), Fit(FREE, 40), None),
        (Rollouts(min_replay=900, batch=32), Fit((), 2_000), None),
    ],
)
def test_the_least_replay_is_a_quarter_of_the_run_or_two_minutes_of_it(given: Any, fit: Fit, found: int | None) -> None:
    assert fitted_replay(given, fit) == ({} if found is None else {"min_replay": found})


def test_the_reason_for_a_cut_is_the_lower_bound() -> None:
    assert Fit(FREE, 2_881, pace=3.0).reason(2) == "the environment makes 3 steps a second"
    assert Fit(FREE, 2_880, pace=3.0).reason(2) == "the run has 2,880 steps"
    assert Fit(FREE, 1_441, pace=3.0).reason(1) == "the environment makes 3 steps a second"
    assert Fit(FREE, 2_000).reason(2) == "the run has 2,000 steps"
