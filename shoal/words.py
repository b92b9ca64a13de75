"""Numbers with their nouns, and lists, for sentences: 1 step, 1,280 steps; a, b and c."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: float, noun: str) -> str:
    """Return a number, rounded to a whole one, and its noun, given as of one (``agent step``), as it follows it."""
    shown = f"{number:,.0f}"
    return f"{shown} {noun if shown == '1' else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a regular noun."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def in_a_row(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
