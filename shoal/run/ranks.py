"""Work that a run does once although torchrun has started several processes: the first rank writes, and the others
follow. A process that torchrun has not started counts as the first rank."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.metering.aggregator import Snapshot
from shoal.records import checkpoint, run_dir
from shoal.records.checkpoint import Checkpoint
from shoal.records.report import Report
from shoal.records.run_dir import RunDirectory
from shoal.run.options import RunOptions
from shoal.settings.config import Resolved, by_user
from shoal.torchrun.place import place


class FollowerDirectory:
    """Replaces the directory of a run in ranks that do not write it."""

    present = None
    advanced = False  # the first rank decides how to resume

    class lock:
        launch = 0  # the first rank sends it

    def update(self, snapshot: Snapshot) -> None: ...
    def go_on(self, after: Checkpoint) -> None: ...
    def describe(self, config: Any, drawings: Any) -> None: ...
    def finish(self, report: Report) -> None: ...
    def report(self, report: Report) -> None: ...
    def failed(self, error: BaseException) -> None: ...
    def close(self) -> None: ...


def follows() -> bool:
    """Return True if this process is a rank that follows the first one."""
    here = place()
    return here is not None and not here.first


def agree(value: Any = None) -> Any:
    """Return, in every rank, the value that the first rank passes."""
    here = place()
    if here is None:
        return value
    from shoal.torchrun.runtime import group

    return group(RunOptions.hang_timeout).share(value)


@contextlib.contextmanager
def new_directory(name: str, env: str, seed: int) -> Iterator[Path]:
    """Create a new run directory in the first rank and yield its path in all ranks; see ``records.run_dir``."""
    if follows():
        yield Path(agree())
        return
    with run_dir.new_directory(name, env, seed) as path:
        agree(f"{path.absolute()}")
        yield path


def directory(path: Path) -> RunDirectory | FollowerDirectory:
    """Return the directory object of a new run."""
    return FollowerDirectory() if follows() else RunDirectory(path)


def reopened(path: Path, trust: bool) -> RunDirectory | FollowerDirectory:
    """Return the directory object of a resumed run. trust: write through links in it, too."""
    return FollowerDirectory() if follows() else RunDirectory.reopen(path, trust)


def newest(folder: Path) -> Checkpoint:
    """Return the newest checkpoint. The first rank sets damaged ones aside before the others look."""
    if follows():
        agree()
        return checkpoint.newest(folder)
    found = checkpoint.newest(folder)
    agree()
    return found


def as_many(resolved: Resolved) -> Resolved:
    """Return a configuration with as many ranks as torchrun has started, unless its user has set their number."""
    here, asked = place(), by_user(resolved.origins.get("actors", "default"))
    if here is None or (asked and resolved.cfg.actors):
        return resolved
    cfg = dataclasses.replace(resolved.cfg, actors=here.world)
    return dataclasses.replace(resolved, cfg=cfg, origins={**resolved.origins, "actors": "torchrun"})


def quietly(options: RunOptions) -> RunOptions:
    """Return the options of this process, without progress output if another rank shows it."""
    return dataclasses.replace(options, quiet=True, log=()) if follows() else options
