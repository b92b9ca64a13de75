"""Which preset an environment gets that none is filed for: by what it shows and takes."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from shoal.api import ShoalError, UsageError
from shoal.envs import given, looking
from shoal.local.apart import call_here
from shoal.settings.config import resolve
from shoal.settings.kinds import INTERFACES, preset_kinds
from shoal.systems import SYSTEMS, load

PICTURE = gs.Box(0, 255, (40, 40, 3), np.uint8)
VECTOR = gs.Box(-1, 1, (3,), np.float32)
MADE: list[Any] = []


class Shown(gym.Env):
    """An environment of these spaces, which nobody steps."""

    def __init__(self, observation=VECTOR, action=gs.Discrete(2)):
        MADE.append(observation)
        self.observation_space, self.action_space = observation, action


def chosen(system, observation, action=gs.Discrete(2), **more):
    env = given(lambda **kwargs: Shown(observation, action))
    with looking(call_here):
        return resolve(load(system), None, None, {"env": env, **more}, source="argument", name=system)


@pytest.mark.parametrize(
    ("observation", "action", "preset"),
    [
        (gs.Discrete(500), gs.Discrete(6), "states"),
        (gs.MultiDiscrete([3, 4]), gs.MultiDiscrete([2, 2]), "states"),
        (gs.Tuple((gs.Discrete(3), gs.Discrete(2))), gs.Discrete(2), "states"),
        (VECTOR, gs.Discrete(2), "vector"),
        (gs.Dict({"a": gs.Discrete(3), "b": VECTOR}), gs.Discrete(2), "vector"),
        (VECTOR, gs.Box(-1, 1, (2,)), "vector_continuous"),
        (gs.Discrete(5), gs.Box(-1, 1, (2,)), "vector_continuous"),
        (PICTURE, gs.Discrete(2), "picture"),
        (gs.Dict({"camera": PICTURE, "speed": VECTOR}), gs.Box(-1, 1, (2,)), "picture_continuous"),
    ],
)
def test_what_is_shown_and_taken_names_the_preset_of_ppo(observation, action, preset):
    found = chosen("recurrent-ppo", observation, action)
    assert found.preset == preset
    told = "states_continuous" if preset == "vector_continuous" and isinstance(observation, gs.Discrete) else preset
    assert INTERFACES[told] in found.why


def test_a_system_without_a_preset_for_it_says_so():
    found = chosen("d4pg", PICTURE, gs.Box(-1, 1, (2,)))
    assert found.preset == "none" and "has no preset for" in found.why


def test_an_environment_of_a_kind_is_not_looked_at():
    MADE.clear()
    assert resolve(load("dqn"), None, None, {"env": "CartPole-v1"}, source="argument", name="dqn").preset == "classic"
    env = given(lambda **kwargs: Shown())
    with looking(call_here):
        resolve(load("dqn"), "none", None, {"env": env}, source="argument", name="dqn")
    assert MADE == []


def test_options_of_the_environment_are_those_that_were_given():
    made = []

    def make(size=1):
        made.append(size)
        return Shown(gs.Discrete(size))

    with looking(call_here):
        found = resolve(
            load("dqn"), None, None, {"env": given(make), "env_kwargs": {"size": 7}}, source="argument", name="dqn"
        )
    assert found.preset == "states" and made == [7]


def test_a_wrong_option_is_refused_in_words():
    with pytest.raises(UsageError, match="'max_episode_steps'"):
        chosen("dqn", VECTOR, max_episode_steps=-1)


def test_an_environment_that_cannot_be_made_is_named():
    def broken():
        raise RuntimeError("no display")

    with looking(call_here), pytest.raises(ShoalError, match="no display"):
        resolve(load("dqn"), None, None, {"env": given(broken)}, source="argument", name="dqn")


@pytest.mark.parametrize(
    ("env", "kinds"),
    [
        ("MountainCar-v0", ["vector", "classic"]),
        ("MountainCarContinuous-v0", ["vector_continuous", "classic_continuous", "classic"]),
        ("Pendulum-v1", ["classic_continuous", "classic"]),
        ("CartPole-v1", ["classic"]),
        ("CarRacing-v3", ["picture_continuous", "box2d"]),
        ("HumanoidStandup-v5", ["mujoco_standup", "mujoco"]),
        ("Unknown-v0", []),
    ],
)
def test_a_tasks_own_presets_come_before_those_of_its_kind(env, kinds):
    assert preset_kinds(env) == kinds


@pytest.mark.parametrize("system", SYSTEMS)
def test_presets_by_interface_suit_the_actions_that_a_system_takes(system):
    presets = [name for name in load(system).PRESETS if name in INTERFACES]
    continuous = [name for name in presets if name.endswith("_continuous")]
    if system in ("dqn", "apex-dqn", "rainbow", "r2d2", "gorila"):
        assert presets and not continuous
    if system in ("apex-dpg", "d4pg", "qt-opt"):
        assert presets == continuous != []
