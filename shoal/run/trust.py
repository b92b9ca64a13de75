"""Whose code a file may start: Shoal's own, what is registered with Gymnasium, and what this user has trained with.

A run directory, a population and a saved policy name a system and an environment, and to load them is to run them.
Names that stand for a module or a file are followed only if the user says so, or has given them to ``train`` before,
which is noted outside of any run directory, together with the file that the name stood for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.api import UsageError
from shoal.envs.registry import OWN
from shoal.own_code import is_file
from shoal.settings.config import Resolved, is_run
from shoal.systems import SYSTEMS

FIELDS = ("env", "torso", "demonstrations")  # of a configuration, that may name a module


def check(where: Path, system: str, config: Mapping[str, Any], trust: bool) -> None:
    """UsageError, with what it would import, if ``where`` names code of somebody else's that this user has never
    trained with, or a module that there is not. ``trust``: the user says that it may run."""
    _check(where, _named(config, system), trust)


def check_resolved(resolved: Resolved, file: str | Path | None, trust: bool) -> None:
    """``check`` of what a configuration has from ``file``, where that is the directory of a run: a file of settings is
    the user's own. Also of ``env_kwargs`` that the user has changed, for other entries of them may be the file's."""
    if file is not None and is_run(file):
        theirs = {name for name, origin in resolved.origins.items() if origin == f"file {file}"} | {"env_kwargs"}
        _check(Path(file), _named({name: v for name, v in resolved.values().items() if name in theirs}), trust)


def _check(where: Path, names: Iterable[str], trust: bool) -> None:
    if trust:
        return
    known = _noted()
    origins = {name: _origin(name) for name in names}
    unknown = [name for name, origin in origins.items() if origin is not None and [name, origin] not in known]
    lacking = [name for name, origin in origins.items() if origin is None]
    if lacking and not unknown:
        raise UsageError(
            f"'{where}' needs '{lacking[0]}', and the module is not found from here: go to the directory it is in, or "
            "put that on PYTHONPATH"
        )
    if unknown:
        names = " and ".join(f"'{name}'" for name in unknown)
        raise UsageError(
            f"'{where}' would run code that is neither Shoal's nor registered with Gymnasium nor trained with by you: "
            f"{names}; if you trust it, say --trust (in Python: trust=True)"
        )


def note(system: str, config: Mapping[str, Any]) -> None:
    """The user has named this code: a run of it may be opened from now on. Where that cannot be written, it is not."""
    file = _file()
    known = _noted()
    new = [entry for entry in ([name, _origin(name)] for name in _named(config, system)) if entry not in known]
    if file is None or not new:
        return
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="utf-8") as opened:
            opened.write("".join(json.dumps(entry) + "\n" for entry in new))


def _named(config: Mapping[str, Any], system: str = "") -> Iterator[str]:
    """The names that stand for a module or a file, in a configuration and of its system."""
    if system and system not in SYSTEMS and system not in SYSTEMS.values():
        yield str(Path(system).resolve()) if system.endswith(".py") else system
    values = [config.get(field, "") for field in FIELDS]
    kwargs = config.get("env_kwargs", {})  # an environment may make another by its name
    values += list(kwargs.values()) if isinstance(kwargs, Mapping) else []
    for value in values:
        if isinstance(value, str) and ":" in value and value not in OWN:
            yield value


def _origin(name: str) -> str | None:
    """The file that a name stands for; nothing is imported to find it."""
    module = name.rpartition(":")[0] or name
    if is_file(module):
        return str(Path(module).resolve())
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(module.partition(".")[0])
        if spec is not None:
            return spec.origin or os.pathsep.join(spec.submodule_search_locations or ()) or None
    return None


def _file() -> Path | None:
    """Where it is noted; None where this user has no home."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "shoal" / "trained-with.jsonl"


def _noted() -> list[list[str | None]]:
    """[name, file] of all that this user has trained with."""
    file = _file()
    lines: list[str] = []
    if file is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = file.read_text(encoding="utf-8").splitlines()
    out = []
    for line in lines:
        with contextlib.suppress(ValueError):  # half a line, of a full disk
            out.append(json.loads(line))
    return out
