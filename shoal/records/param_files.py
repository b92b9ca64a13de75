"""The parameters of a run in its directory: one file per params channel, and an index of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from shoal.api import ShoalError, Tensors
from shoal.paths import shown
from shoal.records import checkpoint
from shoal.records.atomic_write import write_atomic
from shoal.records.checkpoint_params import ONE_OF_THEM, newest_params
from shoal.records.damage import read_json, reading
from shoal.records.report import Report
from shoal.records.tensor_files import index, save_tensors
from shoal.untrusted import brief, by_name, excerpt

MAX_READS = 5  # attempts to read parameters that a run replaces meanwhile
NEWEST = "newest"  # folder of the parameters of a running training


def save_params(path: Path, report: Report) -> None:
    """Write ``params-CHANNEL.safetensors`` for each channel and then ``params.json``, each atomically."""
    files = {channel: f"params-{channel.replace('/', '.')}.safetensors" for channel in report.params}
    for channel, params in report.params.items():
        save_tensors(params, path / files[channel])
    facts = {"steps": report.steps, "updates": report.updates}
    write_atomic(path / "params.json", index(facts, files, report.params))


def load_params(path: Path, channel: str | None = None) -> tuple[int, Tensors]:
    """Return (updates, tensors) of a params channel (None: of the only one) that a run saved. A run that is still going
    on or was killed has published parameters and checkpoints; the newer ones are taken. Raises ShoalError if there are
    none.

    A running training replaces its files. If a file disappears before it is read, the new ones are read instead.
    """
    for _ in range(MAX_READS - 1):
        before = _params_now(path)
        try:
            return _load_params(path, channel)
        except (ShoalError, FileNotFoundError):
            if _params_now(path) == before:
                raise
    return _load_params(path, channel)


def _params_now(path: Path) -> list[object]:
    """Return the identity of each parameter file in a directory, to detect changes."""
    found: list[object] = [path.name for path in checkpoint.named(path / checkpoint.FOLDER)]
    for file in (path / "params.json", path / NEWEST / "params.json"):
        with contextlib.suppress(OSError):
            status = file.stat()
            found.append((str(file), status.st_ino, status.st_mtime_ns))
    return found


def _load_params(path: Path, channel: str | None) -> tuple[int, Tensors]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (path / "params.json").is_file():
        saved = newest_params(path / checkpoint.FOLDER, channel)
        published = load_params(path / NEWEST, channel) if (path / NEWEST / "params.json").is_file() else None
        if found := max((each for each in (saved, published) if each is not None), key=lambda p: p[0], default=None):
            return found
    facts = read_json(path / "params.json", "parameters (the run has published none yet, and has no checkpoint)")
    with reading(path / "params.json"):
        channels = {name: Path(entry["file"]).name for name, entry in facts["channels"].items()}
        updates = int(facts["updates"])
    if channel is None and len(channels) == 1:
        (channel,) = channels
    if channel is None:
        raise ShoalError(
            f"'{shown(path)}' holds parameters of several channels ({brief(sorted(channels))}): {ONE_OF_THEM}"
        )
    if channel not in channels:
        raise ShoalError(f"'{shown(path)}' holds no parameters of the channel '{channel}', only of {sorted(channels)}")
    file = path / channels[channel]
    if not file.is_file():
        raise ShoalError(f"'{path}' lacks the file '{file.name}' that its params.json names")
    try:
        with by_name(file) as opened:
            return updates, load_file(opened)
    except (SafetensorError, OSError, ValueError) as error:
        raise ShoalError(f"'{file}' is no safetensors file, or damaged: {excerpt(error)}") from None
