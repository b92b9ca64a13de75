"""Damaged files: errors of their readers are reported as one sentence that names the file."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.api import ShoalError, UsageError
from shoal.paths import shown
from shoal.records.config_size import require_moderate
from shoal.records.formats import check_format
from shoal.types import Values
from shoal.untrusted import RUN_FORMAT, excerpt, parse_json, read_text


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error that the block raises on the contents of ``path`` into a ShoalError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ShoalError(f"'{shown(path.parent)}' lacks the file '{path.name}'") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, csv.Error) as error:
        detail = excerpt(f"{type(error).__name__}: {error}".partition("\n")[0])
        raise ShoalError(f"{shown(path)} is damaged: {detail}") from None


def require_run(path: Path) -> None:
    """Raise UsageError for a directory that holds neither a run nor a population, whatever else lies in it."""
    if not any(os.path.lexists(path / name) for name in ("config.json", "population.json")):
        raise UsageError(f"'{shown(path)}' holds no run: there is no config.json")


def read_json(path: Path, what: str, keys: Sequence[str] = ()) -> Values:
    """Return the contents of a JSON object with at least ``keys``. what: what the file holds, for the error's sentence.
    Raises UsageError if the file is missing and ShoalError if it is damaged or has a format that this version does not
    read."""
    try:
        data = parse_json(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"'{shown(path.parent)}' holds no {what}: there is no {path.name}") from None
    except ValueError as error:
        raise ShoalError(f"{shown(path)} is damaged: {excerpt(error)}") from None
    if not isinstance(data, dict):
        raise ShoalError(f"{shown(path)} is damaged: expected an object with names, found {type(data).__name__}")
    check_format(path, data, RUN_FORMAT)
    if "config" in data:
        with reading(path):
            require_moderate(data)
    if lacking := [key for key in keys if key not in data]:
        raise ShoalError(f"{shown(path)} is damaged: it lacks {', '.join(map(repr, lacking))}")
    return data
