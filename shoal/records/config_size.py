"""How large the parts of a run's ``config.json`` may be: commands and pages show them whole."""

from __future__ import annotations

from typing import Any

from shoal.untrusted import brief

MAX_CHARACTERS = 4_096  # of a name or a text: as many as a path can have
MAX_ENTRIES = 10_000  # of a list, or of an object with names
FREE = ("env_kwargs", "log_args")  # what others are given may be larger, and is shown in part


def require_moderate(facts: Any, where: str = "it") -> None:
    """Raise ValueError, with the place and the size, if a text, a list or an object in ``facts`` is too large."""
    if isinstance(facts, str) and len(facts) > MAX_CHARACTERS:
        raise ValueError(f"{where} has {len(facts):,} characters, at most {MAX_CHARACTERS:,} are taken")
    if isinstance(facts, (dict, list, tuple)):
        if len(facts) > MAX_ENTRIES:
            raise ValueError(f"{where} has {len(facts):,} entries, at most {MAX_ENTRIES:,} are taken")
        for name, value in facts.items() if isinstance(facts, dict) else enumerate(facts):
            if isinstance(name, str) and len(name) > MAX_CHARACTERS:
                raise ValueError(
                    f"{where} has a name of {len(name):,} characters, at most {MAX_CHARACTERS:,} are taken"
                )
            if name not in FREE:
                require_moderate(value, brief(name) if isinstance(name, str) else where)
