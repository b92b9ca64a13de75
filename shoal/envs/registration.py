"""Ids that are registered with Gymnasium in this process, for processes that did not run what registered them."""

from __future__ import annotations

import copy
import secrets
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from shoal.types import Values

MAIN = "_shoal_main"  # module of other processes that holds what a registration names in the program's ``__main__``
_HERE = secrets.token_hex(8)  # this process and those that are forked from it, which have the same registry


@dataclass(frozen=True)
class Registration:
    """An entry of Gymnasium's registry. ``objects``: what its strings name in the script that runs, by name; every
    process has a script of its own."""

    entry: EnvSpec
    objects: Values
    process: str = _HERE

    def enter(self) -> None:
        """Make the entry known in this process; it has it already where the registration was taken."""
        if self.process == _HERE:
            return
        if self.objects:
            vars(sys.modules.setdefault(MAIN, types.ModuleType(MAIN))).update(self.objects)
        gym.registry[self.entry.id] = self.entry


def registration(env: str) -> Registration | None:
    """The entry of ``env``, an id or ``module:id``, for another process to ``enter``; None if none is known by now."""
    entry = gym.registry.get(env.rpartition(":")[2])
    if entry is None:
        return None
    objects: Values = {}
    sent = copy.copy(entry)
    sent.entry_point = _movable(entry.entry_point, objects)
    sent.vector_entry_point = _movable(entry.vector_entry_point, objects)
    sent.additional_wrappers = tuple(
        replace(wrapper, entry_point=_movable(wrapper.entry_point, objects)) for wrapper in entry.additional_wrappers
    )
    return Registration(sent, objects)


def _movable(entry_point: Any, objects: Values) -> Any:
    """``entry_point``, or where it is a name in the script that runs, one in ``MAIN``; what it names is added to
    ``objects``."""
    if not isinstance(entry_point, str) or not entry_point.startswith("__main__:"):
        return entry_point
    name = entry_point.partition(":")[2]
    found = getattr(sys.modules["__main__"], name, None)
    if found is None:
        return entry_point  # making it says what is wrong
    objects[name] = found
    return f"{MAIN}:{name}"
