"""What is said of a setting that a system lacks: the systems that have it, or where all settings are listed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from shoal.errors import UsageError
from shoal.settings.other_names import fields_called
from shoal.settings.unknown import UnknownSetting, flag_name
from shoal.systems import SYSTEMS, load
from shoal.words import in_a_row

MOST = 3  # systems that are named


@contextlib.contextmanager
def naming_systems_with_it() -> Iterator[None]:
    """Add to an ``UnknownSetting`` the systems that have the setting, by the same name or as other libraries call it;
    where none has it, how to list all flags."""
    try:
        yield
    except UnknownSetting as error:
        listed = " (--help-all lists all)" if error.flag else ""
        raise UsageError(f"{error}{_with_it(error.name, error.flag) or listed}") from None


def _with_it(name: str, flag: bool) -> str:
    """Return the systems that have a setting as the end of a sentence, or ""."""
    name = name.replace("-", "_")
    have = {system: {field.name for field in dataclasses.fields(load(system).Config)} for system in SYSTEMS}
    for field in (name, name.removeprefix("no_"), *fields_called(name)):
        systems = [system for system in have if field in have[system]]
        if systems:
            others = f" and {len(systems) - MOST} other systems" if len(systems) > MOST + 1 else ""
            shown = systems[:MOST] if others else systems
            several = ", ".join(shown) if others else in_a_row(shown)
            called = "it" if field in (name, name.removeprefix("no_")) else flag_name(field) if flag else field
            return f" ({several}{others} {'has' if len(systems) == 1 else 'have'} {called})"
    return ""
