"""Action masks: which actions an environment allows, from its ``info`` or from a Dict observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from shoal.api import MASK, Action, EnvironmentFailed, Observation, UsageError

from .options import ActionMask
from .types import Env, Space, Vector

KEY = "action_mask"  # in ``info`` and in a Dict observation


def leaf(action: Action) -> Observation:
    """Return the spec of a mask of such actions: a bool for each, or for each value of each part in a row."""
    return Observation((sum(action.sizes),), "bool", "mask")


def in_observation(space: Space, how: ActionMask, action: Action, env: str) -> bool:
    """Return whether the Dict observation's ``action_mask`` is one. UsageError if it is not flat over the actions."""
    if how != "auto" or action.kind == "continuous" or not isinstance(space, gs.Dict) or KEY not in space.spaces:
        return False
    found, size = space.spaces[KEY], sum(action.sizes)
    if not isinstance(found, (gs.Box, gs.MultiBinary)) or tuple(found.shape) != (size,):
        raise UsageError(
            f"environment {env!r} has the {KEY!r} {found}, but one for {action} is flat, with {size} truth values "
            f"(--action-mask none takes it as an ordinary observation)"
        )
    if len(space.spaces) == 1:
        raise UsageError(f"environment {env!r} has an {KEY!r} and no other observation")
    return True


def in_info(env: Env | Vector, space: Space, how: ActionMask, action: Action, name: str) -> bool:
    """Return whether masks are in ``info``: as the user says or, with ``auto``, as the environment does, by an
    attribute ``action_mask`` (Gymnasium's Taxi has a method of this name) or a true entry of its ``metadata``.
    UsageError if they are asked for, and there is nothing to mask."""
    if how == "info":
        if action.kind == "continuous":
            raise UsageError(f"--action-mask info is for Discrete and MultiDiscrete actions; {name} has {action}")
        return True
    if not told_of(space, how, action):
        return False
    return bool((env.metadata or {}).get(KEY)) or hasattr(getattr(env, "unwrapped", env), KEY)


def one(info: Mapping[str, Any], size: int, env: str, where: Callable[[], str]) -> np.ndarray:
    """The mask in one environment's ``info``, bool ``[size]``."""
    if KEY not in info:
        raise EnvironmentFailed(f"environment {env!r} gave no info[{KEY!r}] ({where()})")
    mask = info[KEY]
    array = None if isinstance(mask, (tuple, list, dict)) else np.asarray(mask)
    if array is None or array.shape != (size,) or array.dtype.kind not in "biuf":
        found = type(mask).__name__ if array is None else f"shape {list(array.shape)} and dtype {array.dtype}"
        raise EnvironmentFailed(
            f"environment {env!r} gave an info[{KEY!r}] of {found} instead of a flat array of {size} truth values "
            f"({where()})"
        )
    return array.astype(np.bool_)


def told_of(space: Space, how: ActionMask, action: Action) -> bool:
    """Return whether the user must hear of a mask in ``info`` that nobody announced: unless all masks are left out, the
    action has none, or the observation holds one."""
    in_dict = isinstance(space, gs.Dict) and KEY in space.spaces
    return how != "none" and action.kind != "continuous" and not in_dict


def unannounced(info: Mapping[str, Any], env: str) -> None:
    """EnvironmentFailed for a mask that nobody said there would be, and that would be ignored."""
    if KEY in info:
        raise EnvironmentFailed(
            f"environment {env!r} gives an info[{KEY!r}]: --action-mask info keeps to it, --action-mask none does not"
        )


def of_batch(info: Mapping[str, Any], shape: tuple[int, int], env: str, where: Callable[[], str]) -> np.ndarray:
    """The masks in a vector environment's ``info``, bool ``[N, size]``."""
    masks = info.get(KEY)
    if masks is None:
        raise EnvironmentFailed(f"environment {env!r} gave no info[{KEY!r}] ({where()})")
    if not isinstance(masks, np.ndarray) or masks.shape != shape or masks.dtype.kind not in "biuf":
        if not np.iterable(masks):
            found = type(masks).__name__
            raise EnvironmentFailed(f"environment {env!r} gave {found} as masks instead of {shape[0]} ({where()})")
        rows = [one({KEY: row}, shape[1], env, where) for row in masks]  # an object array, or a list
        if len(rows) != shape[0]:
            raise EnvironmentFailed(f"environment {env!r} gave {len(rows)} masks instead of {shape[0]} ({where()})")
        masks = np.stack(rows)
    return masks.astype(np.bool_)


def check(mask: np.ndarray, action: Action, over: np.ndarray | None, env: str, where: Callable[[int], str]) -> None:
    """Allow everything in the rows of ``mask`` bool ``[N, size]`` that forbid every value of some part of the action
    where the episode is ``over`` (bool ``[N]``), as nothing is chosen there. EnvironmentFailed for such a row
    elsewhere."""
    begins = np.cumsum((0, *action.sizes[:-1]))
    stuck = ~np.logical_or.reduceat(mask, begins, axis=1).all(1)
    if not stuck.any():
        return
    if over is not None:
        mask[stuck & over] = True
        stuck &= ~over
    if stuck.any():
        row = int(stuck.argmax())
        what = "every action" if action.kind == "discrete" else "every value of a part of the action"
        raise EnvironmentFailed(f"environment {env!r} forbids {what} ({where(row)})", chance=True)


def ends(finals: np.ndarray, info: Mapping[str, Any], rows: np.ndarray) -> None:
    """The masks ``[N, size]`` of the last observations of the episodes that ended in ``rows`` (bool ``[N]``), where an
    environment has reset in the same step: those in ``final_info``, else everything is allowed."""
    finals[rows] = True
    last = info.get("final_info")
    masks = last.get(KEY) if isinstance(last, Mapping) else None
    if isinstance(masks, np.ndarray) and masks.shape == finals.shape:
        finals[rows] = masks[rows].astype(np.bool_)


__all__ = [
    "KEY", "MASK", "check", "ends", "in_info", "in_observation", "leaf", "of_batch", "one", "told_of", "unannounced",
]  # fmt: skip
