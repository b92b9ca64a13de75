"""Settings that hold names with values, entry by entry: ``--env-kwargs.mass 2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.settings import yaml_text
from shoal.types import Values
from shoal.untrusted import excerpt


class Entries(dict[str, Any]):
    """Entries to set over those of the layer below, the others of which stay. A plain dict takes their place."""


def read(flag: str, entry: str, words: list[str]) -> Values:
    """Return what ``flag`` was given: a whole dict or, where it names an ``entry`` (``a.b``: of a dict in it), that
    one."""
    import yaml

    if entry and not words:
        raise UsageError(f"{flag}.{entry} expects a value, found nothing")
    try:
        value = yaml_text.read(" ".join(words))
    except yaml.YAMLError as error:
        raise UsageError(
            f"{flag} expects names with values, found '{' '.join(words)}': {' '.join(str(error).split())}"
        ) from None
    for name in reversed(entry.split(".")) if entry else ():
        value = Entries({name: value})
    if not isinstance(value, dict):
        raise UsageError(f"{flag} expects names with values, as in {flag}.NAME VALUE, found '{' '.join(words)}'")
    return value


def read_entries(flag: str, words: list[str]) -> Values:
    """The entries in the words of a flag that holds several of the form NAME=VALUE."""
    out: Values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} expects words such as NAME=VALUE, found '{excerpt(word)}'")
        out[name] = read(flag, "value", [value])["value"]
    return out


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> Values:
    """Return what two flags of one command say: those of the second where names are in both, dicts in them likewise.
    Entries if both are."""
    return _laid_over(first, second, dict)


def over(below: Any, value: Any) -> Any:
    """A setting's ``value`` in a layer, laid over that of the layers below."""
    return _laid_over(below, value, Entries) if isinstance(value, Entries) and isinstance(below, Mapping) else value


def _laid_over(below: Mapping[str, Any], values: Mapping[str, Any], kind: type[dict[str, Any]]) -> Values:
    """``values`` in the place of what is ``below``; of a ``kind`` of dict, entry by entry."""
    inner = {
        name: _laid_over(below[name], value, kind)
        for name, value in values.items()
        if isinstance(value, kind) and isinstance(below.get(name), dict)
    }
    both = {**below, **values, **inner}
    return Entries(both) if isinstance(below, Entries) and isinstance(values, Entries) else both
