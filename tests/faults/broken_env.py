"""An environment that counts its steps and breaks in another way in each of its first lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

FAULTS = ["raises", "NaN observation", "infinite reward", "wrong shape", "wrong dtype", "raises in reset"]


class Broken(gym.Env[Any, Any]):
    """Its observation is [step of the episode, 0.5]. Sub-environment 1 breaks in its seventh step or its first
    reset; ``folder`` remembers which faults there have been."""

    observation_space, action_space = gs.Box(-np.inf, np.inf, (2,), np.float32), gs.Discrete(3)
    made = 0

    def __init__(self, folder: str):
        self.index, Broken.made = Broken.made, Broken.made + 1
        left = [fault for fault in FAULTS if not (Path(folder) / fault).exists()]
        self.fault = left[0] if self.index == 1 and left else ""
        self.folder, self.t = Path(folder), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None and self.folder.name:
            (self.folder / f"seed {seed}").touch(exist_ok=False)  # raises for one that was used before
        if self.fault == "raises in reset":
            (self.folder / self.fault).touch()
            raise RuntimeError("the track is closed")
        self.t = 0
        return np.array([0, 0.5], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        obs: Any = np.array([self.t, 0.5], np.float32)
        reward = 1.0
        if self.fault and self.t == 7:
            (self.folder / self.fault).touch()
            if self.fault == "raises":
                raise RuntimeError("the motor is on fire")
            if self.fault == "NaN observation":
                obs[1] = np.nan
            if self.fault == "infinite reward":
                reward = np.inf
            if self.fault == "wrong shape":
                obs = obs[:1]
            if self.fault == "wrong dtype":
                obs = obs.astype(np.complex64)
        return obs, reward, self.t >= 50, False, {}


class Hopeless(Broken):
    """Raises in its third step, in every life."""

    def __init__(self) -> None:
        super().__init__("")
        self.fault = ""

    def step(self, action: Any) -> Any:
        if self.t == 2:
            raise RuntimeError("there is no road")
        return super().step(action)
