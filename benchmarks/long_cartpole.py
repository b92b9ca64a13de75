"""CartPole without velocities whose episodes last 200 steps, whatever the pole does: sequences that are cut from them
have their full length, so that all sides of a benchmark learn from as many steps in an update."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

STEPS = 200


class Long(gym.Wrapper[Any, Any, Any, Any]):
    """Positions only; an episode is cut off after ``STEPS`` steps."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1").unwrapped)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.steps = 0

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        obs, info = self.env.reset(**given)
        return obs[[0, 2]], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        cartpole: Any = self.env
        cartpole.steps_beyond_terminated = None  # or it would warn
        obs, _, _, _, info = cartpole.step(action)
        self.steps += 1
        return obs[[0, 2]], 1.0, False, self.steps >= STEPS, info


def make() -> gym.Env[Any, Any]:
    """One of them."""
    return Long()
