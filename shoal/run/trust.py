"""What a file may start, open and connect to: Shoal's own code, what is registered with Gymnasium, and what this user
has trained with.

A run directory, a population and a saved policy name a system, an environment, files and services, and to use them is
to run them. Names that stand for a module, a file or a service are followed only if the user says so, or has given them
to ``train`` before, which is noted outside of any run directory, together with the file that the name stood for (of a
service: the run that told it).
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

FIELDS = ("env", "torso", "demonstrations", "sampler")  # of a configuration, that may name a module
WORDS = re.compile(r"[\w +-]*")  # an argument of an environment that can be neither a path nor a module
ASK = "if you trust it, say --trust (in Python: trust=True)"


def check(where: Path, system: str, config: Mapping[str, Any], trust: bool, options: Iterable[str] = ()) -> None:
    """UsageError, with what it would import or open, if ``where`` names code or files of somebody else's that this user
    has never trained with, or a module that there is not. ``trust``: the user says that it may run. options: names in
    the options of a run (``named_in``)."""
    _check(where, [*_named(config, system), *_code(options)], trust)


def check_resolved(resolved: Resolved, file: str | Path | None, trust: bool) -> None:
    """``check`` of what a configuration has from ``file``, where that is the directory of a run: a file of settings is
    the user's own. Also of ``env_kwargs`` that the user has changed, for other entries of them may be the file's."""
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
    """The user has named this code: a run of it may be opened from now on. Where that cannot be written, it is not."""
    _note(list(entry) for entry in (*_named(config, system), *_code(options)))


def named_in(options: Mapping[str, Any]) -> list[str]:
    """Return the names that stand for code in the options of a run's config.json, whatever is written there."""
    log = options.get("log")
    values = [options.get("runtime"), *(log if isinstance(log, (list, tuple)) else [log])]
    return [value for value in values if isinstance(value, str) and is_own(value)]


def connections(address: str | None, log: Iterable[str], log_args: Mapping[str, Values]) -> list[str]:
    """Return what a run with these options connects to beside the processes that it has started itself, and the
    arguments of its log back ends, which may name a service or a place to write to."""
    told = [f"--log-args {back}.{k}={json.dumps(v, default=str)}" for back, args in log_args.items()
            for k, v in args.items()]  # fmt: skip
    return [*([address] if address is not None else []), *(name for name in log if name in REMOTE), *told]


def check_connections(where: Path, names: Iterable[str], trust: bool) -> None:
    """UsageError if the run in ``where`` would connect to a cluster or a service that this user has not given it."""
    known, place = _noted(), _place(where)
    unknown = [name for name in names if [name, place] not in known]
    if unknown and not trust:
        told = " and ".join(f"'{excerpt(name)}'" for name in unknown)
        raise UsageError(
            f"'{where}' would connect to or log with {told}, which you have not given it: say where it goes on "
            f"(--address, --log, --log-args; --log none: nowhere) or, {ASK}"
        )


def note_connections(where: Path, names: Iterable[str]) -> None:
    """The user has given these to the run in ``where``: it may use them again."""
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
    """(name, file) of those names that stand for code of the user's."""
    return ((name, own_code.origin(name)) for name in names if is_own(name))


def _named(config: Mapping[str, Any], system: str = "") -> Iterator[tuple[str, str | None]]:
    """(name, file) of the names that stand for a module or a file, in a configuration and of its system. None: there is
    no such module."""
    if system and system not in SYSTEMS and system not in SYSTEMS.values():
        name = str(Path(system).resolve()) if system.endswith(".py") else system
        yield name, own_code.origin(name)
    for field in FIELDS:
        value = config.get(field, "")
        if isinstance(value, str) and ":" in value and value not in BUILT_IN:
            yield value, own_code.origin(value)
        elif field == "demonstrations" and value and not ID.fullmatch(value):  # no data set of this user's
            yield value, os.path.abspath(value)
    for text in _texts(config.get("env_kwargs", {})):  # an environment may open it, or make another by its name
        if not WORDS.fullmatch(text) and text not in BUILT_IN:
            yield text, (own_code.origin(text) if ":" in text else None) or os.path.abspath(text)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value of a file, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from (str(name), *_texts(inner))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _file() -> Path | None:
    """Return where it is noted; None where this user has no home."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "shoal" / "trained-with.jsonl"


def _noted() -> list[list[str | None]]:
    """[name, file] of all that this user has trained with, and [service, run] of what it was told to."""
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
