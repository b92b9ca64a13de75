"""Environments stepped one after the other: Gymnasium's ``SyncVectorEnv`` with less overhead per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from .types import Env, Info, Nested


class OneByOne(SyncVectorEnv):
    """A vector environment with NEXT_STEP autoreset. Actions are arrays ``[N, ...]``, or dicts or tuples of them.
    Returned arrays are new and never overwritten."""

    def __init__(self, makers: Sequence[Callable[[], Env]]):
        super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        self._box = isinstance(self.single_observation_space, gs.Box)

    def step(self, actions: Nested) -> tuple[Nested, np.ndarray, np.ndarray, np.ndarray, Info]:
        rows: list[Nested] = []
        rewards, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), np.bool_)
        infos: Info = {}
        each = actions if isinstance(actions, np.ndarray) else list(iterate(self.action_space, actions))
        for i, env in enumerate(self.envs):
            if self._autoreset_envs[i]:
                obs, info = env.reset()
            else:
                obs, reward, terminated[i], truncated[i], info = env.step(each[i])
                rewards[i] = reward if isinstance(reward, (float, int)) else number(reward)
            rows.append(obs)
            if info:
                infos = self._add_info(infos, info, i)
        self._autoreset_envs = terminated | truncated
        space = self.single_observation_space
        if self._box:
            return np.array(rows, space.dtype), rewards, terminated, truncated, infos
        empty: Nested = create_empty_array(space, self.num_envs)
        return concatenate(space, rows, empty), rewards, terminated, truncated, infos


def number(reward: object) -> float:
    """Return a reward as a float. It may also be a truth value, a NumPy number, an array of one element or a fraction.
    Raises TypeError for anything else."""
    if isinstance(reward, (list, tuple, np.ndarray)):
        array = np.asarray(reward)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.item())
    elif not isinstance(reward, (str, bytes)) and hasattr(reward, "__float__"):
        return float(reward)
    raise TypeError(f"its reward is {reward!r:.60}, expected one number")
