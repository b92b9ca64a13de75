"""Action spaces of several parts: a Dict or a Tuple, flattened to one action that agents choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from shoal.api import Action, UsageError

from .types import Nested, Space

Convert = Callable[[np.ndarray], Nested]
Part = tuple[Action, Callable[[np.ndarray], np.ndarray] | None]


def parts(space: Space) -> dict[Any, Space]:
    """Return the parts of a Dict or Tuple by key or position, in the space's order; none of any other space."""
    if isinstance(space, gs.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, gs.Tuple) else {}


def flattened(space: Space, env: str, one: Callable[[Space, str], Part]) -> tuple[Action, Convert]:
    """Return the action of a Dict or Tuple and what turns batches of it into those that the environment takes: a dict
    or tuple of batches, as Gymnasium's vector environments have it. Parts that are all discrete become one
    action with a size for each, boxes become one box. UsageError where both occur, and for a space
    without parts. ``one``: the same for a space that has no parts."""
    leaves: list[tuple[Action, Convert]] = []
    for part in parts(space).values():
        if parts(part):
            leaves.append(flattened(part, env, one))
        else:
            action, own = one(part, env)
            leaves.append((action, own or np.copy))
    kinds = {action.kind == "continuous" for action, _ in leaves}
    if len(kinds) != 1:
        raise UsageError(
            f"environment {env!r} has the action space {space}, but of Dict and Tuple only those are supported whose "
            "parts are all discrete (Discrete, MultiDiscrete, MultiBinary), or all a Box of floats"
        )
    if kinds == {True}:
        joined = Action(
            "continuous", low=tuple(low for a, _ in leaves for low in a.low),
            high=tuple(high for a, _ in leaves for high in a.high),
        )  # fmt: skip
    else:
        sizes = tuple(size for a, _ in leaves for size in a.sizes)
        joined = Action("discrete" if len(sizes) == 1 else "multi_discrete", sizes)
    ends = np.cumsum([len(a.low) if a.kind == "continuous" else len(a.sizes) for a, _ in leaves])

    def whole(batch: np.ndarray) -> Nested:
        pieces = np.split(batch.reshape(len(batch), -1), ends[:-1], axis=1)
        made = [
            given(piece[:, 0] if action.kind == "discrete" else piece)
            for (action, given), piece in zip(leaves, pieces, strict=True)
        ]
        return dict(zip(parts(space), made, strict=True)) if isinstance(space, gs.Dict) else tuple(made)

    return joined, whole


def first(batch: Nested) -> Nested:
    """Return the first action of a batch."""
    if isinstance(batch, dict):
        return {key: first(part) for key, part in batch.items()}
    return tuple(map(first, batch)) if isinstance(batch, tuple) else batch[0]


def flat_mask(space: Space, mask: object) -> object:
    """Return a mask that has a part for each part of a Dict or Tuple, flat in the order of the space; any other mask
    as it is. KeyError or TypeError where a part is missing."""
    within = parts(space)
    if not within or not isinstance(mask, (Mapping, tuple, list)):
        return mask
    if isinstance(mask, Sequence) and len(mask) != len(within):
        return mask  # of the whole action in a row, or wrong: whoever looks at it says so
    return np.concatenate([np.ravel(np.asarray(flat_mask(part, mask[key]))) for key, part in within.items()])


def shown(action: Nested) -> object:
    """Return an action as numbers, lists, dicts and tuples, for a sentence."""
    if isinstance(action, dict):
        return {key: shown(part) for key, part in action.items()}
    return tuple(map(shown, action)) if isinstance(action, tuple) else np.asarray(action).tolist()
