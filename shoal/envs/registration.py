"""Ids that are registered with Gymnasium in this process, for processes that did not run what registered them."""

from __future__ import annotations

import contextlib
import copy
import pickle
import secrets
import sys
import types
import warnings
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from shoal.types import Values

from .given import Given

MAIN = "_shoal_main"  # module of other processes that holds what a registration names in the program's ``__main__``
_HERE = secrets.token_hex(8)  # this process and those that are forked from it, which have the same registry


@dataclass(frozen=True)
class Registration:
    """Entries of Gymnasium's registry, each pickled by itself: a module that another process cannot import keeps none
    but its own from it. ``objects``: what their strings name in the script that runs, by name; every process has a
    script of its own. ``asked``: the id that must be known there, if it is one."""

    entries: tuple[bytes, ...]
    objects: Values
    asked: str = ""
    process: str = _HERE

    def enter(self) -> None:
        """Make the entries known in this process; it has them already where the registration was taken."""
        if self.process == _HERE:
            return
        if self.objects:
            vars(sys.modules.setdefault(MAIN, types.ModuleType(MAIN))).update(self.objects)
        # by packages that register when they are imported
        warnings.filterwarnings("ignore", ".*Overriding environment")
        for pickled in self.entries:
            with contextlib.suppress(*() if self.asked else (Exception,)):  # whatever importing its module raises
                entry = pickle.loads(pickled)
                gym.registry[entry.id] = entry


def registration(env: str) -> Registration | None:
    """The entry of ``env``, an id or ``module:id``, for another process to ``enter``; None if none is known by now. Of
    a function or a class, which may make others by their ids: every entry that Gymnasium itself has not."""
    id = "" if isinstance(env, Given) else env.rpartition(":")[2]
    if not id:
        entries = [e for e in gym.registry.values() if not str(e.entry_point).startswith("gymnasium.")]
    else:
        entries = [entry] if (entry := gym.registry.get(id)) is not None else []
    objects: Values = {}
    sent = tuple(filter(None, [_pickled(_sent(entry, objects), id) for entry in entries]))
    return Registration(sent, objects, id) if sent else None


def _pickled(entry: EnvSpec, asked: str) -> bytes:
    """``entry`` for another process; "" where it cannot travel, unless it is ``asked`` for."""
    try:
        data: bytes = cloudpickle.dumps(entry)
    except Exception:  # whatever an object of the user's raises
        if asked:
            raise
        return b""
    return data


def _sent(entry: EnvSpec, objects: Values) -> EnvSpec:
    """A copy of ``entry`` for another process; what it names of the script that runs is added to ``objects``."""
    sent = copy.copy(entry)
    sent.entry_point = _movable(entry.entry_point, objects)
    sent.vector_entry_point = _movable(entry.vector_entry_point, objects)
    sent.additional_wrappers = tuple(
        replace(wrapper, entry_point=_movable(wrapper.entry_point, objects)) for wrapper in entry.additional_wrappers
    )
    return sent


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
