"""Settings that do nothing unless another has a certain value: ``only_with`` of a config class names them.

``only_with = {"momentum": ("optimiser", "sgd")}``: what the setting needs is another setting, and the values of it that
will do; without any of these, each that is not 0, empty, none or false.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.settings.config import Resolved, by_user, default_values, show, subject


def needs(Config: Any) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Setting, the other that it needs, and the values of that: of a config class and its bases."""
    for cls in reversed(Config.__mro__):
        for name, (other, *values) in vars(cls).get("only_with", {}).items():
            yield name, other, tuple(values)


def idle(system: Any, resolved: Resolved) -> list[str]:
    """A sentence for each setting of a ``system``, given by the user, that does nothing beside the others."""
    out, cfg = [], resolved.cfg
    usual = default_values(system.Config) | dict(system.PRESETS.get(resolved.preset, {}))
    for name, other, values in needs(type(cfg)):
        found, origin = getattr(cfg, other), resolved.origins.get(name, "default")
        given = by_user(origin)
        if origin.startswith("file"):  # may hold a whole configuration
            given = getattr(cfg, name) != usual[name]
        if given and not (found in values if values else found):
            out.append(f"{subject(name, origin)} does nothing here: {other} is {show(found) or 'empty'}")
    return out
