"""Refusals of paths that the user names, before there is anything to write to them."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import UsageError


def require_folder(path: Path) -> None:
    """UsageError unless the directory that the file ``path`` is to be in exists."""
    if not path.parent.is_dir():
        raise UsageError(f"no such directory: '{path.parent}'")


def require_new(path: Path, why: str = "") -> None:
    """UsageError unless ``path`` is an empty directory or nothing at all. ``why``: ends the sentence."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"'{path}' exists and is not empty{why}")
