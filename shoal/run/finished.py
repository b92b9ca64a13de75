"""Check whether a run has already reached its step, time or return limit."""

from __future__ import annotations

from pathlib import Path

from shoal.api import UsageError
from shoal.paths import shown
from shoal.records.checkpoint import Checkpoint
from shoal.records.run_dir import read_report
from shoal.runtime.launch import Stop


def check_unfinished(path: Path, checkpoint: Checkpoint, stop: Stop, wanted: float | None) -> None:
    """Raise UsageError if the run in ``path`` has reached a limit of ``stop``. wanted: the return that ended it so
    far."""
    reached: dict[str, float | None] = {"steps": checkpoint.steps, "seconds": checkpoint.manifest["seconds"]}
    report = read_report(path)
    if report is not None and report.reason == "episode_return" and report.steps == checkpoint.steps:
        # episodes that ended while it stopped may have lowered the mean below the limit again
        reached["episode_return"] = wanted
    for name, now in reached.items():
        limit = getattr(stop, name)
        if limit is not None and now is not None and now >= limit:
            told, flag, more = f"{limit:,} {name}", name, 2 * limit
            if name == "episode_return":
                told, flag, more = f"return of {limit:g}", "until-return", limit + abs(limit) / 10
            raise UsageError(
                f"the run in '{shown(path)}' is finished: it has reached its {told}; "
                f"give it more with --{flag}, for example --{flag} {more:g}"
            )
