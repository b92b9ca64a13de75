"""Environments in which an action that is not allowed raises."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, VectorEnv

ACTIONS: dict[str, gs.Space[Any]] = {"discrete": gs.Discrete(4, start=1), "multi": gs.MultiDiscrete([2, 3])}


class Legal(gym.Env[Any, Any]):
    """Five random observations of 3 numbers, each with a random mask, often of a single action. The last observation
    allows nothing, as at the end of many games. where: ``dict``, ``info``, ``quiet`` (in info, unannounced), or
    ``late`` (as quiet, but not at a reset); stuck: the third mask forbids everything, too."""

    def __init__(self, where: str = "dict", action: str = "discrete", stuck: bool = False, size: int = 0) -> None:
        self.where, self.stuck, self.action_space = where, stuck, ACTIONS[action]
        self.sizes = [4] if action == "discrete" else [2, 3]
        box = gs.Box(-1.0, 1.0, (3,), np.float32)
        masks = gs.MultiBinary(size or sum(self.sizes))
        self.observation_space = gs.Dict({"action_mask": masks, "board": box}) if where == "dict" else box
        if where == "info":
            self.metadata = {"action_mask": True}

    def draw(self) -> np.ndarray:
        nothing = self.time == 5 or (self.stuck and self.time == 2)
        parts = [self.np_random.random(n) < 0.4 for n in self.sizes]
        for part in parts:
            if not part.any():
                part[self.np_random.integers(len(part))] = True
        return np.concatenate(parts).astype(np.int8) * (not nothing)

    def observe(self) -> tuple[Any, dict[str, Any]]:
        self.mask = self.draw()
        board = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if self.where == "dict":
            return {"action_mask": self.mask, "board": board}, {}
        return board, {"action_mask": self.mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        obs, info = self.observe()
        return obs, {} if self.where == "late" else info

    def step(self, action: Any) -> Any:
        chosen = np.atleast_1d(np.asarray(action) - (1 if len(self.sizes) == 1 else 0))
        begins = np.cumsum([0, *self.sizes[:-1]])
        if not self.mask[begins + chosen].all():
            raise ValueError(f"{action} is not allowed by {self.mask}")
        self.time += 1
        obs, info = self.observe()
        return obs, float(chosen[0]), self.time == 5, False, info


class Trap(gym.Env[Any, Any]):
    """Two steps without a reward: at the second only action 0 is allowed, and action 2 never is."""

    observation_space = gs.Dict({"action_mask": gs.MultiBinary(3), "place": gs.Box(0.0, 1.0, (2,), np.float32)})
    action_space = gs.Discrete(3)

    def observe(self) -> Any:
        mask = np.array([1, self.time == 0, 0], np.int8)
        return {"action_mask": mask, "place": np.eye(3, dtype=np.float32)[self.time, :2]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        assert self.observe()["action_mask"][action], "not allowed"
        self.time += 1
        return self.observe(), 0.0, self.time == 2, False, {}


class Both(VectorEnv[Any, Any, Any]):
    """Counts to 3, then is truncated and resets: in the same step, or when told. Masks, in ``info``, allow action 0 at
    first, action 1 then, and so on. where: ``info``, ``quiet`` or ``late``, as in ``Legal``."""

    def __init__(self, num_envs: int, mode: str = "SAME_STEP", where: str = "info") -> None:
        self.num_envs, self.mode, self.late = num_envs, AutoresetMode[mode], where == "late"
        self.metadata = {"action_mask": where == "info", "autoreset_mode": self.mode}
        self.single_observation_space, self.single_action_space = gs.Box(0, 9, (1,), np.float32), gs.Discrete(4)
        self.count = np.zeros(num_envs, np.int64)

    def told(self) -> tuple[np.ndarray, dict[str, Any]]:
        return self.count[:, None].astype(np.float32), {"action_mask": np.eye(4, dtype=np.int8)[self.count]}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count[(options or {}).get("reset_mask", np.ones(self.num_envs, bool))] = 0
        obs, info = self.told()
        return obs, {} if self.late else info

    def step(self, actions: np.ndarray) -> Any:
        assert (actions == self.count).all(), (actions, self.count)
        self.count += 1
        obs, info = self.told()
        over = self.count == 3
        if self.mode is AutoresetMode.SAME_STEP and over.any():
            last = {"final_obs": obs.copy(), "final_info": info}
            self.count[over] = 0
            obs, info = self.told()
            info |= last
        return obs, np.zeros(self.num_envs), np.zeros(self.num_envs, bool), over, info
