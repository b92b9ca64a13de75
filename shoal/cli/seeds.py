"""``shoal train --seeds 0 1 2``: one run after the other, and what they come to together."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from shoal.api import UsageError
from shoal.paths import require_new
from shoal.records.run_dir import NO_OVERWRITE
from shoal.run import Run, RunOptions
from shoal.settings.flags import expect, listed
from shoal.settings.ranges import Seed
from shoal.types import Values
from shoal.words import counted

MOST_SEEDS = 20  # a single seed of at most this many may have been meant as how many there are


def read(opts: Values) -> list[int] | None:
    """Return the seeds that the command was given, each once; None if it was given one, or none."""
    if "seeds" not in opts:
        return None
    if "seed" in opts:
        raise UsageError("--seed and --seeds exclude each other")
    words = [word for words in listed(opts["seeds"]) for word in words.replace(",", " ").split()]
    seeds: list[int] = [expect(Seed, word, "--seeds") for word in words]
    if len(set(seeds)) < len(seeds) or not seeds:
        raise UsageError(f"--seeds expects different integers, found {' '.join(words) or 'nothing'}")
    return seeds


def train(options: RunOptions, seeds: list[int], start: Callable[[RunOptions], Run], done: Callable[[Run], int]) -> int:
    """Train once with each seed, in ``DIR/seed-N`` if a directory was given, tell of each by ``done``, and compare
    them. Returns the exit code; a run that a signal ends is the last."""
    from shoal.cli.runs import compare

    where = None if options.run_dir is None else Path(options.run_dir)
    paths = [None if where is None else where / f"seed-{seed}" for seed in seeds]
    for path in paths:
        if path is not None:
            require_new(path, NO_OVERWRITE)
    if len(seeds) == 1 and 1 < seeds[0] <= MOST_SEEDS:
        several = " ".join(map(str, range(seeds[0])))
        print(
            f"shoal: --seeds {seeds[0]} is one run; {counted(seeds[0], 'run')} would be --seeds {several}",
            file=sys.stderr,
        )
    runs = []
    for seed, path in zip(seeds, paths, strict=True):
        runs.append(start(dataclasses.replace(options, seed=seed, run_dir=path)))
        if code := done(runs[-1]):
            return code
    if len(runs) > 1 and any(run.report is not None and run.report.episodes for run in runs):
        return compare([str(run.path) for run in runs])
    return 0
