"""Arguments and results of every runtime: how a program is launched, and how the run ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from shoal.api import ShoalError
from shoal.metering.aggregator import Aggregator, Observer
from shoal.program import Program
from shoal.records.checkpoint import TOLD, Checkpoint, SaveOptions, Unloadable, set_aside
from shoal.records.publication import Publication
from shoal.records.report import Report as Report
from shoal.untrusted import excerpt

MAX_UNLOADABLE = 10  # checkpoints that cannot be loaded, each of which takes a start of the run
log = logging.getLogger("shoal.runtime")


@dataclass(frozen=True)
class Stop:
    """Limits of a run. The first that is reached ends the run; None means no limit.

    steps: agent steps of all actors; seconds: of training, over all launches of the run; updates: of all learners;
    episode_return: mean raw return of the last 100 episodes; asked: whether an observer wants the end, looked at after
    every report.
    """

    steps: int | None = None
    seconds: float | None = None
    updates: int | None = None
    episode_return: float | None = None
    asked: Callable[[], bool] | None = None

    def reached(self, run: Aggregator) -> str:
        """Return the name of the limit that the run has reached, or "" if it continues."""
        if self.steps is not None and run.steps >= self.steps:
            return "steps"
        if self.updates is not None and run.updates >= self.updates:
            return "updates"
        if self.seconds is not None and run.seconds >= self.seconds:
            return "seconds"
        if self.episode_return is not None and run.full_window and run.episode_return >= self.episode_return:
            return "episode_return"
        return "observer" if self.asked is not None and self.asked() else ""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Options of one launch of a program, the same for every runtime.

    seed: of the run; the seed of every life of every replica follows from it (``runtime.seeds``).
    stop: what ends the run.
    run_dir: where roles, and the runtime for them, may write; None: nowhere.
    observers: get a snapshot as the run goes on and at its end, where rows of files belong: a deterministic runtime
        calls them at fixed counts of steps, any other every ``interval`` seconds.
    display: gets one every ``interval`` seconds and at the end, whatever the runtime.
    saving: where and when checkpoints are written; None: there are none.
    resume: the checkpoint that the run goes on from; None: it begins.
    exact: a deterministic runtime saves environments too, and goes on from them bit for bit, by playing them again.
    publication: where the newest parameters are written as the run goes on; None: nowhere.
    spans: how many phases, each with its times, a replica records for a profile; 0: none.
    went_back: told of the checkpoint that was loaded, where it is one before ``resume``; None: only ``resume`` will do.
    loaded: the runtime calls it when the state of ``resume`` is loaded, before it tells ``observers`` anything.
    """

    seed: int = 0
    stop: Stop = Stop()
    run_dir: Path | None = None
    observers: Sequence[Observer] = ()
    display: Observer | None = None
    interval: float = 0.5
    saving: SaveOptions | None = None
    resume: Checkpoint | None = None
    publication: Publication | None = None
    exact: bool = True
    spans: int = 0
    went_back: Callable[[Checkpoint], object] | None = None
    loaded: Callable[[], object] = lambda: None


class CannotGoOn(ShoalError):
    """Raised if a role fails before its first step after a resume: its loaded state may be invalid. The traceback is in
    the log."""

    def __init__(self, source: Checkpoint, error: BaseException) -> None:
        super().__init__(
            f"the run cannot go on from the checkpoint '{source.path}': {type(error).__name__}: {excerpt(error)} (the "
            "checkpoint is damaged, or its code is at fault: see the log of the run)"
        )


def run_from_newest(launch: Launch, run: Callable[[Launch], Report], unloadable: Sequence[Checkpoint] = ()) -> Report:
    """Return the report of a ``run`` from the newest checkpoint, ``launch.resume`` or one before it, whose state can be
    loaded: ``run`` raises Unloadable where it cannot, and calls ``loaded`` of what it is given where it can. Those that
    cannot are named, and set aside once another was loaded: where none is, the fault may be the program's. At most
    ``MAX_UNLOADABLE`` are tried."""
    source, has_loaded = launch.resume, False

    def loaded() -> None:
        nonlocal has_loaded
        has_loaded = True
        for each in unloadable:
            set_aside(each.path)
        if unloadable and source is not None and launch.went_back is not None:
            launch.went_back(source)

    try:
        return run(replace(launch, loaded=loaded))
    except Unloadable as error:
        before = None if has_loaded or source is None or launch.went_back is None else source.before()
        if source is None or before is None or len(unloadable) >= MAX_UNLOADABLE - 1:
            raise
        if len(unloadable) < TOLD:
            log.warning("%s; trying the one before", error)
    return run_from_newest(replace(launch, resume=before), run, (*unloadable, source))


@runtime_checkable
class Runtime(Protocol):
    """Base class of runtimes, which run programs. Its own options, such as how failed processes are treated, are
    arguments of the constructor."""

    def check(self, program: Program) -> None:
        """Raise WiringError or UsageError if ``program`` cannot be launched on this machine; start and write
        nothing."""

    def launch(self, program: Program, launch: Launch) -> Report:
        """Run ``program`` until ``launch.stop``, or SIGINT or SIGTERM.

        Raises WiringError for a program that cannot run, UsageError for one that does not fit into this machine,
        Deadlock if no role can step, Diverged or RoleFailed if one fails; the run's processes are then gone.
        """
