"""A configuration as TOML, with comments that say what each value means and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.api import UsageError
from shoal.settings.config import Resolved
from shoal.settings.field_docs import field_docs
from shoal.settings.schedule import Linear
from shoal.untrusted import one_line

if TYPE_CHECKING:
    from tomlkit.items import Item


def to_toml(resolved: Resolved, system: str) -> str:
    """A file that gives the same configuration again; comments say what each value means and where it came from."""
    import tomlkit

    docs = field_docs(type(resolved.cfg))
    document = tomlkit.document()
    document.update({"system": system, "preset": resolved.preset})
    document.add(tomlkit.nl())
    for key, value in resolved.shown().items():
        if key in docs:
            document.add(tomlkit.comment(docs[key]))
        document.add(key, _toml(value).comment(one_line(resolved.origins[key])))
    return tomlkit.dumps(document)


def _toml(value: object) -> Item:
    """TOML has no null: ``none`` is read as None where a field may be that."""
    import tomlkit

    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update({str(name): _toml(_some(entry, str(name))) for name, entry in value.items()})
        return table
    if isinstance(value, (list, tuple)):
        array = tomlkit.array()
        array.extend(_toml(_some(entry, "an entry")) for entry in value)
        return array
    if isinstance(value, Linear):
        value = str(value)
    return tomlkit.item("none" if value is None else value)


def _some(value: object, what: str) -> object:
    if value is None:
        raise UsageError(f"TOML has no null, which '{what}' is: write this configuration as YAML")
    return value
