"""Dumps of a training that diverged: the last batch, the parameters and a few facts."""

from __future__ import annotations

import json
from pathlib import Path

from shoal import api
from shoal.held import held
from shoal.records.atomic_write import write_atomic
from shoal.records.metric_files import finite
from shoal.records.tensor_files import save_tensors
from shoal.types import Values


def save(error: BaseException, run_dir: Path | None) -> str:
    """Write ``RUN/dumps/ROLE-UPDATE/`` (``tensors.safetensors``, ``facts.json``) for an ``api.Diverged``. Return a
    sentence that names the folder, or "" if nothing could be written."""
    if not isinstance(error, api.Diverged) or run_dir is None or not error.tensors:
        return ""
    name = "{role}-{update}".format(**{"role": "learner", "update": 0, **error.facts}).replace("/", ".")
    folder = run_dir / "dumps" / name
    facts: Values = {name: finite(value) for name, value in error.facts.items()}
    try:
        with held(folder.parent, name, make=True) as there:
            save_tensors(error.tensors, there / "tensors.safetensors")
            write_atomic(there / "facts.json", json.dumps({"error": str(error), **facts}, indent=2) + "\n")
    except OSError as failure:
        return f"The last batch could not be saved in {folder}: {failure.strerror or failure}."
    return f"The last batch and the parameters are saved in {folder}."
