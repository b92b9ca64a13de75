"""Composite action spaces: a Dict or a Tuple, flattened to one action that agents choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces as gs

from shoal.api import Action, UsageError

from .types import Nested, Space

Convert = Callable[[np.ndarray], Nested]
Kind = Literal["discrete", "multi_discrete", "continuous", "mixed"]
Part = tuple[Action, Callable[[np.ndarray], np.ndarray] | None]


def parts(space: Space) -> dict[Any, Space]:
    """Return the parts of a Dict or Tuple by key or position, in the space's order, or {} for any other space."""
    if isinstance(space, gs.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, gs.Tuple) else {}


@dataclass(frozen=True)
class Leaf:
    """A part of an action space without parts of its own. path: the keys and positions that lead to it, () for the
    whole space; columns: ``[n]``, where the joined action ``[N, ...]`` holds its choices or dimensions."""

    path: tuple[Any, ...]
    space: Space
    action: Action
    columns: np.ndarray


def flattened(space: Space, env: str, one: Callable[[Space, str], Part]) -> tuple[Action, list[Leaf], Convert]:
    """Return the action of a Dict or Tuple, its leaves in the space's order, and a function that converts batches of
    that action to a dict or tuple of batches, as Gymnasium's vector environments take them.

    Discrete parts become one action with a size for each, boxes become one box. If both occur the action is mixed, with
    the discrete parts first. one: returns the action and the conversion (None: a copy) of a space without parts. Raises
    UsageError for an empty space.
    """
    found = [(path, leaf, *one(leaf, env)) for path, leaf in _leaves(space)]
    if not found:
        raise UsageError(f"environment {env!r} has the action space {space}, which has no part to choose")
    actions = [action for _, _, action, _ in found]
    sizes = tuple(size for a in actions for size in a.sizes)
    low, high = (tuple(side for a in actions for side in getattr(a, name)) for name in ("low", "high"))
    columns = _columns(actions)
    leaves = [Leaf(path, leaf, a, at) for (path, leaf, a, _), at in zip(found, columns, strict=True)]

    def whole(batch: np.ndarray) -> Nested:
        rows = batch.reshape(len(batch), -1)
        own = [(convert or np.copy)(_as(a, rows[:, at])) for (_, _, a, convert), at in zip(found, columns, strict=True)]
        return _nested(space, iter(own))

    return Action(_kind(sizes, low), sizes, low, high), leaves, whole


def _leaves(space: Space, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Space]]:
    within = parts(space)
    if not within:
        return [(path, space)] if path else []
    return [leaf for key, part in within.items() for leaf in _leaves(part, (*path, key))]


def _nested(space: Space, leaves: Iterator[np.ndarray]) -> Nested:
    """Return the values of a space's leaves as a dict or tuple of that space."""
    within = parts(space)
    if not within:
        return next(leaves)
    made = {key: _nested(part, leaves) for key, part in within.items()}
    return made if isinstance(space, gs.Dict) else tuple(made.values())


def _kind(sizes: tuple[int, ...], low: tuple[float, ...]) -> Kind:
    """Return the kind of an action with these sizes of discrete parts and these lower bounds of a box."""
    if low:
        return "mixed" if sizes else "continuous"
    return "discrete" if len(sizes) == 1 else "multi_discrete"


def _columns(actions: Sequence[Action]) -> list[np.ndarray]:
    """Return where the joined action holds each of the ``actions``: discrete parts come before boxes."""
    choice, side = 0, sum(len(a.sizes) for a in actions)
    found = []
    for a in actions:
        found.append(np.r_[choice : choice + len(a.sizes), side : side + len(a.low)].astype(np.int64))
        choice, side = choice + len(a.sizes), side + len(a.low)
    return found


def _as(action: Action, rows: np.ndarray) -> np.ndarray:
    """Return the columns [N, n] of one part as actions of its own: [N] if it is one choice."""
    return (rows[:, 0] if action.kind == "discrete" else rows).astype(action.dtype)


def first(batch: Nested) -> Nested:
    """Return the first action of a batch."""
    if isinstance(batch, dict):
        return {key: first(part) for key, part in batch.items()}
    return tuple(map(first, batch)) if isinstance(batch, tuple) else batch[0]


def flat_mask(space: Space, mask: object) -> object:
    """Return a mask with a part for each part of a Dict or Tuple as a flat mask in the space's order, or any other mask
    unchanged. Raises KeyError or TypeError if a part is missing."""
    within = parts(space)
    if not within or not isinstance(mask, (Mapping, tuple, list)):
        return mask
    if isinstance(mask, Sequence) and len(mask) != len(within):
        return mask  # a flat mask of the whole action, or an invalid one, which is reported later
    masked = {key: part for key, part in within.items() if _choices(part)}
    return np.concatenate([np.ravel(np.asarray(flat_mask(part, mask[key]))) for key, part in masked.items()])


def flat_masks(space: Space, mask: object, num: int | None) -> np.ndarray:
    """Return the mask of one action as bool ``[1, ...]``, or ``num`` masks as bool ``[num, ...]``. Those of a Dict or
    Tuple may be ``num`` masks in a list or object array, or one mask whose parts have a row for each. Raises UsageError
    for an invalid mask."""
    try:
        if num is None or not parts(space):
            rows = np.asarray(flat_mask(space, mask)).astype(bool)
            return rows[None] if num is None else rows
        if isinstance(mask, (Mapping, tuple)):
            mask = [_row_of(mask, i) for i in range(num)]
        return np.stack([np.asarray(flat_mask(space, one)).astype(bool) for one in mask])  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError, IndexError):
        raise UsageError(f"'action_mask' should have a part for each part of {space}, found {mask!r:.200}") from None


def _row_of(masks: Any, row: int) -> Any:
    """Return one row of masks whose parts have several rows."""
    if isinstance(masks, Mapping):
        return {key: _row_of(part, row) for key, part in masks.items()}
    return tuple(_row_of(part, row) for part in masks) if isinstance(masks, tuple) else masks[row]


def _choices(space: Space) -> bool:
    """Return True if a space contains choices, which can be masked; boxes have none."""
    return any(map(_choices, parts(space).values())) if parts(space) else not isinstance(space, gs.Box)


def shown(action: Nested) -> object:
    """Return an action as numbers, lists, dicts and tuples, for a message."""
    if isinstance(action, dict):
        return {key: shown(part) for key, part in action.items()}
    return tuple(map(shown, action)) if isinstance(action, tuple) else np.asarray(action).tolist()
