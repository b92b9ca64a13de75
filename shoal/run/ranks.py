"""What a run does once though torchrun has started several processes of it: the first rank writes, and
the others follow. In a process that torchrun has not started all of it is as ever."""

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


class Elsewhere:
    """In place of the directory of a run that another rank writes."""

    present = None
    advanced = False  # the first rank says how to go on

    class lock:
        launch = 0  # the first rank tells

    def update(self, snapshot: Snapshot) -> None: ...
    def go_on(self, after: Checkpoint) -> None: ...
    def describe(self, config: Any, drawings: Any) -> None: ...
    def finish(self, report: Report) -> None: ...
    def report(self, report: Report) -> None: ...
    def failed(self, error: BaseException) -> None: ...
    def close(self) -> None: ...


def follows() -> bool:
    """Return whether this process is a rank that another one leads."""
    here = place()
    return here is not None and not here.first


def agree(value: Any = None) -> Any:
    """The value that the first rank gives, in all of them."""
    here = place()
    if here is None:
        return value
    from shoal.torchrun.runtime import group

    return group(RunOptions.hang_timeout).share(value)


@contextlib.contextmanager
def new_directory(name: str, env: str, seed: int) -> Iterator[Path]:
    """See ``records.run_dir``; the first rank makes it."""
    if follows():
        yield Path(agree())
        return
    with run_dir.new_directory(name, env, seed) as path:
        agree(f"{path.absolute()}")
        yield path


def directory(path: Path) -> RunDirectory | Elsewhere:
    """Return the directory that a new run writes to."""
    return Elsewhere() if follows() else RunDirectory(path)


def reopened(path: Path, trust: bool) -> RunDirectory | Elsewhere:
    """Return the directory that a resumed run writes to; ``trust``: also through links that it holds."""
    return Elsewhere() if follows() else RunDirectory.reopen(path, trust)


def newest(folder: Path) -> Checkpoint:
    """The newest checkpoint; those that are damaged are set aside by the first rank, before the others look."""
    if follows():
        agree()
        return checkpoint.newest(folder)
    found = checkpoint.newest(folder)
    agree()
    return found


def as_many(resolved: Resolved) -> Resolved:
    """A configuration with as many ranks as torchrun has started, unless its user says how many."""
    here, asked = place(), by_user(resolved.origins.get("actors", "default"))
    if here is None or (asked and resolved.cfg.actors):
        return resolved
    cfg = dataclasses.replace(resolved.cfg, actors=here.world)
    return dataclasses.replace(resolved, cfg=cfg, origins={**resolved.origins, "actors": "torchrun"})


def quietly(options: RunOptions) -> RunOptions:
    """Options of a process that says what the run says, or of one that leaves it to another."""
    return dataclasses.replace(options, quiet=True, log=()) if follows() else options
