"""Functions that note how they are called, for tests that put one in place of another."""

from __future__ import annotations

from typing import TypeVar

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")


def noted(log: list[Entry], entry: Entry, answer: Answer) -> Answer:
    """Append ``entry`` to ``log`` and return ``answer``: both in one expression, as a lambda needs it."""
    log.append(entry)
    return answer
