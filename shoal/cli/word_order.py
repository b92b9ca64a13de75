"""What is said of a command whose words stand in another order, or with other dashes: how it should have been typed.

``retyped`` sorts the words by what they are. Nothing is said where some word could be two things.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

from shoal.settings.fields import RUN_FLAGS
from shoal.settings.flags import flag_name
from shoal.settings.kinds import AN_ENVIRONMENT
from shoal.settings.nearest import nearest
from shoal.settings.other_names import NAMES_A_SYSTEM, NAMES_AN_ENVIRONMENT, SETTINGS
from shoal.settings.run_options import OptionTable, flags
from shoal.systems import exists, is_known
from shoal.untrusted import excerpt

OF_SYSTEMS = ("train", "config", "draw", "plan", "tune")  # commands of which a system is the first word
SWITCHES = {"help", "help-all", "json", "trust", "watch", *(n for n, f in flags(OptionTable).items() if f.type is bool)}
ONE_DASH = re.compile(r"-(?!(?i:inf|nan|infinity)$)[A-Za-z][\w.-]+(=.*)?", re.DOTALL)  # no number, no single letter
ASSIGNED = re.compile(r"([A-Za-z][\w.-]*)=(.*)", re.DOTALL)  # steps=1000
MAX_WORDS = 200


def advice(args: list[str], commands: Collection[str]) -> str | None:
    """Return the sentence about the first word of a command line that stands where it cannot, or None if each may
    stand where it does. It ends with the command in its right form, where that is clear."""
    command, words = args[0], _before_flags(args[1:])
    if len(args) > MAX_WORDS:
        return None
    if command not in commands:
        if is_known(command):
            return f"'{excerpt(command)}' is a system, and a command comes first{_as_in(args, commands, 'train')}"
        if command.startswith("-") or "=" in command or AN_ENVIRONMENT.fullmatch(command):
            return f"shoal expects a command first, found '{excerpt(command)}'{_as_in(args, commands, 'train')}"
        return None
    if command in OF_SYSTEMS and args[1:] and args[1] != "pbt":
        if not _may_be_system(args[1], words):
            found = "" if args[1].startswith("--") else f", found '{excerpt(args[1])}'"
            way = retyped(args, commands)
            if way is not None and (found or "SYSTEM" not in way):
                return f"shoal {command} needs a system first{found}: {shlex.join(way)}"
            return None
        if len(words) > 1 and not re.match("-[A-Za-z]", words[1]):
            return f"unexpected '{excerpt(words[1])}': expected flags{_as_in(args, commands) or ' such as --env ID'}"
    wrong = next((word for word in args[1:] if _has_one_dash(word, args)), None)
    if wrong is None:
        return None
    example = _as_in(args, commands) if command in OF_SYSTEMS else f", as in -{wrong}"
    return f"unknown flag '{excerpt(wrong)}': flags begin with two dashes{example}"


def retyped(args: list[str], commands: Collection[str]) -> list[str] | None:
    """Return a command about a system as it should have been typed, with SYSTEM for one that is not named; None where
    a word could be two things, or none."""
    command = system = environment = None
    given: list[list[str]] = []  # flags, each with its words
    for word in args:
        if word.startswith("--") or ONE_DASH.fullmatch(word):
            given.append(_flag(word))
        elif given and len(given[-1]) == 1 and given[-1][0].removeprefix("--") not in SWITCHES:
            given[-1].append(word)
        elif command is None and word.lower() in commands:
            command = word.lower()
        elif system is None and is_known(word):
            system = word.lower()
        elif found := ASSIGNED.fullmatch(word):
            given.append([flag_name(found[1]), found[2]])
        elif environment is None and AN_ENVIRONMENT.fullmatch(word):
            environment = word
        elif given and len(given[-1]) > 1:
            given[-1].append(word)
        elif environment is None and not is_known(word) and command in OF_SYSTEMS:
            environment = word
        else:
            return None
    for flag in [*given]:
        name, value = flag[0].removeprefix("--"), " ".join(flag[1:])
        if name.replace("-", "_") in NAMES_A_SYSTEM and system is None and is_known(value):
            system = value.lower()
            given.remove(flag)
        elif name.replace("-", "_") in NAMES_AN_ENVIRONMENT:
            flag[0] = "--env"
    if environment is not None and any(flag[0] == "--env" for flag in given):
        return None
    if (command or "train") not in OF_SYSTEMS:
        return None
    at = [["--env", environment]] if environment is not None else []
    return ["shoal", command or "train", system or "SYSTEM", *(word for flag in at + given for word in flag)]


def _as_in(args: list[str], commands: Collection[str], default: str = "") -> str:
    """Return the right form as the end of a sentence, or ""; with a ``default`` command, any of its system where the
    form is not clear."""
    way = retyped(args, commands)
    if way is not None and not (default and way[2] == "SYSTEM" and "--env" not in way):
        return f": {shlex.join(way)}" if default else f", as in: {shlex.join(way)}"
    return f": shoal {default} SYSTEM --env ID" if default else ""


def _before_flags(words: list[str]) -> list[str]:
    return words[: next((i for i, word in enumerate(words) if word.startswith("--")), len(words))]


def _may_be_system(word: str, words: list[str]) -> bool:
    """Return True unless a word is plainly no name of a system: a flag, an environment, a value with its name, or
    what stands before a system among the ``words``."""
    if word.startswith("-") or "=" in word:
        return False
    return (not AN_ENVIRONMENT.fullmatch(word) and not any(map(is_known, words[1:]))) or exists(word)


def _has_one_dash(word: str, args: list[str]) -> bool:
    """Return True for a flag with one dash; what stands behind a flag that takes a word is its value, unless it is
    the name of a setting."""
    if not ONE_DASH.fullmatch(word):
        return False
    before = args[args.index(word) - 1]
    value = before.startswith("--") and "=" not in before and before.removeprefix("--") not in SWITCHES
    return not value or word[1:].partition("=")[0].replace("-", "_") in {*SETTINGS, *RUN_FLAGS}


def _flag(word: str) -> list[str]:
    """Return a flag with its two dashes, and its value where it has one behind ``=``."""
    if not word.startswith("--"):
        word = _with_two_dashes(word)
    name, equals, value = word.partition("=")
    return [name, value] if equals else [name]


def _with_two_dashes(word: str) -> str:
    """Return a flag of one dash as it is spelled here: ``-lr`` -> ``--learning-rate``."""
    name, equals, value = word[1:].partition("=")
    known = (*SETTINGS, *RUN_FLAGS)
    field = name.replace("-", "_")
    meant = name if field in known else nearest(name, known) or name
    return flag_name(meant) + equals + value
