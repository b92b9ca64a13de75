"""Wrappers of single environments (Gymnasium), of vector environments (Gymnasium) and of batches (Shoal)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from shoal.api import Arrays, EnvBatch, EnvironmentFailed, EnvSpec, EnvStep, Episode, Observation, UsageError
from shoal.own_code import place
from shoal.words import counted

from . import composite, masks
from .blame import defined_at
from .infos import numbers
from .options import ActionMask, RewardClip
from .spaces import ActionCodec
from .types import Env, Info, Nested, Space

SEVERAL = (np.ndarray, list, tuple)  # types of rewards that may be more than one number


class DropText(gym.ObservationWrapper[Any, Any, Any]):
    """Removes the text from a Dict observation (MiniGrid's ``mission``), which no network here reads."""

    def __init__(self, env: Env):
        super().__init__(env)
        space = env.observation_space
        if isinstance(space, gs.Dict):
            arrays = (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Dict, gs.Tuple)
            self._keys = [key for key, sub in space.spaces.items() if isinstance(sub, arrays)]
            self.observation_space = gs.Dict({key: space.spaces[key] for key in self._keys})
        else:
            self._keys = []

    def observation(self, observation: Nested) -> Nested:
        return {key: observation[key] for key in self._keys} if self._keys else observation


class Named(gym.Wrapper[Any, Any, Any, Any]):
    """Reports which sub-environment failed and in which call. Drops the infos, which cost more than a small step,
    except numbers at an episode's end and action masks.

    check: also report an observation that is not in its space (float64 in place of float32 is accepted). action_mask:
    as in ``EnvOptions``.
    """

    def __init__(self, env: Env, id: str, index: int, check: bool = True, action_mask: ActionMask = "auto"):
        super().__init__(env)
        self._id, self._index, self._check = id, index, check
        for space in ("observation_space", "action_space"):
            if not isinstance(found := getattr(env, space, None), gs.Space):
                told = "has none" if found is None else f"found {type(found).__name__}"
                raise UsageError(f"environment {id!r} needs an {space} of gymnasium.spaces: {told}")
        action = ActionCodec(env.action_space, id).action
        self.masks = masks.in_info(env, env.observation_space, action_mask, action, id)  # whether infos contain masks
        self._size = sum(action.sizes) if self.masks else 0
        self._unmasked = not self.masks and masks.told_of(env.observation_space, action_mask, action)
        self._begins = self._unmasked  # whether the next step is the first one, whose infos are checked too
        self._last_seed: int | None = None
        self._space = env.observation_space
        self._usual = env.observation_space.shape, env.observation_space.dtype

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Nested, Info]:
        if seed is not None:
            self._last_seed = seed
        try:
            returned = self.env.reset(seed=seed, options=options)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(
                f"environment {self._id!r} raised {type(error).__name__} in reset (index {self._index}, "
                f"seed {self._last_seed}): {error}{place(error)}"
            ) from error
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise EnvironmentFailed(
                f"environment {self._id!r} returned {_kinds(returned)} from reset instead of (observation, info)"
                f"{_defined(self.env, 'reset')}"
            )
        obs, info = returned
        if self._check and (wrong := misfit(self._space, obs)):
            raise EnvironmentFailed(
                f"environment {self._id!r} returned {wrong} from reset (index {self._index}, seed {self._last_seed})"
            )
        if self._size:
            where = f"at reset, index {self._index}, seed {self._last_seed}"
            return obs, {masks.KEY: masks.one(self._flat(info), self._size, self._id, lambda: where)}
        if self._unmasked:
            masks.unannounced(info, self._id)
        return obs, {}

    def step(self, action: Nested) -> tuple[Nested, SupportsFloat, bool, bool, Info]:
        try:
            returned = self.env.step(action)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(
                f"environment {self._id!r} raised {type(error).__name__} in step ({self._doing(action)}): {error}"
                f"{place(error)}"
            ) from error
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise EnvironmentFailed(
                f"environment {self._id!r} returned {_kinds(returned)} from step instead of (observation, reward, "
                f"terminated, truncated, info), as Gymnasium has it ({self._doing(action)}){_defined(self.env, 'step')}"
            )
        obs, reward, terminated, truncated, info = returned
        if not isinstance(info, Mapping):
            raise EnvironmentFailed(
                f"environment {self._id!r} returned {type(info).__name__} as the info of a step instead of a dict "
                f"({self._doing(action)}){_defined(self.env, 'step')}"
            )
        if type(reward) in SEVERAL:
            reward = self._one_reward(np.asarray(reward), action)
        usual = type(obs) is np.ndarray and (obs.shape, obs.dtype) == self._usual
        if not usual and self._check and (wrong := misfit(self._space, obs)):
            raise EnvironmentFailed(f"environment {self._id!r} returned {wrong} ({self._doing(action)})")
        if self._begins:
            self._begins = False
            masks.unannounced(info, self._id)
        told: Info = numbers(info) if terminated or truncated else {}
        if self._size:
            told[masks.KEY] = masks.one(self._flat(info), self._size, self._id, lambda: self._doing(action))
        return obs, reward, terminated, truncated, told

    def _flat(self, info: Info) -> Info:
        """Return ``info`` with a mask of several parts, for a Dict or Tuple of actions, flattened to one row."""
        if not isinstance(info.get(masks.KEY), (dict, tuple)):
            return info
        return {**info, masks.KEY: composite.flat_mask(self.env.action_space, info[masks.KEY])}

    def _one_reward(self, reward: np.ndarray, action: Nested) -> float:
        if reward.size != 1:
            raise EnvironmentFailed(
                f"environment {self._id!r} returned a reward of shape {list(reward.shape)} instead of a number "
                f"({self._doing(action)}){_defined(self.env, 'step')}; a gymnasium.RewardWrapper around it can make "
                "one number of several, and agents with a reward each are PettingZoo's parallel environments",
                certain=True,
            )
        return float(reward.item())

    def _doing(self, action: Nested) -> str:
        return f"index {self._index}, action {composite.shown(action)}, seed {self._last_seed}"


def _defined(env: Env, method: str) -> str:
    """Return where the environment defines ``method``, as the end of a sentence."""
    return f"; its {method} is in {at}" if (at := defined_at(env, method)) else ""


def _kinds(returned: Any) -> str:
    """Return a description of the types in a value; of a tuple, of each part."""
    if isinstance(returned, tuple):
        return f"({', '.join(type(part).__name__ for part in returned)})"
    return type(returned).__name__


def misfit(space: Space, obs: Nested, name: str = "obs") -> str:
    """Return what is wrong with the shape or dtype of an observation, or "" if it can be one of ``space``."""
    if isinstance(space, gs.Dict):
        missing = [key for key in space.spaces if key not in obs]
        if missing:
            return f"{name!r} without {missing[0]!r}"
        return next((w for key, sub in space.spaces.items() if (w := misfit(sub, obs[key], f"{name}/{key}"))), "")
    if isinstance(space, gs.Tuple):
        if len(obs) != len(space.spaces):
            return f"{name!r} of {counted(len(obs), 'part')} instead of {len(space.spaces)}"
        return next((w for i, sub in enumerate(space.spaces) if (w := misfit(sub, obs[i], f"{name}/{i}"))), "")
    array = obs if isinstance(obs, np.ndarray) else np.asarray(obs)
    if array.shape != space.shape:
        return f"{name!r} of shape {list(array.shape)} instead of {list(space.shape or ())}"
    if array.dtype != space.dtype and not np.can_cast(array.dtype, space.dtype or array.dtype, "same_kind"):
        return f"{name!r} of dtype {array.dtype} instead of {space.dtype}"
    return ""


class CartPoleNoVelocity(CartPoleVectorEnv):
    """CartPole that shows position and angle but not their velocities, which can only be solved with a memory."""

    def __init__(self, num_envs: int, **kwargs: Any):
        super().__init__(num_envs, **kwargs)
        full = self.single_observation_space
        assert isinstance(full, gs.Box)
        self.single_observation_space = gs.Box(full.low[::2], full.high[::2], dtype=np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[:, ::2], reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[:, ::2], info


def training_reward(reward: np.ndarray, clip: RewardClip, scale: float | np.float32) -> np.ndarray:
    """Return the reward to learn from: its sign, clipped to [-1, 1], or unchanged; then scaled."""
    if clip != "none":
        reward = np.sign(reward) if clip == "sign" else np.clip(reward, -1, 1)
    out: np.ndarray = reward * np.float32(scale)
    return out


class TrainingReward:
    """Replaces the reward by its sign, by its value clipped to [-1, 1] or by itself, and scales it. ``Episode.ret``
    stays raw."""

    def __init__(self, inner: EnvBatch, clip: RewardClip, scale: float):
        self.inner, self.spec, self.num_envs = inner, inner.spec, inner.num_envs
        self._clip, self._scale = clip, np.float32(scale)

    def reset(self, seed: int) -> Arrays:
        return self.inner.reset(seed)

    def step(self, action: np.ndarray) -> EnvStep:
        step = self.inner.step(action)
        return step._replace(reward=training_reward(step.reward, self._clip, self._scale))

    def so_far(self) -> list[Episode]:
        return self.inner.so_far()

    def close(self) -> None:
        self.inner.close()


class LastActionReward:
    """Adds ``obs/last_action`` (``one_hot``, or ``vector`` for continuous and mixed actions) and ``obs/last_reward``
    (as used for training) to the observations. Both are zero at an episode's first observation."""

    def __init__(self, inner: EnvBatch, spec: EnvSpec):
        self.inner, self.spec, self.num_envs = inner, spec, inner.num_envs
        self._same = spec.autoreset == "same_step"

    @staticmethod
    def observations(spec: EnvSpec) -> dict[str, Observation]:
        if spec.action.dtype == "float32":
            action = Observation(spec.action.shape, "float32")
        else:
            action = Observation((len(spec.action.sizes),), "int64", "one_hot", spec.action.sizes)
        if taken := spec.observations.keys() & {"obs/last_action", "obs/last_reward"}:
            raise UsageError(
                f"environment {spec.id!r} shows '{min(taken).removeprefix('obs/')}' itself: leave out "
                "last_action_reward, which would take its place"
            )
        return {**spec.observations, "obs/last_action": action, "obs/last_reward": Observation((1,), "float32")}

    def reset(self, seed: int) -> Arrays:
        obs = self.inner.reset(seed)
        like = self.spec.observations["obs/last_action"]
        return {
            **obs,
            "obs/last_action": np.zeros((self.num_envs, *like.shape), like.dtype),
            "obs/last_reward": np.zeros((self.num_envs, 1), np.float32),
        }

    def step(self, action: np.ndarray) -> EnvStep:
        step = self.inner.step(action)
        last = np.array(action, self.spec.action.dtype).reshape(self.num_envs, -1)
        reward = step.reward[:, None]
        if not self._same:
            last[~step.valid] = 0
            return step._replace(obs={**step.obs, "obs/last_action": last, "obs/last_reward": reward.copy()})
        first = (step.terminated | step.truncated)[:, None]
        final = {**(step.final_obs or {}), "obs/last_action": last, "obs/last_reward": reward.copy()}
        obs = {
            **step.obs,
            "obs/last_action": np.where(first, 0, last).astype(last.dtype),
            "obs/last_reward": np.where(first, np.float32(0), reward),
        }
        return step._replace(obs=obs, final_obs=final)

    def so_far(self) -> list[Episode]:
        return self.inner.so_far()

    def close(self) -> None:
        self.inner.close()
