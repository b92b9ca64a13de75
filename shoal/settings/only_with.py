"""Settings that do nothing unless another has a certain value: ``only_with`` of a config class names them. Those that
depend on the environment are told by its method ``idle``.

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
    of_network = cfg.idle()
    for name in dict.fromkeys((*(name for name, _, _ in needs(type(cfg))), *of_network)):
        origin = resolved.origins.get(name, "default")
        given = by_user(origin)
        if origin.startswith("file"):  # may hold a whole configuration
            given = getattr(cfg, name) != usual[name]
        if given and (why := of_network.get(name) or _why(cfg, name)):
            out.append(f"{subject(name, origin)} does nothing here: {why}")
    return out


def _why(cfg: Any, name: str) -> str:
    off = _off(cfg, name)
    return off and f"{off} is {show(getattr(cfg, off)) or 'empty'}"


def _off(cfg: Any, name: str) -> str:
    """The setting whose value lets ``name`` do nothing, perhaps by way of others; "" if there is none."""
    for setting, other, values in needs(type(cfg)):
        if setting == name:
            found = getattr(cfg, other)
            if off := _off(cfg, other) or ("" if (found in values if values else found) else other):
                return off
    return ""
