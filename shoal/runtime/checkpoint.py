"""The checkpoints of a run: ``RUN/checkpoints/STEPS/``, each complete or not there at all.

A checkpoint is written into a hidden folder beside the others, brought onto the disk, and renamed. ``manifest.json`` is
written last and lists every file with its size and hash. Only a folder that matches its manifest is ever read.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.api import ShoalError
from shoal.runtime import state_files
from shoal.runtime.state_files import Packed, Written

FORMAT = 1
FOLDER = "checkpoints"
RUN = "run"  # the part that belongs to no role: counters, episodes, seconds
PARAMS = "params"  # the part with the published parameters: channel -> {version, tensors}
SPARE = 64 << 20  # bytes that a checkpoint leaves free on the disk
_MANIFEST, _TEMPORARY, _DAMAGED = "manifest.json", ".tmp-", "damaged-"

log = logging.getLogger("shoal.runtime")


@dataclass(frozen=True)
class Saving:
    """When and how a run is saved into ``folder``.

    every: seconds between two checkpoints; 0: only at the end. replay_bytes: contents of replays beyond this size are
    left out. keep: checkpoints that are kept.
    """

    folder: Path
    every: float = 300.0
    replay_bytes: float = 10e9
    keep: int = 2


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def steps(self) -> int:
        return int(self.manifest["steps"])

    def has(self, part: str) -> bool:
        return f"{part}.json" in self.manifest["files"]

    def read(self, part: str) -> Any:
        if not self.has(part):
            raise ShoalError(
                f"the checkpoint '{self.path}' has no part '{part}', only {sorted(self.manifest['files'])}"
            )
        return state_files.read(self.path, part)


def part_name(role: str, index: int) -> str:
    """The files of a replica's state."""
    return f"role-{role.replace('/', '.')}-{index}"


# ---------------------------------------------------------------------------------------- writing
def begin(folder: Path) -> Path:
    """A new, hidden folder for the parts of one checkpoint."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{_TEMPORARY}{secrets.token_hex(4)}"
    path.mkdir(mode=0o700)
    return path


def check_space(folder: Path, nbytes: int) -> None:
    """OSError unless ``nbytes`` fit onto the disk."""
    free = shutil.disk_usage(folder).free
    if free < nbytes + SPARE:
        raise OSError(
            f"it needs {nbytes / 1e6:,.0f} MB and {SPARE / 1e6:.0f} MB to spare, {free / 1e6:,.0f} MB are free"
        )


def add(folder: Path, part: str, state: Any) -> dict[str, Written]:
    """Write one part; the files and what they hold."""
    packed = state if isinstance(state, Packed) else state_files.pack(state)
    check_space(folder, packed.nbytes)
    return state_files.write(packed, folder, part)


def commit(temporary: Path, saving: Saving, files: Mapping[str, Written], facts: Mapping[str, Any]) -> Path:
    """Make a checkpoint of the parts in ``temporary``, and forget the oldest. ``facts``: ``steps`` and what else the
    manifest shall say."""
    manifest = {"format": FORMAT, **facts, "files": {name: asdict(w) for name, w in sorted(files.items())}}
    with open(temporary / _MANIFEST, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        state_files.sync(file)
    _sync_folder(temporary)
    name = f"{facts['steps']:012d}"
    path, n = saving.folder / name, 2
    while path.exists():
        path, n = saving.folder / f"{name}.{n}", n + 1
    os.rename(temporary, path)
    _sync_folder(saving.folder)
    for old in _complete(saving.folder)[saving.keep :]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def discard(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------- reading
def newest(folder: Path) -> Checkpoint:
    """The newest checkpoint that matches its manifest. A damaged one is named, set aside and passed over.

    ShoalError if there is none, or if the newest was written in a format that this version does not read.
    """
    damaged = 0
    for path in _complete(folder):
        try:
            return _verified(path)
        except _Damaged as error:
            damaged += 1
            log.warning("the checkpoint '%s' is damaged: %s; trying the one before", path, error)
            os.rename(path, folder / f"{_DAMAGED}{path.name}-{secrets.token_hex(2)}")
    why = f"all {damaged} are damaged" if damaged else "none was completed"
    raise ShoalError(f"'{folder.parent}' has no checkpoint to resume from: {why}")


def clean(folder: Path) -> None:
    """Remove what a killed run left unfinished; only the run that owns the directory may do this."""
    for path in folder.glob(f"{_TEMPORARY}*") if folder.is_dir() else ():
        discard(path)


def newest_params(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """(updates, channel -> {version, tensors}) of the newest complete checkpoint; None if there is none."""
    for path in _complete(folder):
        try:
            checkpoint = _verified(path, only=PARAMS)
        except _Damaged as error:
            log.warning("the checkpoint '%s' is damaged: %s; trying the one before", path, error)
            continue
        return int(checkpoint.manifest["updates"]), checkpoint.read(PARAMS)
    return None


class _Damaged(Exception):
    """What does not match the manifest."""


def _complete(folder: Path) -> list[Path]:
    """Folders with a manifest, newest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if p.name[0].isdigit() and (p / _MANIFEST).is_file() and not p.is_symlink()]
    return sorted(found, key=lambda p: p.name, reverse=True)


def _verified(path: Path, only: str | None = None) -> Checkpoint:
    """The checkpoint, every file (or those of one part) compared with the manifest."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        written, files = manifest["format"], manifest["files"]
        steps, updates = manifest["steps"], manifest["updates"]
        sizes = {name: Written(int(f["size"]), str(f["sha256"])) for name, f in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"its manifest cannot be read ({type(error).__name__}: {error})") from None
    if not isinstance(written, int) or written > FORMAT:
        raise ShoalError(f"'{path}' has format {written}, this version of shoal reads formats up to {FORMAT}")
    if not (isinstance(steps, int) and isinstance(updates, int)):
        raise _Damaged("its manifest has no counters")
    for name, expected in sizes.items():
        if Path(name).name != name or name.startswith(".") or Path(name).suffix not in (".json", ".safetensors"):
            raise _Damaged(f"its manifest names '{name}', which cannot be a file of a checkpoint")
        if only is not None and Path(name).stem != only:
            continue
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise _Damaged(f"'{name}' is missing")
        if file.stat().st_size != expected.size or state_files.hash_file(file) != expected:
            raise _Damaged(f"'{name}' is not what was written")
    return Checkpoint(path, manifest)
