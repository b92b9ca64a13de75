"""Resolution of a command's flags: its own options, fields of a system, and the source of the configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.api import UsageError
from shoal.run.having import naming_systems_with_it
from shoal.run.kinds import playing
from shoal.run.options import RunOptions
from shoal.run.runtimes import looking_under
from shoal.run.trust import check_resolved
from shoal.settings.config import Resolved, resolve
from shoal.settings.fields import RUN_FLAGS
from shoal.settings.flags import Groups, divide, field_name, options, parse_flags, short_name, unknown
from shoal.types import Values


def resolve_flags(name: str, system: Any, groups: Groups, own: Mapping[str, Any]) -> tuple[Values, Resolved]:
    """Return a command's ``own`` options, and the configuration that its other flags resolve to."""
    own = {**own, "preset": str, "config": str, "trust": bool}
    mine, rest = divide(groups, own)
    with naming_systems_with_it():
        check_flags(system.Config, rest, own, short_name(name))
    opts = options(mine, own, name)
    flags, file = parse_flags(system.Config, rest, short_name(name)), opts.get("config")
    runtime = opts.get("runtime", RunOptions.runtime)
    with looking_under(runtime):
        resolved = resolve(system, opts.get("preset"), file, flags, name=name, plays=playing(runtime))
    check_resolved(resolved, file, bool(opts.get("trust")))
    return opts, resolved


def check_flags(Config: Any, groups: Groups, own: Iterable[str], name: str) -> None:
    """Raise UsageError for a flag that is no field, and suggest the nearest field or ``own`` option of the command."""
    fields = [f.name for f in dataclasses.fields(Config)]
    for flag, _ in groups:
        key = field_name(flag)
        if key not in fields and key.removeprefix("no_") not in fields:
            if key in RUN_FLAGS:
                raise UsageError(f"'{flag}' is an option of shoal train, not of this command, nor a setting of {name}")
            raise unknown("flag", key, [*fields, *own], name)
