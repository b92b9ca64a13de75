"""What a checkpoint must fit: the roles and channels of a program, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.program import Program
from shoal.types import Values

SERVER = "inference"  # the role that chooses actions for others, and holds nothing of its own
VERSION = "version"  # of trajectories, where that role chose their actions (roles.actor.VERSION); never saved


def shape_of(program: Program, server: bool = False) -> Values:
    """What must be the same for a checkpoint to fit: roles with replicas, channels with the shapes of their items. Who
    chooses actions does not count unless ``server``: nothing is saved of the server or of its two channels, except in
    the serial runtime."""
    away = set() if server else {SERVER}
    between = {
        c.name for c in program.channels.values()
        if away and SERVER in (joined := _roles(program, c.name)) and all(r == "restart" for r in joined.values())
    }  # fmt: skip
    channels = [c for c in program.channels.values() if c.name not in between]
    unsaved = {VERSION} if away else set()
    return {
        "roles": {role.name: role.replicas for role in program.roles if role.name not in away},
        "channels": {
            c.name: {k: f"{f.dtype} {list(f.shape)}" for k, f in c.spec.items() if k not in unsaved} for c in channels
        },
    }


def _roles(program: Program, channel: str) -> dict[str, str]:
    """Roles that a channel joins, and what happens to each when it fails."""
    return {
        role.name: role.on_failure for role in program.roles
        if any(port.channel.name == channel for port in role.ports.values())
    }  # fmt: skip


def differences(was: Any, now: Any, where: str = "") -> Iterator[str]:
    """A line for each leaf in which two shapes, as ``shape_of`` gives them, are not the same."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(k for k in now if k not in was)]:
            yield from differences(was.get(key), now.get(key), f"{where}/{key}".removeprefix("/"))
    elif was != now:
        yield f"{where}: saved {_show(was)}, now {_show(now)}"


def _show(value: Any) -> str:
    return "nothing" if value is None else "something" if isinstance(value, dict) else str(value)
