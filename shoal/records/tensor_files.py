"""Tensors in safetensors files that are written atomically, and the index of such files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.api import Tensors
from shoal.records.atomic_write import write_atomic
from shoal.untrusted import RUN_FORMAT


def save_tensors(tensors: Tensors, path: Path) -> None:
    """Write the tensors to ``path`` atomically and sync them to disk. If this raises OSError (a full disk), the file is
    unchanged."""
    from safetensors.torch import save

    write_atomic(path, save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}), sync=True)


def index(facts: Mapping[str, Any], files: Mapping[str, str], params: Mapping[str, Tensors]) -> str:
    """Return the contents of ``params.json``: the ``facts``, and the file of each params channel with the types and
    shapes of its tensors."""
    channels = {
        name: {"file": files[name], "tensors": {k: [str(v.dtype), list(v.shape)] for k, v in tensors.items()}}
        for name, tensors in params.items()
    }
    return json.dumps({"format": RUN_FORMAT, **facts, "channels": channels}, indent=2) + "\n"
