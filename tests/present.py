"""What a test knows to be there, though its type says that it may be None."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return ``value``. Raises AssertionError if it is None."""
    assert value is not None
    return value
