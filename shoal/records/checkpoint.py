"""The checkpoints of a run: folders ``RUN/checkpoints/STEPS/`` that are either complete or absent.

A checkpoint is written into a hidden folder beside the others, synced to disk and renamed. ``manifest.json`` is written
last and lists every file with its size and hash. Only a folder that matches its manifest is ever read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.api import EnvironmentFailed, ShoalError, Stopped
from shoal.held import held
from shoal.metering.aggregator import Aggregator
from shoal.program import Channel, Program
from shoal.records import checkpoint_state as state_files
from shoal.records.atomic_write import write_atomic
from shoal.records.checkpoint_shape import differences as differences, shape_of as shape_of
from shoal.records.checkpoint_state import FileDigest, PackedState
from shoal.records.formats import check_format
from shoal.records.presence import Presence
from shoal.types import Values
from shoal.untrusted import MAX_COUNTER, RUN_FORMAT, brief, excerpt, parse_json, read_text
from shoal.words import counted

FOLDER = "checkpoints"
RUN = "run"  # the part that belongs to no role: counters, episodes, seconds
SPARE_DISK_BYTES = 64 << 20  # bytes that a checkpoint leaves free on the disk
MAX_DIFFERENCES = 20  # of a program and what was saved, which are listed
TOLD = 2  # checkpoints that are skipped of which each is named
_NAME = re.compile(r"\d{12,}(\.\d+)?")
MANIFEST, _TEMPORARY, _DAMAGED = "manifest.json", ".tmp-", "damaged-"

log = logging.getLogger("shoal.runtime")


@dataclass(frozen=True)
class SaveOptions:
    """When and where a run is saved.

    folder: where checkpoints are written. every: seconds between two checkpoints; 0 writes one at the end only.
    replay_bytes: larger replays are left out. keep: how many checkpoints are kept. launch: how often the run was
    resumed. present: identity of the run's directory at the start.
    """

    folder: Path
    every: float = 300.0
    replay_bytes: float = 8e9
    keep: int = 2
    launch: int = 0
    present: Presence | None = None

    def leaves_out(self, channel: Channel, writers: int) -> bool:
        """Return True if the contents of a replay are too large to be saved."""
        return channel.table is not None and channel.table.nbytes(channel.spec, writers) > self.replay_bytes


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and manifest."""

    path: Path
    manifest: Values

    @property
    def steps(self) -> int:
        return int(self.manifest["steps"])

    def has(self, part: str) -> bool:
        return f"{part}.json" in self.manifest["files"]

    def read(self, part: str) -> Any:
        if not self.has(part):
            raise Unloadable(self, f"it has no part '{part}', only {brief(sorted(self.manifest['files']))}")
        try:
            return state_files.read(self.path, part)
        except Exception as error:  # whatever its readers say to a file that is something else
            raise Unloadable(self, f"'{part}' cannot be read: {excerpt(error)}") from error

    def check_fits(self, program: Program) -> None:
        """Raise ShoalError with a list of the differences if this program is not the one that was saved."""
        was, now = self.manifest["program"], shape_of(program)
        lines = [] if was == shape_of(program, server=True) else list(differences(was, now))
        if lines:
            more = [f"and {len(lines) - MAX_DIFFERENCES:,} more"] if len(lines) > MAX_DIFFERENCES else []
            listed = "\n".join(f"  {line}" for line in [*lines[:MAX_DIFFERENCES], *more])
            raise ShoalError(f"the checkpoint '{self.path}' does not fit this program:\n{listed}")

    @contextlib.contextmanager
    def fitting(self, part: str) -> Iterator[None]:
        """Turn an error that the block raises on loading a state into an Unloadable that names the part."""
        try:
            yield
        except (Unloadable, EnvironmentFailed, Stopped):
            raise
        except Exception as error:
            raise Unloadable(self, f"'{part}' does not fit: {type(error).__name__}: {excerpt(error)}") from error

    def before(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint that is older than this one, or None."""
        for path in complete(self.path.parent):
            if _order(path) < _order(self.path):
                with contextlib.suppress(Damaged):
                    return verified(path)
        return None


class Unloadable(ShoalError):
    """Raised for a checkpoint that matches its manifest but whose state cannot be loaded."""

    def __init__(self, checkpoint: Checkpoint, why: str) -> None:
        self.why = why
        super().__init__(f"the checkpoint '{checkpoint.path}' is damaged: {why}")


def facts(saving: SaveOptions, program: Program, run: Aggregator) -> Values:
    """Return the entries of the manifest, without the list of files."""
    return {
        "steps": run.steps,
        "updates": run.updates,
        "seconds": round(run.seconds, 3),
        "row": run.row,
        "launch": saving.launch,
        "program": shape_of(program),
    }


def part(kind: str, name: str, index: int | None = None) -> str:
    """Return the name of a part: ``kind`` is ``role`` (with a replica's ``index``), ``channel`` or ``params``."""
    return f"{kind}-{name.replace('/', '.')}" + ("" if index is None else f"-{index}")


# ---------------------------------------------------------------------------------------- writing
def begin(saving: SaveOptions, number: int) -> Path:
    """Create the hidden folder for this launch's checkpoint ``number`` and return it. All replicas that save into this
    checkpoint get the same folder."""
    path = unfinished(saving, number)
    if saving.present is not None:
        saving.present.require()
    with held(path.parent, path.name, make=True):
        return path


def unfinished(saving: SaveOptions, number: int) -> Path:
    """Return the path of the folder that ``begin`` creates."""
    return saving.folder / f"{_TEMPORARY}{saving.launch}-{number}"


def add(folder: Path, parts: Mapping[str, PackedState]) -> dict[str, FileDigest]:
    """Write parts to disk and return their files. Raises OSError, before anything is written, if the disk lacks
    space."""
    with held(folder.parent, folder.name) as there:
        needed, free = sum(packed.nbytes for packed in parts.values()) + SPARE_DISK_BYTES, shutil.disk_usage(there).free
        if free < needed:
            raise OSError(f"it needs {needed / 1e6:,.0f} MB of disk, {free / 1e6:,.0f} MB are free")
        out: dict[str, FileDigest] = {}
        for name, packed in parts.items():
            out |= state_files.write(packed, there, name)
        state_files.sync(there / name for name in out)
        return out


def commit(temporary: Path, saving: SaveOptions, files: Mapping[str, FileDigest], facts: Mapping[str, Any]) -> Path:
    """Turn the parts in ``temporary`` into a checkpoint, remove the oldest checkpoints, and return its folder. facts:
    the manifest's entries, with ``steps``."""
    manifest = {"format": RUN_FORMAT, **facts, "files": {name: asdict(w) for name, w in sorted(files.items())}}
    with held(saving.folder) as folder:
        with held(folder / temporary.name) as there:
            write_atomic(there / MANIFEST, json.dumps(manifest, indent=2), sync=True)
            state_files.sync([there])
        steps, newest = facts["steps"], complete(folder)[:1]
        before = _order(newest[0]) if newest else (-1, 0)
        name = f"{steps:012d}" if steps != before[0] else f"{steps:012d}.{before[1] + 1}"
        os.rename(folder / temporary.name, folder / name)
        state_files.sync([folder])
        # renamed first, so that a process that is killed meanwhile does not leave a folder that looks damaged
        for old in complete(folder)[saving.keep :]:
            leaving = old.with_name(f"{_TEMPORARY}old-{old.name}")
            with contextlib.suppress(OSError):
                os.rename(old, leaving)
                shutil.rmtree(leaving, ignore_errors=True)
    return saving.folder / name


def discard(temporary: Path) -> None:
    """Remove a folder that ``begin`` created. Raises ValueError for any other folder."""
    if not temporary.name.startswith(_TEMPORARY):
        raise ValueError(f"'{temporary}' is not the folder of an unfinished checkpoint")
    with contextlib.suppress(OSError), held(temporary.parent) as folder:
        shutil.rmtree(folder / temporary.name, ignore_errors=True)


# ---------------------------------------------------------------------------------------- reading
def newest(folder: Path) -> Checkpoint:
    """Return the newest checkpoint that matches its manifest. A damaged one is reported, set aside and skipped.

    Raises ShoalError if there is none, or if the newest has a format that this version does not read.
    """
    skipped = Skipped()
    for path in named(folder):
        if not (path / MANIFEST).is_file():
            skipped.tell(f"the checkpoint '{path}' is damaged: it has no {MANIFEST}; it is set aside")
            set_aside(path)
    for path in complete(folder):
        try:
            found = verified(path)
        except Damaged as error:
            skipped.tell(f"the checkpoint '{path}' is damaged: {error}; trying the one before")
            set_aside(path)
        else:
            skipped.tell_others()
            return found
    why = f"all {skipped.count:,} are damaged" if skipped.count else "none was completed"
    raise ShoalError(f"'{folder.parent}' has no checkpoint to resume from: {why}")


class Skipped:
    """Warns of checkpoints that are skipped: of the first two one by one, of ``tell_others`` together, as somebody
    else's directory may hold thousands."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self, sentence: str) -> None:
        """Log a warning about one of them."""
        self.count += 1
        if self.count <= TOLD:
            log.warning("%s", sentence)

    def tell_others(self) -> None:
        """Log a warning about those that ``tell`` did not."""
        if self.count > TOLD:
            log.warning("so are %s more before it", counted(self.count - TOLD, "checkpoint"))


def completed(folder: Path) -> bool:
    """Return True if the folder holds a checkpoint, damaged or not."""
    return bool(complete(folder))


def clean(folder: Path) -> None:
    """Remove unfinished checkpoints of a killed run. Only the process that holds the run's lock may call this."""
    with contextlib.suppress(FileNotFoundError), held(folder) as there:
        for path in there.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)


def newest_with(folder: Path, name: str) -> Checkpoint | None:
    """Return the newest checkpoint whose part ``name`` is undamaged, or None."""
    for path in complete(folder):
        with contextlib.suppress(Damaged):
            checkpoint = verified(path, only=[name])
            if checkpoint.has(name):
                return checkpoint
    return None


class Damaged(Exception):
    """Raised for a checkpoint that does not match its manifest."""


def complete(folder: Path) -> list[Path]:
    """Return the folders that have a manifest, newest first."""
    return sorted((p for p in named(folder) if (p / MANIFEST).is_file()), key=_order, reverse=True)


def named(folder: Path) -> list[Path]:
    """Return the folders that have the name of a checkpoint."""
    if not folder.is_dir():
        return []
    return [p for p in folder.iterdir() if _NAME.fullmatch(p.name) and not p.is_symlink()]


def set_aside(path: Path) -> None:
    """Rename a checkpoint, so that it is no longer found."""
    with held(path.parent) as folder:
        os.rename(folder / path.name, folder / f"{_DAMAGED}{path.name}-{secrets.token_hex(2)}")


def _order(path: Path) -> tuple[int, int]:
    """Return (steps, number of earlier checkpoints with the same steps) as a sort key."""
    steps, _, again = path.name.partition(".")
    return int(steps), int(again or 0)


def verified(path: Path, only: Collection[str] | None = None) -> Checkpoint:
    """Return the checkpoint after comparing its files (all, or those of the parts ``only``) with the manifest. Raises
    Damaged if they differ."""
    try:
        manifest = parse_json(read_text(path / MANIFEST))
        written, files = manifest["format"], manifest["files"]
        counters: list[tuple[Any, tuple[type, ...]]] = [
            (manifest[name], (int,)) for name in ("steps", "updates", "row", "launch")
        ]
        counters.append((manifest["seconds"], (int, float)))
        sizes = {name: FileDigest(int(f["size"]), str(f["sha256"])) for name, f in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Damaged(f"its manifest cannot be read ({type(error).__name__}: {excerpt(error)})") from None
    check_format(path, {"format": written}, RUN_FORMAT)
    if not all(type(n) in kinds and 0 <= n <= MAX_COUNTER for n, kinds in counters):
        raise Damaged("its manifest has no counters")
    if not isinstance(manifest.get("program"), dict):
        raise Damaged("its manifest does not say what was run")
    for name, expected in sizes.items():
        if Path(name).name != name or name.startswith(".") or Path(name).suffix not in (".json", ".safetensors"):
            raise Damaged(f"its manifest names {brief(name)}, which cannot be a file of a checkpoint")
        if only is not None and Path(name).stem not in only:
            continue
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise Damaged(f"{brief(name)} is missing")
        with contextlib.suppress(ValueError):  # a pipe has taken its place meanwhile
            if file.stat().st_size == expected.size and state_files.hash_file(file) == expected:
                continue
        raise Damaged(f"{brief(name)} is not what was written")
    return Checkpoint(path, manifest)
