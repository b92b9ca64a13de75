"""Which registered environment lies under what a function made, whatever is wrapped around it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces as gs

from .types import Vector


def id_of(vector: Vector) -> str:
    """Return the id of the environments of a vector: that of their ``spec`` or, of a class that was called by itself,
    the newest that is registered for it. "" where there is none, and where wrappers turn vectors into pictures, numbers
    into choices, or the other way round: it is another task then."""
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


def _sort(space: Any) -> set[str]:
    """Return what the parts of a space are: pictures, numbers or choices."""
    if isinstance(space, gs.Dict):
        return set().union(*map(_sort, space.spaces.values()))
    if isinstance(space, gs.Tuple):
        return set().union(*map(_sort, space.spaces))
    if not isinstance(space, gs.Box):
        return {"choices"}
    return {"pictures" if len(space.shape) > 1 else "numbers"}


def _registered_as(cls: type) -> str:
    """Return the newest id whose entry point is ``cls``; "" if there is none, or it names one of several tasks."""
    found = [
        (spec.version or 0, id)
        for id, spec in gym.registry.items()
        if str(spec.entry_point).rpartition(":")[2] == cls.__name__
        and cls.__module__.startswith(str(spec.entry_point).partition(":")[0])
    ]
    names = {id.rpartition("-v")[0] for _, id in found}
    return max(found)[1] if len(names) == 1 else ""
