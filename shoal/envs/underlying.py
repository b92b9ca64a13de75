"""Identification of the registered environment below the wrappers of an environment that a function made."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces as gs

from .types import Space, Vector


def id_of(vector: Vector) -> str:
    """Return the id of the environments of a vector: that of their ``spec`` or, for a class that was called directly,
    the newest id registered for it. Returns "" if there is none, and if wrappers change the kind of a space (vectors to
    images, numbers to choices, or the reverse), because that makes it another task."""
    envs = getattr(vector, "envs", None)
    one: Any = envs[0] if envs else vector
    inner = getattr(one, "unwrapped", one)
    for name in ("observation_space", "action_space"):
        outside = getattr(one, f"single_{name}", None) or getattr(one, name, None)
        inside = getattr(inner, f"single_{name}", None) or getattr(inner, name, None)
        if _sort(outside) != _sort(inside):
            return ""
    spec = getattr(inner, "spec", None) or getattr(one, "spec", None)
    return str(spec.id) if spec is not None else _registered_as(type(inner))


def _sort(space: Space | None) -> set[str]:
    """Return the kinds of the parts of a space: images, numbers or choices."""
    if isinstance(space, gs.Dict):
        return set().union(*map(_sort, space.spaces.values()))
    if isinstance(space, gs.Tuple):
        return set().union(*map(_sort, space.spaces))
    if not isinstance(space, gs.Box):
        return {"choices"}
    return {"pictures" if len(space.shape) > 1 else "numbers"}


def _registered_as(cls: type) -> str:
    """Return the newest id whose entry point is ``cls``, or "" if there is none or it stands for several tasks."""
    found = [
        (spec.version or 0, id)
        for id, spec in gym.registry.items()
        if str(spec.entry_point).rpartition(":")[2] == cls.__name__
        and cls.__module__.startswith(str(spec.entry_point).partition(":")[0])
    ]
    names = {id.rpartition("-v")[0] for _, id in found}
    return max(found)[1] if len(names) == 1 else ""
