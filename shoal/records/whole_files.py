"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.errors import ShoalError
from shoal.paths import shown


def write_whole(path: Path, content: str | bytes, sync: bool = False) -> None:
    """``path`` holds the content or, where that raises OSError (a full disk), what it held before. ``sync``: so does it
    after a loss of power, as the content is on the disk before it takes that name."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # what a killed process left, or a link that somebody else has put there
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user has named: whole, or ShoalError that names it, and it holds what it held before. What
    is no file, such as ``/dev/stdout``, is written as it is."""
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_whole(path, data)
    except OSError as error:
        raise ShoalError(f"cannot write '{shown(path)}': {error.strerror or error}") from None
