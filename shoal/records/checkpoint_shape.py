"""The structure that a checkpoint must match: the roles and channels of a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.program import Program
from shoal.types import Values
from shoal.untrusted import excerpt

SERVER = "inference"  # the role that chooses actions for others; it has no state of its own
# field with the parameter version of each action, if that role chose it (roles.actor.VERSION); never saved
VERSION = "version"


def shape_of(program: Program, server: bool = False) -> Values:
    """Return what a program must share with a checkpoint that it loads: roles with replicas, and channels with the
    shapes of their items.

    The inference server and its two channels count only with ``server``, because nothing of them is saved except in the
    serial runtime.
    """
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
    """Return the roles that a channel connects, each with its failure policy."""
    return {
        role.name: role.on_failure for role in program.roles
        if any(port.channel.name == channel for port in role.ports.values())
    }  # fmt: skip


def differences(was: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield one line for each difference between two values of ``shape_of``."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(k for k in now if k not in was)]:
            yield from differences(was.get(key), now.get(key), f"{where}/{key}".removeprefix("/"))
    elif was != now:
        yield f"{excerpt(where)}: saved {_show(was)}, now {_show(now)}"


def _show(value: Any) -> str:
    return "nothing" if value is None else "something" if isinstance(value, dict) else excerpt(value)
