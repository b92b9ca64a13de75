"""Scores of many tasks as one number: normalised, then the interquartile mean and the median of Agarwal et al. 2021
(rliable), with stratified bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from shoal.analysis.stats import bootstrap, bootstrap_strata, iqm, median_of_means

CONFIDENCE = 0.95


def normalised(score: float, random: float, best: float) -> float:
    """Return ``score`` on the scale on which random play is 0 and the best published figure 1. Raises ValueError where
    both are the same."""
    if best == random:
        raise ValueError(f"random play and the best published figure are both {best:g}")
    return (score - random) / (best - random)


@dataclass(frozen=True)
class Aggregate:
    """Interquartile mean over all runs, and median over tasks of the mean over a task's runs, each with its interval;
    ``runs`` and ``tasks`` that they are over."""

    iqm: float
    iqm_interval: tuple[float, float]
    median: float
    median_interval: tuple[float, float]
    runs: int
    tasks: int


def aggregate(scores: Mapping[str, Sequence[float]], samples: int = 2_000) -> Aggregate | None:
    """Return the aggregate of normalised scores, by task the runs' (as many as there are); None if there are none.
    Intervals draw runs with replacement within each task; with one run of every task they are points."""
    strata = [np.asarray(runs, np.float64) for runs in scores.values() if len(runs)]
    if not strata:
        return None
    low, high = bootstrap(strata, iqm, confidence=CONFIDENCE, samples=samples)
    least, most = bootstrap_strata(strata, median_of_means, confidence=CONFIDENCE, samples=samples)
    runs = sum(map(len, strata))
    return Aggregate(
        float(iqm(np.concatenate(strata))), (float(low), float(high)),
        float(median_of_means(*strata)), (float(least), float(most)), runs, len(strata),
    )  # fmt: skip


def fresh_interval(seeds: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval in which a fresh seed's score lies with ``CONFIDENCE``, given those of other seeds: Student's
    prediction interval. None for fewer than two, which say nothing of their spread."""
    n = len(seeds)
    if n < 2:
        return None
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * float(np.std(seeds, ddof=1)) * math.sqrt(1 + 1 / n)
    middle = float(np.mean(seeds))
    return middle - half, middle + half
