"""Parameters read from the checkpoints of a run, without the rest of their state."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from shoal.api import Field, ShoalError, Tensors, views
from shoal.records.checkpoint import MANIFEST, Checkpoint, Damaged, Skipped, Unloadable, complete, part, verified
from shoal.untrusted import brief, excerpt, parse_json, read_text

ONE_OF_THEM = "expected Program.policy to name one of them"


def newest_params(folder: Path, channel: str | None) -> tuple[int, Tensors] | None:
    """Return (updates, parameters) of a channel (None: the only one) from the newest checkpoint where they are
    undamaged, or None if there is none."""
    skipped = Skipped()
    for path in complete(folder):
        try:
            found = _params(path, channel)
        except (Damaged, Unloadable) as error:
            why = error.why if isinstance(error, Unloadable) else error
            skipped.tell(f"the checkpoint '{path}' is damaged: {why}; trying the one before")
            continue
        if found is not None:
            skipped.tell_others()
            return found
    return None


def _params(path: Path, channel: str | None) -> tuple[int, Tensors] | None:
    """Return (updates, parameters) of one checkpoint, or None if it has none. Raises Damaged or Unloadable."""
    name = part("params", channel) if channel is not None else _only_params(path)
    names = _pieces(path, name)
    checkpoint = verified(path, only=names)
    if not all(map(checkpoint.has, names)):
        return None
    with checkpoint.fitting(name):
        pieces = [dict(checkpoint.read(each)["tensors"]) for each in names]
        tensors = pieces[0] if names == [name] else _joined(checkpoint, name, pieces)
        if foreign := [key for key, value in tensors.items() if not isinstance(value, torch.Tensor)]:
            raise TypeError(f"{brief(foreign[0])} is no tensor")
    return int(checkpoint.manifest["updates"]), tensors


def _saved_params(path: Path, channels: bool = False) -> list[str]:
    """Return the names of the parts that hold parameters, or of the channels that these are of."""
    try:
        manifest = parse_json(read_text(path / MANIFEST))
        found = sorted({Path(name).stem for name in manifest["files"] if name.startswith(part("params", ""))})
        whole = {re.sub(r"\.\d+$", "", name) for name in found}
        return [c for c in sorted(manifest["program"]["channels"]) if part("params", c) in whole] if channels else found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"its manifest cannot be read ({type(error).__name__}: {excerpt(error)})") from None


def _pieces(path: Path, name: str) -> list[str]:
    """Return the parts of a params channel in order: one, or one for each of its writers."""
    numbered = [s for s in _saved_params(path) if re.fullmatch(re.escape(name) + r"\.\d{1,9}", s)]
    return sorted(numbered, key=lambda s: int(s.rpartition(".")[2])) or [name]


def _joined(checkpoint: Checkpoint, name: str, pieces: list[Tensors]) -> Tensors:
    """Return the parameters of a divided channel, joined from parts that are one vector each."""
    flat = torch.cat([tensor for piece in pieces for tensor in piece.values()])
    for channel, spec in checkpoint.manifest["program"]["channels"].items():
        if part("params", channel) == name:
            shapes = {field: tuple(parse_json(told.partition(" ")[2])) for field, told in spec.items()}
            return views(flat, {field: Field(shape) for field, shape in shapes.items()})
    raise ValueError(f"its manifest does not say what {brief(name)} looks like")


def _only_params(path: Path) -> str:
    """Return the name of the only part that holds parameters. Raises ShoalError if there are several."""
    names = _saved_params(path)
    whole = {re.sub(r"\.\d+$", "", name) for name in names}
    if len(names) > 1 and len(whole) == 1 and _pieces(path, min(whole)) == sorted(names, key=lambda n: (len(n), n)):
        return min(whole)
    if len(names) > 1:
        several = brief(_saved_params(path, channels=True))
        raise ShoalError(f"'{path}' holds parameters of several channels ({several}): {ONE_OF_THEM}")
    return names[0] if names else part("params", "")
