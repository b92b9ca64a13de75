"""Environments whose spaces are not those of Shoal's arrays, and that check every action they are given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs


class Odd(gym.Env[Any, Any]):
    """Ends after five steps; the reward is 1."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's

    def __init__(self, actions: gs.Space[Any], observations: gs.Space[Any], render_mode: str | None = None):
        self.action_space, self.observation_space, self.render_mode = actions, observations, render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}

    def render(self) -> Any:
        return np.full((64, 64, 3), 40 * self.steps, np.uint8)


def offset(render_mode: str | None = None) -> Odd:
    parts = {"speed": gs.Discrete(4, start=10), "image": gs.Box(0, 255, (40, 48, 3), np.uint8)}
    return Odd(gs.Discrete(3, start=-1), gs.Dict(parts), render_mode)


def matrix(render_mode: str | None = None) -> Odd:
    low, high = np.array([[-1, -2], [-3, -4]]), np.array([[1, 2], [3, 4]])
    return Odd(gs.Box(low, high, dtype=np.float64), gs.Box(-1, 1, (2, 3), np.float32), render_mode)


def mixed() -> Odd:
    kick = gs.Tuple((gs.Box(-2.0, 3.0, (1,)), gs.Discrete(3, start=1)))
    parts = {
        "kick": kick,
        "move": gs.Box(0.0, 10.0, (2, 2), np.float64),
        "say": gs.MultiDiscrete([2, 4], start=[5, -1]),
    }
    return Odd(gs.Dict(parts), gs.Box(-1, 1, (3,), np.float32))


def boxes() -> Odd:
    return Odd(
        gs.Tuple((gs.Box(-2.0, 3.0, (1,)), gs.Dict({"b": gs.Box(-1, 1, (2,))}))), gs.Box(-1, 1, (3,), np.float32)
    )


def nested() -> Odd:
    return Odd(gs.Dict({"only": gs.Tuple((gs.Discrete(3, start=-1),))}), gs.Box(-1, 1, (3,), np.float32))


def tuples() -> Odd:
    return Odd(
        gs.MultiDiscrete(np.array([[2, 3], [4, 5]])), gs.Tuple((gs.Box(-1, 1, (), np.float32), gs.MultiBinary(3)))
    )
