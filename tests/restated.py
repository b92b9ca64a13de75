"""Checkpoints that match their manifest, and whose states say something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

from shoal.records import checkpoint, checkpoint_state as state_files


def restate(run: Path, part: str, change: Callable[[Any], Any]) -> Path:
    """Change what the newest checkpoint holds, and let its manifest agree; its folder."""
    found = checkpoint.newest(run / checkpoint.FOLDER)
    state = found.read(part)
    change(state)
    (aside := run.parent / "aside").mkdir(exist_ok=True)  # arrays that were read lie in the file itself
    for name, written in state_files.write(state_files.pack(state), aside, part).items():
        (aside / name).replace(found.path / name)
        found.manifest["files"][name] = asdict(written)
    (found.path / "manifest.json").write_text(json.dumps(found.manifest))
    return found.path


def put(*way: Any) -> Callable[[Any], None]:
    """Put the last of ``way`` where the others lead."""
    *path, last, value = way
    return lambda state: reduce(lambda found, step: found[step], path, state).__setitem__(last, value)
