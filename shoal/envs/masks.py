"""Action masks: the allowed actions of an environment, from its ``info`` or from a Dict observation."""

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
    """Return the spec of a mask for such actions: one bool for each action, or for each value of each part,
    concatenated."""
    return Observation((sum(action.sizes),), "bool", "mask")


def in_observation(space: Space, how: ActionMask, action: Action, env: str) -> bool:
    """Return True if the Dict observation's ``action_mask`` is used as the mask. Raises UsageError if its shape does
    not match the actions."""
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
    """Return True if masks are in ``info``: if the user says so or, with ``auto``, if the environment has an attribute
    ``action_mask`` (Gymnasium's Taxi has a method of this name) or a true entry of its ``metadata``. Raises UsageError
    if they are requested and there is nothing to mask."""
    if how == "info":
        if action.kind == "continuous":
            raise UsageError(f"--action-mask info is for Discrete and MultiDiscrete actions; {name} has {action}")
        return True
    if not told_of(space, how, action):
        return False
    return bool((env.metadata or {}).get(KEY)) or hasattr(getattr(env, "unwrapped", env), KEY)


def one(info: Mapping[str, Any], size: int, env: str, where: Callable[[], str]) -> np.ndarray:
    """Return the mask in one environment's ``info``, bool ``[size]``. Raises EnvironmentFailed if it is missing or
    invalid."""
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
    """Return True if the user must be told of an unannounced mask in ``info``: unless masks are turned off, the action
    has none, or the observation contains one."""
    in_dict = isinstance(space, gs.Dict) and KEY in space.spaces
    return how != "none" and action.kind != "continuous" and not in_dict


def unannounced(info: Mapping[str, Any], env: str) -> None:
    """Raise EnvironmentFailed for a mask that was not announced and would be ignored."""
    if KEY in info:
        raise EnvironmentFailed(
            f"environment {env!r} gives an info[{KEY!r}]: --action-mask info keeps to it, --action-mask none does not"
        )


def of_batch(info: Mapping[str, Any], shape: tuple[int, int], env: str, where: Callable[[], str]) -> np.ndarray:
    """Return the masks in a vector environment's ``info``, bool ``[N, size]``. Raises EnvironmentFailed if they are
    missing or invalid."""
    masks = info.get(KEY)
    if masks is None:
        raise EnvironmentFailed(f"environment {env!r} gave no info[{KEY!r}] ({where()})")
    if not isinstance(masks, np.ndarray) or masks.shape != shape or masks.dtype.kind not in "biuf":
        if not np.iterable(masks):
            found = type(masks).__name__
            raise EnvironmentFailed(f"environment {env!r} gave {found} as masks instead of {shape[0]} ({where()})")
        rows = [one({KEY: row}, shape[1], env, where) for row in masks]  # masks in an object array or a list
        if len(rows) != shape[0]:
            raise EnvironmentFailed(f"environment {env!r} gave {len(rows)} masks instead of {shape[0]} ({where()})")
        masks = np.stack(rows)
    return masks.astype(np.bool_)


def check(mask: np.ndarray, action: Action, over: np.ndarray | None, env: str, where: Callable[[int], str]) -> None:
    """Check masks, bool ``[N, size]``. A row that forbids every value of some part of the action is set to True where
    the episode is ``over`` (bool ``[N]``), because nothing is chosen there. Raises EnvironmentFailed for such a row
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
    """Set the masks ``[N, size]`` of the final observations of the episodes that ended in ``rows`` (bool ``[N]``), if
    the environment resets in the same step: those in ``final_info``, or else everything allowed."""
    finals[rows] = True
    last = info.get("final_info")
    masks = last.get(KEY) if isinstance(last, Mapping) else None
    if isinstance(masks, np.ndarray) and masks.shape == finals.shape:
        finals[rows] = masks[rows].astype(np.bool_)


__all__ = [
    "KEY", "MASK", "check", "ends", "in_info", "in_observation", "leaf", "of_batch", "one", "told_of", "unannounced",
]  # fmt: skip
