"""Names and values as a user gives them: typed values, command-line flags."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import types
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shoal.errors import UsageError
from shoal.settings import entries
from shoal.settings.nearest import nearest
from shoal.settings.ranges import MAX_VALUES, Range, number
from shoal.settings.schedule import SCHEDULED, Linear, is_schedule, read
from shoal.settings.unknown import flag_name as flag_name, unknown as unknown
from shoal.types import Values
from shoal.untrusted import brief, excerpt
from shoal.words import counted

Groups = list[tuple[str, list[str]]]  # flags, each with the words after it
SHORT = re.compile("-[A-Za-z]")  # a flag of a single letter, which no command has


def short_name(system: str) -> str:
    """A system's name without its directory."""
    return system.replace("\\", "/").rpartition("/")[2].removesuffix(".py")


def field_name(flag: str) -> str:
    """``--learning-rate`` -> ``learning_rate``, and ``--env-kwargs.mass`` -> ``env_kwargs``."""
    return flag.removeprefix("--").partition(".")[0].replace("-", "_")


# ----------------------------------------------------------------------------------------- types
def describe(hint: Any) -> str:
    """Describe in words what a value of a type looks like."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((a.words for a in args if isinstance(a, Range)), describe(args[0]))
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        rest = [describe(a) for a in args if a is not type(None)]
        return " or ".join(rest + (["none"] if type(None) in args else []))
    if origin in (tuple, list, Sequence):
        if origin is tuple and not (args and args[-1] is ...):
            return f"{len(args)} values"
        one = describe(args[0]) if args else "values"
        return {"text": "words"}.get(one, re.sub(r"^an? (integer|number)", r"\1s", one))
    if origin is dict or hint is dict:
        return "names with values (numbers, texts, and lists and dicts of them)"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def coerce(hint: Any, value: Any) -> Any:
    """``value`` as a ``hint``, without guessing: raises ValueError when it is something else, with a reason where the
    hint does not tell it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if SCHEDULED in args and is_schedule(value):
            schedule = read(value)
            return Linear(coerce(hint, schedule.start), coerce(hint, schedule.end))
        infinite = any(a.infinite for a in args if isinstance(a, Range))
        value = number(args[0], value, infinite) if infinite else coerce(args[0], value)
        if not all(a.holds(value) for a in args if isinstance(a, Range)):
            raise ValueError
        return value
    if origin is Literal:
        if value in args and not (isinstance(value, bool) and not any(a is value for a in args)):
            return value
        if isinstance(value, str) and (same := [arm for arm in args if str(arm).lower() == value.lower()]):
            return same[0]  # Tanh for tanh
        raise ValueError
    if origin in (Union, types.UnionType):
        if type(None) in args and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
            return None
        reason: ValueError = ValueError()
        for arm in args:
            if arm is not type(None):
                try:
                    return coerce(arm, value)
                except ValueError as error:
                    reason = error if error.args else reason
        raise reason
    if origin is tuple:
        value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy
        if isinstance(value, (int, float, str)) and args[-1] is ...:
            value = (value,)  # one for several
        if not isinstance(value, (list, tuple)):
            raise ValueError
        if len(value) > MAX_VALUES:
            raise ValueError(f"at most {MAX_VALUES:,} values are taken, not {len(value):,}")
        inner = [args[0]] * len(value) if len(args) == 2 and args[1] is ... else list(args)
        if len(inner) != len(value):
            raise ValueError
        return tuple(coerce(h, v) for h, v in zip(inner, value, strict=True))
    if origin is list or hint is list:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        return [coerce(args[0], v) for v in value] if args else _data(value)
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise ValueError
        return _data(value)
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError
        return value
    if hint is float or hint is int:
        return number(hint, value)
    if hint is Path and isinstance(value, os.PathLike):
        return Path(value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise ValueError
    return value


def _data(value: Any) -> Any:
    """``value`` as a file gives it back: a tuple as a list, NumPy's numbers as Python's. ValueError for anything else
    than numbers, texts, None, and lists and dicts of them."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise ValueError
        return {name: _data(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(entry) for entry in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError


def expect(hint: Any, value: Any, subject: str) -> Any:
    """``value`` as a ``hint``, or the UsageError that says what ``subject`` expects."""
    try:
        return coerce(hint, value)
    except ValueError as error:
        wanted = describe(hint)
        if is_schedule(value) or (scheduled(hint) and (callable(value) or isinstance(value, str))):
            wanted += " or linear(a, b) of two such" if scheduled(hint) else ", the same for the whole run"
        raise UsageError(f"{subject} expects {wanted}, found {brief(value)}{_reason(error)}") from None


def _reason(error: ValueError) -> str:
    """Why ``coerce`` refused a value of the right type."""
    return f": {error}" if error.args else ""


def scheduled(hint: Any) -> bool:
    """Return whether a setting of this type may be a schedule."""
    return SCHEDULED in get_args(hint) or any(SCHEDULED in get_args(arm) for arm in get_args(hint))


def ranged(Config: Any) -> Values:
    """The type of each field with its range; one declared again with the same type keeps that of the base class."""
    return dict(_ranged(Config))


@functools.cache  # it takes milliseconds, and a member of a population asks again for every slice
def _ranged(Config: Any) -> Values:
    plain = get_type_hints(Config)
    out = dict(plain)
    for cls in reversed(Config.__mro__[:-1]):
        same, full = get_type_hints(cls), get_type_hints(cls, include_extras=True)
        out |= {name: full[name] for name in same if same[name] == plain[name] and full[name] != plain[name]}
    return out


# ----------------------------------------------------------------------------------------- flags
def parse_flags(Config: Any, groups: Sequence[tuple[str, list[str]]], name: str) -> Values:
    """Typed values of command-line flags, given as (flag, its words); ``--env-kwargs.mass 2`` sets one entry
    of a field that holds names with values (``Entries``)."""
    hints, ranges = get_type_hints(Config), ranged(Config)
    fields = [f.name for f in dataclasses.fields(Config)]
    out: Values = {}
    for flag, words in groups:
        field, entry = field_name(flag), flag.partition(".")[2]
        if field not in fields:
            if field.startswith("no_") and hints.get(field[3:]) is bool and not words:
                out[field[3:]] = False
                continue
            raise unknown("flag", field, fields, name)
        hint = hints[field]
        if get_origin(hint) is dict or hint is dict:
            found = entries.read(flag_name(field), entry, words)
            out[field] = entries.joined(out[field], found) if field in out else found
        elif entry:
            raise unknown("flag", f"{field}.{entry}", fields, name)
        elif is_schedule(" ".join(words)):
            out[field] = " ".join(words)
        else:
            out[field] = _parse_flag(field, hint, words, describe(ranges[field]))
    return out


def _parse_flag(field: str, hint: Any, words: list[str], expected: str) -> Any:
    flag, arms = flag_name(field), get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    many = next((arm for arm in arms if get_origin(arm) in (tuple, list)), None)  # of values, whatever else it may be
    if hint is bool:
        if not words or (len(words) == 1 and words[0].lower() in ("true", "false")):
            return not words or words[0].lower() == "true"
        raise UsageError(f"{flag} expects true or false, found '{excerpt(' '.join(words))}'")
    if many:
        words = listed(words)
    if not many and len(words) != 1:
        found = "nothing" if not words else f"{counted(len(words), 'value')} ('{excerpt(' '.join(words))}')"
        raise UsageError(f"{flag} expects {expected}, found {found}")
    text = words[0] if words else ""
    if type(None) in get_args(hint) and text.lower() in ("none", "null"):
        return None
    try:
        return _of_text(many or hint, words if many else text)
    except ValueError as error:
        raise UsageError(f"{flag} expects {expected}, found '{excerpt(' '.join(words))}'{_reason(error)}") from None


def listed(words: Sequence[str]) -> list[str]:
    """Return the values in the words of a flag that takes several: ``64 64``, ``64,64``, ``[64, 64]``, ``(64, 64)``."""
    text = " ".join(words).strip()
    bare = text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text
    return bare.replace(",", " ").split() if bare != text or len(words) == 1 else [*words]


def _of_text(hint: Any, given: Any) -> Any:
    """A word, or the words of a value that has several, as a ``hint``. ValueError if it is something else."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (tuple, list):
        inner = args[0] if args and (origin is list or args[-1] is ...) else str
        return coerce(hint, [_of_text(inner, word) for word in given])
    if origin is Annotated:
        return coerce(hint, _of_text(args[0], given))
    if origin is Literal:
        return next((arm for arm in args if str(arm) == given), None) or coerce(hint, given)
    if origin in (Union, types.UnionType):
        for arm in args:
            with contextlib.suppress(ValueError, TypeError):
                return _of_text(arm, given)
        raise ValueError
    if hint is bool and isinstance(given, str) and given.lower() in ("true", "false"):
        return given.lower() == "true"
    return coerce(hint, given)


# ------------------------------------------------------------------------------ a command's words
def split(args: list[str]) -> Groups:
    """Flags and the words after each. UsageError for one that is given twice, or once and once turned off."""
    groups: Groups = []
    given: dict[str, str] = {}
    for word in args:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            groups.append((flag, [value] if equals else []))
            name = flag.removeprefix("--").replace("-", "_").removeprefix("no_")
            if name in given:
                other = given[name]
                raise UsageError(
                    f"{flag} is given twice" if flag == other else f"{other} and {flag} exclude each other"
                )
            given[name] = flag
        elif SHORT.fullmatch(word):
            groups.append((word, []))  # no flag, as ``unknown`` says with the names that there are
        elif groups:
            groups[-1][1].append(word)
        else:
            raise UsageError(f"unexpected '{excerpt(word)}': expected flags such as --env ID")
    return groups


def divide(groups: Groups, own: Container[str]) -> tuple[Groups, Groups]:
    """Flags that are a command's ``own`` (without dashes), and the others."""
    mine = [group for group in groups if _own_flag(group[0], own)[0] in own]
    return mine, [group for group in groups if group not in mine]


def _own_flag(flag: str, own: Container[str]) -> tuple[str, bool]:
    """Return what ``own`` calls a flag, and whether that is turned off: ``--no-quiet``."""
    bare = flag.removeprefix("--").replace("_", "-")
    off = bare.startswith("no-") and bare not in own and bare[3:] in own
    return (bare[3:], True) if off else (bare, False)


def options(groups: Groups, own: Mapping[str, Any], command: str) -> Values:
    """Typed values of a command's own flags; ``own`` maps each (without dashes) to its type: bool for a switch, which
    ``--no-`` turns off, and list for words, of which there are none after ``none``."""
    out: Values = {}
    for flag, words in groups:
        key, off = _own_flag(flag, own)
        if not own:
            raise UsageError(f"shoal {command} takes no flags, found '{flag}'")
        if key not in own or (off and own[key] is not bool):
            raise unknown("flag", f"no-{key}" if off else key, list(own), f"shoal {command}")
        hint = own[key]
        if hint is bool and not words:
            out[key] = not off
            continue
        if hint is list and words:
            out[key] = [] if words == ["none"] else words
            continue
        try:
            if hint in (bool, list) or len(words) != 1:
                raise ValueError
            out[key] = coerce(hint, words[0])
        except ValueError as error:
            expected = "no value" if hint is bool else "one or more names" if hint is list else describe(hint)
            found = " ".join(words) or "nothing"
            several = ": --seeds takes several" if key == "seed" and "seeds" in own and len(listed(words)) > 1 else ""
            raise UsageError(f"{flag} expects {expected}, found {excerpt(found)}{_reason(error)}{several}") from None
    return out


def choice(flag: str, value: str, names: Sequence[str]) -> None:
    """Raise UsageError unless ``value`` is one of ``names``."""
    if value not in names:
        listed = "" if nearest(value, names) else f" (there are {', '.join(names)})"
        raise UsageError(f"{unknown('value', value, names, flag)}{listed}")
