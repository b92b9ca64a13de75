"""Environments whose episodes never end, or only some of them, with a reward of 0.5 a step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Endless(gym.Env[Any, Any]):
    """Episodes of 7 steps with odd seeds, and without an end otherwise. rare: all without an end. even: steps of
    the episodes without an end, to have one after all."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rare: bool = False, even: int = 0) -> None:
        self.rare, self.even, self.length, self.steps = rare, even, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        odd = int(self.np_random.integers(2)) if seed is None else seed % 2
        self.length, self.steps = 7 if odd and not self.rare else self.even, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 0.5, self.steps == self.length, False, {}


def some() -> Endless:
    return Endless()


def late() -> Endless:
    return Endless(even=12)


def none() -> Endless:
    return Endless(rare=True)
