"""What a checkpoint must fit: the roles and channels of a program, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.program import Program
from shoal.types import Values


def shape_of(program: Program) -> Values:
    """What must be the same for a checkpoint to fit: roles with replicas, channels with the shapes of their items."""
    channels = program.channels.values()
    return {
        "roles": {role.name: role.replicas for role in program.roles},
        "channels": {c.name: {k: f"{f.dtype} {list(f.shape)}" for k, f in c.spec.items()} for c in channels},
    }


def differences(was: Any, now: Any, where: str = "") -> Iterator[str]:
    """A line for each leaf in which two shapes, as ``shape_of`` gives them, are not the same."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(k for k in now if k not in was)]:
            yield from differences(was.get(key), now.get(key), f"{where}/{key}".removeprefix("/"))
    elif was != now:
        yield f"{where}: saved {_show(was)}, now {_show(now)}"


def _show(value: Any) -> str:
    return "nothing" if value is None else "something" if isinstance(value, dict) else str(value)
