"""Settings that hold names with values, entry by entry: ``--env-kwargs.mass 2``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.api import UsageError
from shoal.settings import yaml_text
from shoal.types import Values


class Entries(dict[str, Any]):
    """Entries to set over those of the layer below, the others of which stay. A plain dict takes their place."""


def read(flag: str, entry: str, words: list[str]) -> Values:
    """What ``flag`` was given: a whole dict or, where it names an ``entry`` (``a.b``: of a dict in it), that one."""
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


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> Values:
    """Both, those of the second where names are in both; Entries in them likewise. Entries if both are."""
    inner = {
        k: joined(first[k], v) for k, v in second.items() if isinstance(v, Entries) and isinstance(first.get(k), dict)
    }
    both = {**first, **second, **inner}
    return Entries(both) if isinstance(first, Entries) and isinstance(second, Entries) else both


def over(below: Any, value: Any) -> Any:
    """A setting's ``value`` in a layer, laid over that of the layers below."""
    return joined(below, value) if isinstance(value, Entries) and isinstance(below, Mapping) else value
