"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


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
