"""Which fields a system's configuration may have: such as a file can hold, by names that nothing else has."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from shoal.errors import UsageError
from shoal.settings.flags import ranged
from shoal.settings.run_options import OptionTable, about, flags

RUN_FLAGS = frozenset({  # of shoal train, beside a system's fields
    "preset", "config", *(name.replace("-", "_") for name in flags(OptionTable)),
})  # fmt: skip
RUN_OPTIONS = RUN_FLAGS | about(OptionTable).keys() | {  # also of shoal.train and shoal.resume
    "system", "observers", "alert", "alert_after", "watch", "trust",
}  # fmt: skip
PLAIN = (bool, int, float, str, type(None))


@functools.cache
def check_fields(Config: Any) -> None:
    """UsageError for a field of a type that would come back from config.json as another, or called like an option of
    the run, which would hide it."""
    hints = ranged(Config)
    for name in (field.name for field in dataclasses.fields(Config)):
        if name in RUN_OPTIONS:
            raise UsageError(f"field '{name}' of {Config.__name__} has the name of an option of the run: rename it")
        if not _storable(hints[name]):
            found = getattr(hints[name], "__name__", hints[name]) if not get_args(hints[name]) else hints[name]
            raise UsageError(
                f"field '{name}' of {Config.__name__} has the type {found}, which a file cannot hold: expected bool, "
                "int, float, str, None or Literal, or a union, tuple[...], list[...] or dict[str, ...] of these"
            )


def _storable(hint: Any) -> bool:
    """Return whether a file gives back a value of this type as it was."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _storable(args[0])
    if isinstance(hint, NewType):
        return _storable(hint.__supertype__)
    if origin is Literal:
        return all(type(arg) in PLAIN for arg in args)
    if origin in (dict, Mapping):
        return args[0] is str and (args[1] is Any or _storable(args[1]))
    if origin in (Union, types.UnionType, list, tuple, Sequence):
        return all(arg is ... or _storable(arg) for arg in args)
    return hint in (*PLAIN, dict, list, Any, object)  # those that say nothing of what they hold are believed
