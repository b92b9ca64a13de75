"""Tensors in a file: safetensors, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from shoal.api import Tensors
from shoal.records.whole_files import write_whole


def save_tensors(tensors: Tensors, path: Path) -> None:
    """``path`` holds the tensors, on the disk, or where that raises OSError (a full disk) what it held before."""
    from safetensors.torch import save

    write_whole(path, save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}), sync=True)
