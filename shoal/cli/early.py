"""Refusals that need nothing large: of a path that is not there, and of a directory in which another process trains.
They are said before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shoal.errors import UsageError
from shoal.paths import fixed, shown
from shoal.records.run_lock import require_unlocked
from shoal.zoo import is_zoo, located

ONE_RUN, SEVERAL_RUNS = ("eval", "export", "record", "resume"), ("plot", "compare")  # what they begin with
FOLDERS = ("runs", "report", "watch")
ALONE = ("--terminal", "--open", "--json", "--trust")  # flags of the commands of ``FOLDERS`` that no word follows


def check(command: str, args: list[str]) -> None:
    """Raise UsageError for a run, a file or a policy of the zoo that ``args`` name and that is not there, and for a
    run to be trained or resumed that goes on."""
    if command in ("resume", "train"):
        for path in args[:1] if command == "resume" else _values(args, "--run-dir"):
            require_unlocked(Path(path))
    leading = _leading(args)
    if command in ONE_RUN + SEVERAL_RUNS:
        for word in leading if command in SEVERAL_RUNS or len(leading) == 1 else ():
            if not (command == "record" and (word == "keyboard" or (":" in word and not is_zoo(word)))):
                _require_run(word)
    if command == "zoo" and leading:
        located(f"zoo:{leading[0].removeprefix('zoo:')}")
    if command in FOLDERS:
        for word in _words(args):
            if not fixed(word).is_dir():
                raise UsageError(f"no such directory: '{shown(fixed(word))}'")
    for path in _values(args, "--config") if command in ("train", "config", "draw", "tune", "plan", "profile") else ():
        if not Path(path).exists():
            raise UsageError(f"no such config file: '{path}'")


def _require_run(word: str) -> None:
    if is_zoo(word):
        located(word)
    elif not (path := fixed(word)).exists():
        raise UsageError(f"no such run directory: '{shown(path)}'")


def _leading(args: list[str]) -> list[str]:
    """Return the words before the first flag."""
    return args[: next((i for i, word in enumerate(args) if word.startswith("--")), len(args))]


def _words(args: list[str]) -> Iterator[str]:
    """Yield the words that are neither flags nor the value of one."""
    before = ""
    for word in args:
        if not word.startswith("--") and (not before.startswith("--") or "=" in before or before in ALONE):
            yield word
        before = word


def _values(args: list[str], flag: str) -> Iterator[str]:
    """Yield the values of a flag, which may be written with ``_`` for ``-`` and with ``=`` before its value."""
    for i, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name.startswith("--") and "--" + name[2:].replace("_", "-") == flag:
            if equals:
                yield value
            elif i + 1 < len(args):
                yield args[i + 1]
