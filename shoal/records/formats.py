"""Format versions: each file names its own under ``format``, and this module checks that this version of Shoal reads
it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.api import ShoalError
from shoal.paths import shown
from shoal.untrusted import RUN_FORMAT, brief


def check_format(file: Path, facts: Mapping[str, Any], newest: int, oldest: int = RUN_FORMAT) -> None:
    """Raise ShoalError unless this version reads the format named in ``facts`` of ``file``. Files that name none have
    the first format."""
    written = facts.get("format", 1)
    if isinstance(written, bool) or not isinstance(written, int):
        raise ShoalError(f"{shown(file)} is damaged: its format is {brief(written)}, which is no number")
    if not oldest <= written <= newest:
        newer = written > newest
        age = "newer" if newer else "older"
        reads = f"up to {newest}" if newer else f"from {oldest} on: train anew, or read it with that version"
        raise ShoalError(
            f"{shown(file)} was written by {an(age)} version of Shoal: it has format {written}, "
            f"and this one reads {reads}"
        )


def an(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
