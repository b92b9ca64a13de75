"""Transfer of Gymnasium registrations to processes that did not run the code that registered them."""

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

from .from_callable import CallableEnv

# module in other processes with the objects that registrations refer to in the program's ``__main__``
MAIN = "_shoal_main"
_HERE = secrets.token_hex(8)  # identifies this process and its forks, which share the registry


@dataclass(frozen=True)
class Registration:
    """Entries of Gymnasium's registry, pickled one by one, so that a module which another process cannot import affects
    only its own entries. objects: objects of the running script that entries refer to, by name, because every process
    has its own ``__main__``. asked: the id that must be registered there, if any."""

    entries: tuple[bytes, ...]
    objects: Values
    asked: str = ""
    process: str = _HERE

    def enter(self) -> None:
        """Register the entries in this process, unless they were taken from it."""
        if self.process == _HERE:
            return
        if self.objects:
            vars(sys.modules.setdefault(MAIN, types.ModuleType(MAIN))).update(self.objects)
        # packages that register on import
        warnings.filterwarnings("ignore", ".*Overriding environment")
        for pickled in self.entries:
            with contextlib.suppress(*() if self.asked else (Exception,)):  # importing its module may raise anything
                entry = pickle.loads(pickled)
                gym.registry[entry.id] = entry


def registration(env: str) -> Registration | None:
    """Return the entry of ``env``, an id or ``module:id``, for ``enter`` in another process, or None if it is not
    registered. For a function or class, which may make other environments by their ids, return every entry that is not
    Gymnasium's own."""
    id = "" if isinstance(env, CallableEnv) else env.rpartition(":")[2]
    if not id:
        entries = [e for e in gym.registry.values() if not str(e.entry_point).startswith("gymnasium.")]
    else:
        entries = [entry] if (entry := gym.registry.get(id)) is not None else []
    objects: Values = {}
    sent = tuple(filter(None, [_pickled(_sent(entry, objects), id) for entry in entries]))
    return Registration(sent, objects, id) if sent else None


def _pickled(entry: EnvSpec, asked: str) -> bytes:
    """Return ``entry`` pickled for another process, or "" if that fails, unless it is the ``asked`` one."""
    try:
        data: bytes = cloudpickle.dumps(entry)
    except Exception:  # a user's object may raise anything
        if asked:
            raise
        return b""
    return data


def _sent(entry: EnvSpec, objects: Values) -> EnvSpec:
    """Return a copy of ``entry`` for another process. Objects of the running script that it refers to are added to
    ``objects``."""
    sent = copy.copy(entry)
    sent.entry_point = _movable(entry.entry_point, objects)
    sent.vector_entry_point = _movable(entry.vector_entry_point, objects)
    sent.additional_wrappers = tuple(
        replace(wrapper, entry_point=_movable(wrapper.entry_point, objects)) for wrapper in entry.additional_wrappers
    )
    return sent


def _movable(entry_point: Any, objects: Values) -> Any:
    """Return ``entry_point``. If it is a name in the running script, return a name in ``MAIN`` instead and add its
    object to ``objects``."""
    if not isinstance(entry_point, str) or not entry_point.startswith("__main__:"):
        return entry_point
    name = entry_point.partition(":")[2]
    found = getattr(sys.modules["__main__"], name, None)
    if found is None:
        return entry_point  # making the environment reports the error
    objects[name] = found
    return f"{MAIN}:{name}"
