"""Any Gymnasium vector environment as an ``EnvBatch``: uniform autoreset, checks, and raw episode statistics."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal.api import MASK, NO_NUMBERS, Arrays, EnvironmentFailed, EnvSpec, EnvStep, Episode
from shoal.own_settings import TheirSettings
from shoal.words import counted

from . import masks
from .infos import episode_numbers
from .spaces import LARGEST, NOT_FINITE, ActionCodec, ObservationCodec, finite
from .types import Info, Nested, Vector

log = logging.getLogger("shoal.envs")
# Episode(*triple) without a Python frame: 1,024 small environments may end fifty episodes in each step
_episode: Callable[[tuple[float, int, Mapping[str, float]]], Episode] = partial(tuple.__new__, Episode)


def sub_seeds(seed: int, num: int) -> list[int]:
    """Return one seed per sub-environment: ``seed + 1``, ``seed + 2`` ... (31 bits, which every environment accepts). A
    runtime gives batches seeds that are at least 4,096 apart. ``seed`` itself is left to the agent, because one
    generator must not draw both the task and the exploration."""
    return [(seed + 1 + i) % 2**31 for i in range(num)]


class VectorBatch:
    """A ``gymnasium.vector.VectorEnv``, or an object with its methods, as an ``EnvBatch``. The three autoreset modes:

    * NEXT_STEP is passed on: the row after an end is not ``valid``, and its reward and flags are cleared;
    * SAME_STEP takes the final observations from ``infos["final_obs"]`` (an object array or a batch);
    * DISABLED: this class resets the ended rows itself and presents itself as ``same_step``.

    The observation returned by a row that is not ``valid`` is the first of an episode.

    episode_info: put the numbers of ``info`` at an episode's end into its ``Episode``. An observation ``MASK`` of the
    spec that is not in the space is read from ``info``. told_of_masks: fail at a mask in the ``info`` of a reset or of
    the first step that would be ignored. settings: settings of PyTorch that ``env`` has changed so far.
    """

    def __init__(
        self,
        env: Vector,
        spec: EnvSpec,
        observation: ObservationCodec,
        action: ActionCodec,
        mode: AutoresetMode,
        seeds: str = "int",
        check: bool = True,
        episode_info: bool = True,
        told_of_masks: bool = False,
        settings: TheirSettings | None = None,
    ):
        self._settings = TheirSettings() if settings is None else settings
        self.env, self.spec, self.num_envs = env, spec, int(env.num_envs)
        self.info: Info = {}
        self._observation, self._action, self._mode = observation, action, mode
        self._seeds, self._check, self._seed = seeds, check, 0
        self._episode_info = episode_info
        self._wanted = [
            (name, (self.num_envs, *leaf.shape), np.dtype(leaf.dtype), leaf.dtype == "float32")
            for name, leaf in observation.observations.items()
        ]
        self._sizes = {name: np.array(leaf.size) for name, leaf in observation.observations.items() if leaf.size}
        self._masked = MASK in spec.observations
        self._info_masks = self._masked and MASK not in observation.observations
        self._unmasked = told_of_masks and not self._masked
        self._begins = self._unmasked  # whether the next step is the first one
        self._absent: np.ndarray | None = getattr(env, "absent", None)  # rows whose next action is ignored
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._waiting = False  # whether any row's next action is ignored
        self._return = np.zeros(self.num_envs, np.float64)
        self._length = np.zeros(self.num_envs, np.int64)

    def reset(self, seed: int) -> Arrays:
        self._seed = seed
        seeds = sub_seeds(seed, self.num_envs)
        forms: dict[str, int | list[int] | np.ndarray] = {
            "int": seeds[0], "list": seeds, "array": np.array(seeds, np.int32),
        }  # fmt: skip
        raw = self._reset(seed=forms[self._seeds])
        if self._unmasked:
            masks.unannounced(self.info, self.spec.id)
        self._ended[:] = False if self._absent is None else self._absent
        self._waiting = bool(self._ended.any())
        self._return[:] = 0
        self._length[:] = -self._ended.astype(np.int64)
        obs = self._observe(raw)
        if self._check:
            self._validate(obs, self._return, None)
        if self._masked:
            self._check_mask(obs, self._ended, None)
        return obs

    def step(self, action: np.ndarray) -> EnvStep:
        given = self._action(action)
        try:
            with self._settings:
                raw, reward, terminated, truncated, info = self.env.step(given)
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} raised {type(error).__name__} in step ({self._where(action)}): {error}"
            ) from error
        self._require_info(info, "a step")
        self.info = info  # of this step, not of a reset after it
        if self._begins:
            self._begins = False
            masks.unannounced(info, self.spec.id)
        obs = self._observe(raw)
        exact = np.asarray(reward, np.float64)  # returns are summed in float64; the reward to learn from is float32
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        if self._check:
            self._validate(obs, exact, action)
        reward = exact.astype(np.float32)
        if terminated.shape != reward.shape or truncated.shape != reward.shape:
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} returned 'terminated' of shape {list(terminated.shape)} and 'truncated' "
                f"of {list(truncated.shape)} instead of {[self.num_envs]} ({self._where(action)})"
            )
        valid = ~self._ended
        final: Arrays | None = None
        if self._mode is AutoresetMode.NEXT_STEP:
            if self._waiting:
                exact = exact * valid
                reward, terminated, truncated = reward * valid, terminated & valid, truncated & valid
            ended = terminated | truncated
            self._ended = ended if self._absent is None else ended | self._absent
            start = -1  # the ignored step increases it to 0
        else:
            ended = terminated | truncated
            start = 0
            if ended.any():
                obs, final = self._same_step(obs, ended, action)
            else:
                final = obs
        self._return += exact
        self._length += 1
        if self._masked:
            self._check_mask(obs, self._ended if start else None, action)
        rows = ended.nonzero()[0]
        self._waiting = rows.size > 0
        if self._waiting:
            infos: Iterable[Mapping[str, float]] = repeat(NO_NUMBERS)
            if info and self._episode_info:
                infos = episode_numbers(info, rows, self.num_envs)
            ends = zip(self._return[rows].tolist(), self._length[rows].tolist(), infos, strict=False)
            episodes = list(map(_episode, ends))
            self._return[rows] = 0
            self._length[rows] = start
        else:
            episodes = []
        if self._absent is not None:
            self._length[self._absent] = start
            self._waiting |= bool(self._absent.any())
        return EnvStep(obs, reward, terminated, truncated, valid, final, episodes)

    def _observe(self, raw: Nested) -> Arrays:
        """Return the converted observations, and the masks in the ``info`` that came with them."""
        try:
            obs = self._observation(raw)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} returned observations that are no batch of its space: "
                f"{type(raw).__name__} ({type(error).__name__}: {error})"
            ) from error
        if self._info_masks:
            shape = (self.num_envs, sum(self.spec.action.sizes))
            obs[MASK] = masks.of_batch(self.info, shape, self.spec.id, lambda: f"seed {self._seed}")
        return obs

    def _check_mask(self, obs: Arrays, over: np.ndarray | None, action: np.ndarray | None) -> None:
        def where(row: int) -> str:
            return f"index {row}, at reset, {self._seed_of(row)}" if action is None else self._where(action, row)

        masks.check(obs[MASK], self.spec.action, over, self.spec.id, where)

    def _reset(self, **given: Any) -> Nested:
        try:
            with self._settings:
                raw, info = self.env.reset(**given)
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} raised {type(error).__name__} in reset (seed {self._seed}): {error}"
            ) from error
        self._require_info(info, "a reset")
        self.info = info
        return raw

    def _require_info(self, info: object, of: str) -> None:
        if not isinstance(info, Mapping):
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} returned {type(info).__name__} as the info of {of} instead of a dict: "
                "a vector environment tells all of its rows in one"
            )

    def so_far(self) -> list[Episode]:
        """Return the unfinished episode of each environment: its raw return and its length so far."""
        # a length of -1 means: reset at the next step
        so_far = zip(self._return.tolist(), self._length.clip(0).tolist(), strict=True)
        return [_episode((ret, length, NO_NUMBERS)) for ret, length in so_far]

    def close(self) -> None:
        """Close the environment. An error is logged, because the results are complete."""
        try:
            self.env.close()
        except Exception as error:  # noqa: BLE001 - a user's environment may raise anything
            told = f"{type(error).__name__}: {error}"
            log.warning("environment %r failed when it was closed: %s", self.spec.id, told)

    def _same_step(self, obs: Arrays, ended: np.ndarray, action: np.ndarray) -> tuple[Arrays, Arrays]:
        if self._mode is AutoresetMode.DISABLED:
            final = {name: array.copy() for name, array in obs.items()}
            first = self._observe(self._reset(options={"reset_mask": ended.copy()}))
            obs = {name: np.where(_rows(ended, array), first[name], array) for name, array in final.items()}
            if self._check:
                self._validate(obs, self._return, None)
            if self._masked:
                self._check_mask(final, ended, action)
            return obs, final
        last = self.info.get("final_obs", self.info.get("final_observation"))
        if last is None:
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} resets in the same step but gives no infos['final_obs']"
            )
        final = {name: array.copy() for name, array in obs.items()}
        if isinstance(last, np.ndarray) and last.dtype == object:
            for row in ended.nonzero()[0].tolist():
                for name, array in self._observation(_batch_of_one(last[row])).items():
                    final[name][row] = array[0]
        else:
            for name, array in self._observation(last).items():
                final[name][ended] = array[ended]
        if self._check:
            self._validate(final, self._return, action)
        if self._masked:
            if self._info_masks:
                masks.ends(final[MASK], self.info, ended)
            self._check_mask(final, ended, action)
        return obs, final

    def _where(self, action: np.ndarray | None, row: int | None = None) -> str:
        if action is None:
            return f"seed {self._seed}"
        if row is not None:
            return f"index {row}, action {np.asarray(action[row]).tolist()}, {self._seed_of(row)}"
        text = np.array2string(np.asarray(action), threshold=16, separator=", ")
        return f"{counted(self.num_envs, 'environment')}, actions {text}, seed {self._seed}"

    def _seed_of(self, row: int) -> str:
        """Return the seed of one sub-environment, for an error message, if each has its own."""
        if self._seeds == "int":
            return f"seed {self._seed} of the batch"
        return f"seed {sub_seeds(self._seed, self.num_envs)[row]}"

    def _validate(self, obs: Arrays, reward: np.ndarray, action: np.ndarray | None) -> None:
        for name, shape, dtype, floats in self._wanted:
            array = obs[name]
            if array.shape != shape or array.dtype != dtype:
                raise EnvironmentFailed(
                    f"environment {self.spec.id!r} returned {name!r} of shape {list(array.shape)} and dtype "
                    f"{array.dtype} instead of {list(shape)} and {dtype} ({self._where(action)})"
                )
            if floats and not math.isfinite(np.vdot(array, array)):  # the fastest check of all numbers
                self._not_finite(name, array, action)
        for name, sizes in self._sizes.items():
            wrong = (obs[name] < 0) | (obs[name] >= sizes)
            if wrong.any():
                row = int(wrong.reshape(self.num_envs, -1).any(1).argmax())
                raise EnvironmentFailed(
                    f"environment {self.spec.id!r} returned a value of {name!r} that is not in its space: "
                    f"{obs[name][row].tolist()}, counted from 0, of {sizes.tolist()} ({self._at(row, action)})",
                    chance=True,
                )
        if reward.shape != (self.num_envs,):
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} returned rewards of shape {list(reward.shape)} instead of "
                f"{[self.num_envs]} ({self._where(action)})"
            )
        if not np.vdot(reward, reward) < LARGEST:
            self._not_finite("reward", reward, action)

    def _not_finite(self, name: str, array: np.ndarray, action: np.ndarray | None) -> None:
        bad = ~finite(array.reshape(len(array), -1)).all(1)
        if bad.any():  # otherwise only the sum of squares overflowed
            row = int(bad.argmax())
            where = self._at(row, action)
            raise EnvironmentFailed(
                f"environment {self.spec.id!r} returned a value of {name!r} that is {NOT_FINITE} ({where})",
                chance=True,
            )

    def _at(self, row: int, action: np.ndarray | None) -> str:
        return self._where(action, row) if action is not None else f"index {row}, at reset, {self._seed_of(row)}"


def _rows(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *(1,) * (like.ndim - 1))


def _batch_of_one(obs: Nested) -> Nested:
    if isinstance(obs, dict):
        return {key: _batch_of_one(value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_batch_of_one(value) for value in obs)
    return np.asarray(obs)[None]
