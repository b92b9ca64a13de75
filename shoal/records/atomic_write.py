"""Atomic file writes: write to a temporary file, optionally sync it, and rename it."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.errors import ShoalError
from shoal.held import guarded
from shoal.paths import shown


def write_atomic(path: Path, content: str | bytes, sync: bool = False) -> None:
    """Write the content to ``path`` atomically. If this raises OSError (a full disk), the file is unchanged. sync:
    force the content to disk before the file is renamed, so that it survives a power failure."""
    with guarded(path.parent) as folder:
        temporary = folder / f".{path.name}.tmp"
        temporary.unlink(missing_ok=True)  # left by a killed process, or a link that another user has put there
        try:
            with open(temporary, "xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, folder / path.name)
        finally:
            temporary.unlink(missing_ok=True)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user has named, atomically. Raises ShoalError that names it, and leaves it unchanged, if
    that fails. A path that is no regular file, such as ``/dev/stdout``, is written directly."""
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_atomic(path, data)
    except OSError as error:
        raise ShoalError(f"cannot write '{shown(path)}': {error.strerror or error}") from None
