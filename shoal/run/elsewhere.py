"""``shoal watch --terminal``: the panel of a run in another process, from the files of its directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from shoal.api import UsageError
from shoal.metering.aggregator import Snapshot
from shoal.paths import shown
from shoal.run.progress import Played, Progress
from shoal.runtime.launch import Stop
from shoal.untrusted import one_line
from shoal.watch.files import Event, RunFiles, number

LOOK_SECONDS = 1.0  # seconds between two readings of the files
TRAINING = {"row", "steps", "updates", "episodes", "episode_return", "episode_length"}


def show(path: Path) -> int:
    """Show the run in ``path`` until it has ended, or until a signal, and return the exit code. Raises UsageError if
    there is no run."""
    run = RunFiles(path)
    facts = run.config()
    if not facts:
        why = run.problems.get("config.json", "there is no config.json")
        raise UsageError(f"'{shown(path)}' holds no run: {why}")
    progress = panel_of(run, facts)
    try:
        told, known = -1.0, set[Event]()
        while True:
            running = run.running()
            run.refresh()
            row = run.metrics.columns.last_row.get("row", -1.0)
            if row != told:  # it may be an earlier row if the run was resumed
                seen, told = min(told, row), row
                for event in run.events():
                    if event.level != "info" and event not in known:
                        known.add(event)
                        progress.alerts.tell(event.text.partition("\n")[0], event.when.partition(" ")[2])
                progress.recall(records(run), returns(run, seen))
                progress.update(snapshot(run))
            if not running:
                break
            time.sleep(LOOK_SECONDS)
    finally:
        progress.close()
    print(f"{run.state()}: {shown(path)}")
    return 0


def panel_of(run: RunFiles, facts: dict[str, Any]) -> Progress:
    """Return the panel of a run from its config.json."""
    limits = facts.get("stop", {})
    limits = limits if isinstance(limits, dict) else {}
    steps = number(limits.get("steps"))
    stop = Stop(steps=None if steps is None else int(steps), seconds=number(limits.get("seconds")))
    where = facts.get("environment", {})
    where = where if isinstance(where, dict) else {}
    env = Played(_text(where, "id"), _text(where, "backend"), _text(where, "why"))
    return Progress(one_line(str(facts.get("system", "?"))), env, stop, path=run.path)


def snapshot(run: RunFiles) -> Snapshot:
    """Return the state of a run from the newest rows of its files, which were ``refresh``ed before."""
    training, clock = run.metrics.columns.last_row, run.performance.columns.last_row
    fill = {name.removeprefix("fill/"): share for name, share in clock.items() if name.startswith("fill/")}
    shares: dict[str, dict[str, float]] = {}
    for name, share in clock.items():
        if name.startswith("time/"):
            role, _, phase = name.removeprefix("time/").rpartition("/")
            shares.setdefault(role, {})[phase] = share
    return Snapshot(
        row=int(training["row"]), seconds=clock.get("seconds", 0.0), steps=int(training.get("steps", 0)),
        updates=int(training.get("updates", 0)), step_rate=clock.get("steps_per_second", 0.0),
        update_rate=clock.get("updates_per_second", 0.0), episode_return=training.get("episode_return", float("nan")),
        episode_length=training.get("episode_length", float("nan")), episodes=int(training.get("episodes", 0)),
        records={}, shares=shares, fill=fill,  # records of all rows are passed to the panel separately
        restarts=int(clock.get("restarts", 0)), memory=int(clock.get("memory", 0)),
    )  # fmt: skip


def records(run: RunFiles) -> dict[str, tuple[float, float]]:
    """Return the last value of each record from any row, and the seconds of training at which it was recorded."""
    columns = run.metrics.columns
    found = {name: value for name, value in columns.last.items() if name not in TRAINING}
    rows = np.array([columns.known_at[name] for name in found])
    seconds = np.nan_to_num(run.performance.columns.interpolated("seconds", "row", rows))
    return {name: (value, float(at)) for (name, value), at in zip(found.items(), seconds, strict=True)}


def returns(run: RunFiles, seen: float) -> list[float]:
    """Return the returns of the rows after row ``seen`` except the newest, which is in the snapshot."""
    rows, values = (run.metrics.columns.column(name) for name in ("row", "episode_return"))
    after = (rows > seen) & (rows < run.metrics.columns.last_row["row"]) & np.isfinite(values)
    found: list[float] = values[after].tolist()
    return found


def _text(facts: dict[str, Any], name: str) -> str:
    return one_line(str(facts.get(name, "")))
