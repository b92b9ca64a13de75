"""A file that is not as it was written: whatever its reader says of that becomes one sentence."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

from shoal.api import ShoalError
from shoal.paths import shown
from shoal.untrusted import excerpt


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the block cannot make of the contents of ``path`` becomes a ShoalError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ShoalError(f"'{shown(path.parent)}' lacks the file '{path.name}'") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, csv.Error) as error:
        detail = excerpt(f"{type(error).__name__}: {error}".partition("\n")[0])
        raise ShoalError(f"{shown(path)} is damaged: {detail}") from None
