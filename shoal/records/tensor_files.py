"""Tensors in a file: safetensors, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.api import Tensors


def save_tensors(tensors: Tensors, path: Path) -> None:
    """``path`` holds the tensors, on the disk, or where that raises OSError (a full disk) what it held before."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}.tmp")
    try:
        save_file({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except SafetensorError as error:  # its word for what the system refused, too
        raise OSError(str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
