"""Environments whose observation is [environment, episode, step], in every autoreset mode, also as user factories."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

SPACE = gs.Box(-np.inf, np.inf, (3,), np.float32)


def length(env: int, episode: int) -> int:
    return 1 + (3 * env + 5 * episode) % 7


def terminates(env: int, episode: int) -> bool:
    return (env + episode) % 2 == 0


def reward(env: int, episode: int, step: int) -> float:
    return 0.5 * env - 3 * step + episode


class Counting(gym.Env[Any, Any]):
    observation_space, action_space = SPACE, gs.Discrete(5)
    made = 0

    def __init__(self, index: int | None = None):
        self.index = Counting.made if index is None else index
        Counting.made += 1
        self.episode, self.t = -1, 0

    def _info(self) -> dict[str, Any]:
        """Three numbers, the second not of every environment, and what are none."""
        some = {"odd": True} if self.index % 2 else {}
        return {"length": self.t, **some, "third": 0.5, "text": "a", "many": np.zeros(2), "nan": np.nan, "in": {"x": 1}}

    def _obs(self) -> np.ndarray:
        return np.array([self.index, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {"length": -1, "new": 1}  # never told of an episode

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.t < length(self.index, self.episode), "stepped after the end"
        self.t += 1
        end, term = self.t >= length(self.index, self.episode), terminates(self.index, self.episode)
        return self._obs(), reward(self.index, self.episode, self.t), end and term, end and not term, self._info()


def next_step(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([partial(Counting, i) for i in range(num_envs)])


def same_step(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([partial(Counting, i) for i in range(num_envs)], autoreset_mode=AutoresetMode.SAME_STEP)


def disabled(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([partial(Counting, i) for i in range(num_envs)], autoreset_mode=AutoresetMode.DISABLED)


class Stacked(VectorEnv[Any, Any, Any]):
    """SAME_STEP with its last observations in one array, and one buffer for all it returns."""

    def __init__(self, num_envs: int):
        self.inner = disabled(num_envs)
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = SPACE, gs.Discrete(5)
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.buffer = np.zeros((num_envs, 3), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.buffer[:] = self.inner.reset(seed=seed)[0]
        return self.buffer, {}

    def step(self, actions: Any) -> Any:
        self.buffer[:], r, te, tr, told = self.inner.step(actions)
        info = dict(told)
        if (te | tr).any():
            info["final_obs"] = np.where((te | tr)[:, None], self.buffer, 77)
            self.buffer[:] = self.inner.reset(options={"reset_mask": te | tr})[0]
        return self.buffer, r, te, tr, info


class Odd(Counting):
    """Fails on purpose: action 1 raises, 2 gives a NaN observation, 3 an infinite reward, 4 a wrong shape."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs = self._obs()
        if action == 1:
            raise RuntimeError("the motor is on fire")
        if action == 2:
            obs[1] = np.nan
        if action == 4:
            self.observation_space = SPACE
            obs = obs[:2]
        return obs, float("inf") if action == 3 else 0.0, False, False, {}


class Outside(gym.Env[Any, Any]):
    """Shows the action that it is given, which is in its observation space, 2 to 4, or not."""

    observation_space, action_space = gs.Discrete(3, start=2), gs.Discrete(9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        return 2, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return int(action), 0.0, False, False, {}


class Nested(gym.Env[Any, Any]):
    observation_space = gs.Dict(
        {
            "rgb": gs.Box(0, 255, (8, 10, 3), np.uint8),
            "more": gs.Tuple((gs.Discrete(3, start=2), gs.MultiBinary(4), gs.Box(-1, 1, (), np.float64))),
            "grey": gs.Box(0, 255, (8, 10), np.uint8),
        }
    )
    action_space: gym.Space[Any] = gs.MultiDiscrete([2, 3])

    def __init__(self, action: str = "multi"):
        many: dict[str, gym.Space[Any]] = {
            "box": gs.Box(-2, 2, (2, 2), np.float64),
            "start": gs.Discrete(3, start=5),
            "binary": gs.MultiBinary(3),
            "tuple": gs.Tuple((gs.Discrete(2),)),
            "integers": gs.Box(0, 9, (2,), np.int64),
        }
        self.action_space = many.get(action, gs.MultiDiscrete([2, 3]))
        self.last: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        obs = self.observation_space.sample()
        obs["more"] = (np.int64(4), np.array([1, 0, 1, 1], np.int8), np.array(0.25))
        obs["rgb"][:] = np.arange(240).reshape(8, 10, 3)
        return obs, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.reset()[0], float(np.sum(action)), False, False, {}


class Text(gym.Env[Any, Any]):
    observation_space, action_space = gs.Text(5), gs.Discrete(2)
