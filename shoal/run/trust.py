"""Checks of code, files and services that a stranger's files name: Shoal's own code, code registered with Gymnasium,
and code that this user has trained with may be used without asking.

A run directory, a population and a saved policy name a system, an environment, files and services, and using them runs
code. A name of a module, a file or a service is followed only if the user says so or has passed it to ``train`` before.
Such names are recorded outside of any run directory, together with the file that the name meant (for a service: the run
that used it).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal import own_code
from shoal.api import UsageError
from shoal.demonstrations.recording import ID
from shoal.envs.registry import BUILT_IN
from shoal.records.loggers import REMOTE
from shoal.registry import is_own
from shoal.settings.config import Resolved, is_run
from shoal.systems import SYSTEMS
from shoal.types import Values
from shoal.untrusted import excerpt, one_line

FIELDS = ("env", "torso", "demonstrations", "sampler")  # fields of a configuration that may name a module
WORDS = re.compile(r"[\w +-]*")  # an argument of an environment that can be neither a path nor a module
ASK = "if you trust it, say --trust (in Python: trust=True)"


def check(where: Path, system: str, config: Mapping[str, Any], trust: bool, options: Iterable[str] = ()) -> None:
    """Raise UsageError, with the names, if ``where`` names code or files that this user has never trained with, or a
    missing module. trust: the user allows them. options: names in the options of a run (``named_in``)."""
    _check(where, [*_named(config, system), *_code(options)], trust)


def check_resolved(resolved: Resolved, file: str | Path | None, trust: bool) -> None:
    """Check the part of a configuration that comes from ``file`` if that is the directory of a run; a settings file is
    the user's own. ``env_kwargs`` that the user has changed are checked too, as other entries may come from the
    file."""
    if file is not None and is_run(file):
        theirs = {name for name, origin in resolved.origins.items() if origin == f"file {file}"} | {"env_kwargs"}
        _check(Path(file), _named({name: v for name, v in resolved.values().items() if name in theirs}), trust)


def _check(where: Path, named: Iterable[tuple[str, str | None]], trust: bool) -> None:
    if trust:
        return
    known, origins = _noted(), dict(named)
    unknown = [name for name, origin in origins.items() if origin is not None and [name, origin] not in known]
    lacking = [name for name, origin in origins.items() if origin is None]
    if lacking and not unknown:
        raise UsageError(
            f"'{where}' needs '{one_line(lacking[0])}', and the module is not found from here: go to the directory it "
            "is in, or put that on PYTHONPATH"
        )
    if unknown:
        names = " and ".join(f"'{one_line(name)}'" for name in unknown)
        raise UsageError(
            f"'{where}' would run code that is neither Shoal's nor registered with Gymnasium nor trained with by you: "
            f"{names}; {ASK}"
        )


def note(system: str, config: Mapping[str, Any], options: Iterable[str] = ()) -> None:
    """Record that the user has named this code, so that a run of it may be opened from now on. Errors of writing are
    ignored."""
    _note(list(entry) for entry in (*_named(config, system), *_code(options)))


def named_in(options: Mapping[str, Any]) -> list[str]:
    """Return the names that stand for code in the options of a run's config.json, which may hold anything."""
    log = options.get("log")
    values = [options.get("runtime"), *(log if isinstance(log, (list, tuple)) else [log])]
    return [value for value in values if isinstance(value, str) and is_own(value)]


def connections(address: str | None, log: Iterable[str], log_args: Mapping[str, Values]) -> list[str]:
    """Return the services that a run with these options connects to beside its own processes, and the arguments of its
    log back ends, which may name a service or a place to write to."""
    told = [f"--log-args {back}.{k}={json.dumps(v, default=str)}" for back, args in log_args.items()
            for k, v in args.items()]  # fmt: skip
    return [*([address] if address is not None else []), *(name for name in log if name in REMOTE), *told]


def check_connections(where: Path, names: Iterable[str], trust: bool) -> None:
    """Raise UsageError if the run in ``where`` would connect to a cluster or a service that this user has not passed to
    it."""
    known, place = _noted(), _place(where)
    unknown = [name for name in names if [name, place] not in known]
    if unknown and not trust:
        told = " and ".join(f"'{excerpt(name)}'" for name in unknown)
        raise UsageError(
            f"'{where}' would connect to or log with {told}, which you have not given it: say where it goes on "
            f"(--address, --log, --log-args; --log none: nowhere) or, {ASK}"
        )


def note_connections(where: Path, names: Iterable[str]) -> None:
    """Record that the user has passed these connections to the run in ``where``, so that it may use them again."""
    _note([name, _place(where)] for name in names)


def _place(run: Path) -> str:
    return f"run {run.resolve()}"


def _note(entries: Iterable[list[str | None]]) -> None:
    file = _file()
    known = _noted()
    new = [entry for entry in entries if entry not in known]
    if file is None or not new:
        return
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="utf-8") as opened:
            opened.write("".join(json.dumps(entry) + "\n" for entry in new))


def _code(names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield (name, file) for the names that stand for code of the user's."""
    return ((name, own_code.origin(name)) for name in names if is_own(name))


def _named(config: Mapping[str, Any], system: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield (name, file) for the names of modules and files in a configuration and for its system. file is None if
    there is no such module."""
    if system and system not in SYSTEMS and system not in SYSTEMS.values():
        name = str(Path(system).resolve()) if system.endswith(".py") else system
        yield name, own_code.origin(name)
    for field in FIELDS:
        value = config.get(field, "")
        if isinstance(value, str) and ":" in value and value not in BUILT_IN:
            yield value, own_code.origin(value)
        elif field == "demonstrations" and value and not ID.fullmatch(value):  # a dataset of another user
            yield value, os.path.abspath(value)
    # an environment may open it, or make another environment by its name
    for text in _texts(config.get("env_kwargs", {})):
        if not WORDS.fullmatch(text) and text not in BUILT_IN:
            yield text, (own_code.origin(text) if ":" in text else None) or os.path.abspath(text)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value of a file, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from (str(name), *_texts(inner))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _file() -> Path | None:
    """Return the file of the records, or None if this user has no home directory."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "shoal" / "trained-with.jsonl"


def _noted() -> list[list[str | None]]:
    """Return [name, file] of all code that this user has trained with, and [service, run] of all connections."""
    file = _file()
    lines: list[str] = []
    if file is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = file.read_text(encoding="utf-8").splitlines()
    out = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a full disk may leave an incomplete line
            out.append(json.loads(line))
    return out
