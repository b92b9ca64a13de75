"""How large the parts of a run's ``config.json`` may be: commands and pages show them whole."""

from __future__ import annotations

from typing import Any

from shoal.untrusted import brief

MAX_CHARACTERS = 4_096  # of a name or a text: as many as a path can have
MAX_ENTRIES = 10_000  # of a list, or of an object with names
FREE = ("env_kwargs", "log_args")  # what others are given may be larger, and is shown in part


def require_moderate(facts: Any, name: str = "") -> None:
    """Raise ValueError, with the place and the size, if a text, a list or an object in ``facts`` is too large. name:
    under which the facts stand; "" for all of them."""
    if isinstance(facts, str):
        _require(len(facts), MAX_CHARACTERS, "characters", name)
    elif isinstance(facts, dict):
        _require(len(facts), MAX_ENTRIES, "entries", name)
        for inner, value in ((str(inner), value) for inner, value in facts.items()):
            _require(len(inner), MAX_CHARACTERS, "characters", inner)
            if inner not in FREE:
                require_moderate(value, inner)
    elif isinstance(facts, (list, tuple)):
        _require(len(facts), MAX_ENTRIES, "entries", name)
        for value in facts:
            require_moderate(value, name)


def _require(size: int, most: int, what: str, name: str) -> None:
    if size > most:
        raise ValueError(f"{brief(name) if name else 'it'} has {size:,} {what}, at most {most:,} are taken")
