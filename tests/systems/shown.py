"""An environment that shows an image, a vector, or both."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SHOWN: dict[str, spaces.Space[Any]] = {
    "image": spaces.Box(0, 255, (48, 48, 3), np.uint8),
    "vector": spaces.Box(-1, 1, (3,), np.float32),
}


class Shown(gym.Env[Any, Any]):
    """shows: names of ``SHOWN``; box: continuous actions, else discrete."""

    def __init__(self, shows: tuple[str, ...] = ("image",), box: bool = False) -> None:
        parts = {name: SHOWN[name] for name in shows}
        self.observation_space = spaces.Dict(parts) if len(parts) > 1 else next(iter(parts.values()))
        self.action_space = spaces.Box(-1, 1, (2,), np.float32) if box else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}
