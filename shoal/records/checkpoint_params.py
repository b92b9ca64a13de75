"""Parameters read from the checkpoints of a run, without the rest of their state."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import torch

from shoal.api import Field, ShoalError, Tensors, views
from shoal.records.checkpoint import MANIFEST, Checkpoint, Damaged, complete, part, verified
from shoal.untrusted import brief, excerpt, parse_json, read_text

log = logging.getLogger("shoal.runtime")


def newest_params(folder: Path, channel: str | None) -> tuple[int, Tensors] | None:
    """Return (updates, parameters) of a channel (None: the only one) from the newest checkpoint where they are
    undamaged, or None if there is none."""
    for path in complete(folder):
        try:
            name = part("params", channel) if channel is not None else _only_params(path)
            names = _pieces(path, name)
            checkpoint = verified(path, only=names)
        except Damaged as error:
            log.warning("the checkpoint '%s' is damaged: %s; trying the one before", path, error)
            continue
        if all(map(checkpoint.has, names)):
            updates = int(checkpoint.manifest["updates"])
            if names == [name]:
                return updates, checkpoint.read(name)["tensors"]
            return updates, _joined(checkpoint, name, names)
    return None


def _saved_params(path: Path) -> list[str]:
    """Return the names of the parts that hold parameters."""
    try:
        files = parse_json(read_text(path / MANIFEST))["files"]
        return sorted({Path(name).stem for name in files if name.startswith(part("params", ""))})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"its manifest cannot be read ({type(error).__name__}: {excerpt(error)})") from None


def _pieces(path: Path, name: str) -> list[str]:
    """Return the parts of a params channel in order: one, or one for each of its writers."""
    numbered = [s for s in _saved_params(path) if re.fullmatch(re.escape(name) + r"\.\d+", s)]
    return sorted(numbered, key=lambda s: int(s.rpartition(".")[2])) or [name]


def _joined(checkpoint: Checkpoint, name: str, names: list[str]) -> Tensors:
    """Return the parameters of a divided channel, joined from parts that are one vector each."""
    flat = torch.cat([tensor for each in names for tensor in checkpoint.read(each)["tensors"].values()])
    for channel, spec in checkpoint.manifest["program"]["channels"].items():
        if part("params", channel) == name:
            with checkpoint.fitting(name):
                shapes = {field: tuple(parse_json(told.partition(" ")[2])) for field, told in spec.items()}
                return views(flat, {field: Field(shape) for field, shape in shapes.items()})
    raise ShoalError(f"the checkpoint '{checkpoint.path}' does not say what {brief(name)} looks like")


def _only_params(path: Path) -> str:
    """Return the name of the only part that holds parameters. Raises ShoalError if there are several."""
    names = _saved_params(path)
    whole = {re.sub(r"\.\d+$", "", name) for name in names}
    if len(names) > 1 and len(whole) == 1 and _pieces(path, min(whole)) == sorted(names, key=lambda n: (len(n), n)):
        return min(whole)
    if len(names) > 1:
        raise ShoalError(f"'{path}' holds several parameters ({', '.join(names)}): expected to be told which")
    return names[0] if names else part("params", "")
