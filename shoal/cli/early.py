"""Refusals that need nothing large: of a path or a system that is not there, and of a directory in which another
process trains. They are said before torch is imported, which takes seconds."""

from __future__ import annotations

from pathlib import Path

from shoal.cli.words import divide, leading
from shoal.errors import UsageError
from shoal.paths import fixed, shown
from shoal.records.run_lock import require_unlocked
from shoal.settings.flags import split
from shoal.systems import is_known, require, taken_for
from shoal.zoo import is_zoo, located

ONE_RUN, SEVERAL_RUNS = ("eval", "export", "record", "resume"), ("plot", "compare")  # what they begin with
OF_SYSTEMS = ("train", "config", "draw", "tune", "plan")  # commands that begin with the name of a system
FOLDERS = ("runs", "report", "watch")
ALONE = ("--terminal", "--open", "--json", "--trust")  # flags of the commands of ``FOLDERS`` that no word follows


def check(command: str, args: list[str]) -> None:
    """Raise UsageError for a system, a run, a file or a policy of the zoo that ``args`` name and that is not there, and
    for a run to be trained or resumed that goes on."""
    words, flags = leading(args)
    if command in OF_SYSTEMS:
        for name in _values(flags, "of") if words[:1] == ["pbt"] and command == "train" else words[:1]:
            require(name)
        for name in _values(flags, "env"):
            if is_known(name) and words:
                raise UsageError(f"--env expects an environment, found '{name}', which is a system")
    if command in ("resume", "train"):
        for path in args[:1] if command == "resume" else _values(flags, "run-dir"):
            require_unlocked(Path(path))
    if command in ONE_RUN + SEVERAL_RUNS:
        for word in words if command in SEVERAL_RUNS or len(words) == 1 else ():
            if not (command == "record" and (word == "keyboard" or (":" in word and not is_zoo(word)))):
                _require_run(word)
    if command == "zoo" and words:
        located(f"zoo:{words[0].removeprefix('zoo:')}")
    if command in FOLDERS:
        for word in divide(args, ALONE)[0]:
            if not fixed(word).is_dir():
                raise UsageError(f"no such directory: '{shown(fixed(word))}'")
    for path in _values(flags, "init-from") if command == "train" else ():
        if not located(path).exists():
            raise UsageError(f"no such run or policy to begin with: '{path}'")
    for flag, what in (("costs", "file of costs"), ("machine", "machine file")) if command == "plan" else ():
        for path in _values(flags, flag):
            if not Path(path).exists():
                raise UsageError(f"there is no {what} '{path}'")
    for path in _values(flags, "config") if command in ("train", "config", "draw", "tune", "plan", "profile") else ():
        if not Path(path).exists():
            raise UsageError(f"no such config file: '{path}'")


def _require_run(word: str) -> None:
    if is_zoo(word):
        located(word)
    elif not (path := fixed(word)).exists():
        raise UsageError(f"no such run directory: '{shown(path)}'{taken_for('run', word)}")


def _values(flags: list[str], name: str) -> list[str]:
    """Return the word after a flag, if it is given with one."""
    given = (words for flag, words in split(flags) if flag.removeprefix("--").replace("_", "-") == name)
    return [word for words in given for word in words[:1]]
