"""Tensors in a safetensors file that is written atomically."""

from __future__ import annotations

from pathlib import Path

from shoal.api import Tensors
from shoal.records.atomic_write import write_atomic


def save_tensors(tensors: Tensors, path: Path) -> None:
    """Write the tensors to ``path`` atomically and sync them to disk. If this raises OSError (a full disk), the file is
    unchanged."""
    from safetensors.torch import save

    write_atomic(path, save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}), sync=True)
