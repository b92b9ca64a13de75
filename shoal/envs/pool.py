"""EnvPool, if it is installed: ids that Gymnasium has too, with the same spaces, and ids that only EnvPool has.

Checked against EnvPool 1.2 (sail-sg/envpool#194 asks about the end of episodes): it uses NEXT_STEP. The row that ends
an episode holds the final observation; the next one ignores its action and returns the first observation and reward 0.
EnvPool seeds its environments only when it is built, so ``reset`` with another seed builds it again.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from shoal.api import UsageError

from . import masks
from .batch import sub_seeds
from .options import EnvOptions
from .spaces import ActionCodec, ObservationCodec
from .types import Env, Info, Nested, Vector


def installed() -> bool:
    return importlib.util.find_spec("envpool") is not None


def names() -> frozenset[str]:
    """Return the ids of EnvPool, none if it is not installed."""
    if not installed():
        return frozenset()
    import envpool

    return frozenset(envpool.list_all_envs())


def same_spaces(env: str, single: Callable[[], Env], options: EnvOptions) -> bool:
    """Return True if EnvPool's ``env`` has the observations and actions of Gymnasium's, or if Gymnasium's cannot be
    made because a package is missing. EnvPool gives no action masks."""
    try:
        theirs = EnvPoolEnv(env, 1, options)
    except UsageError:
        return False
    try:
        ours = single()
    except UsageError:
        return True
    try:
        action = ActionCodec(ours.action_space, env).action
        if masks.in_info(ours, ours.observation_space, options.action_mask, action, env):
            return False
        return (
            ObservationCodec(theirs.single_observation_space, env).observations
            == ObservationCodec(ours.observation_space, env).observations
            and ActionCodec(theirs.single_action_space, env).action == action
        )
    except UsageError:
        return False
    finally:
        ours.close()


def make(env: str, num: int, options: EnvOptions) -> Vector:
    """Return ``num`` environments as a Gymnasium vector environment."""
    return cast(Vector, EnvPoolEnv(env, num, options))


class EnvPoolEnv:
    """EnvPool on one thread as a Gymnasium vector environment. It is built at ``reset``."""

    def __init__(self, env: str, num: int, options: EnvOptions):
        import envpool

        self.num_envs, self._id = num, env
        self._kwargs: dict[str, object] = {"num_threads": 1, **options.env_kwargs}
        if options.max_episode_steps is not None:
            self._kwargs["max_episode_steps"] = options.max_episode_steps
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._pool: Any = None
        try:
            with warnings.catch_warnings():  # about the precision of its own bounds
                warnings.simplefilter("ignore")
                spec = envpool.make_spec(env, **self._kwargs)
                space = spec.gymnasium_observation_space
                if isinstance(space, gs.Dict) and "mission" in space.spaces:  # MiniGrid's text as bytes
                    space = gs.Dict({key: sub for key, sub in space.spaces.items() if key != "mission"})
                self.single_observation_space = space
                self.single_action_space = spec.gymnasium_action_space
        except (TypeError, ValueError, AssertionError) as error:
            raise UsageError(f"EnvPool cannot make {env!r} with these options: {error}") from error

    def reset(self, seed: int) -> tuple[Nested, Info]:
        import envpool

        self.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool = envpool.make_gymnasium(
                self._id, num_envs=self.num_envs, seed=sub_seeds(seed, self.num_envs), **self._kwargs
            )
            return cast(tuple[Nested, Info], self._pool.reset())  # which also creates its spaces

    def step(self, action: np.ndarray) -> tuple[Nested, np.ndarray, np.ndarray, np.ndarray, Info]:
        step: tuple[Nested, np.ndarray, np.ndarray, np.ndarray, Info] = self._pool.step(action)
        return step

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
