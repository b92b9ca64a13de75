"""Statistics over few runs: interquartile mean, stratified bootstrap, probability of improvement.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Scores = Sequence[np.ndarray]  # one array [runs, ...] per stratum (environment)


def iqm(values: np.ndarray | Sequence[float], axis: int | None = None) -> np.ndarray:
    """Mean of the middle half: the lowest and the highest quarter (rounded down) are left out.

    Over ``axis`` (None: all values); the same as ``scipy.stats.trim_mean(values, 0.25, axis)``.
    """
    array = np.asarray(values, np.float64)
    if axis is None:
        array, axis = array.ravel(), 0
    n = array.shape[axis]
    if n == 0:
        raise ValueError("the interquartile mean of no values")
    cut = n // 4
    middle = np.take(np.sort(array, axis), np.arange(cut, n - cut), axis)
    return np.asarray(middle.mean(axis))


def bootstrap(
    scores: Scores,
    statistic: Callable[[np.ndarray], np.ndarray] | None = None,
    *,
    confidence: float = 0.95,
    samples: int = 2_000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval (low, high) of ``statistic``: runs are drawn with replacement within each stratum.

    scores: per stratum an array [runs, ...]. statistic: maps [samples, all runs, ...] to [samples, ...] over axis 1;
    None: the interquartile mean. With one run in every stratum there is nothing to draw: the interval is a point.
    """
    rng = np.random.default_rng(seed)
    drawn = [np.asarray(s)[rng.integers(len(s), size=(samples, len(s)))] for s in scores]
    values = (statistic or (lambda x: iqm(x, 1)))(np.concatenate(drawn, 1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return low, high


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """P(a run of X scores higher than a run of Y), a tie counting half, averaged over strata (Mann-Whitney U)."""
    shares = []
    for a, b in zip(x, y, strict=True):
        above = np.asarray(a)[:, None] - np.asarray(b)[None]
        shares.append(float((above > 0).mean() + 0.5 * (above == 0).mean()))
    return float(np.mean(shares))


def improvement_interval(
    x: Scores, y: Scores, *, confidence: float = 0.95, samples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of ``probability_of_improvement``, runs of each stratum drawn with replacement."""
    rng = np.random.default_rng(seed)
    total = np.zeros(samples)
    for a, b in zip(x, y, strict=True):
        a = np.asarray(a)[rng.integers(len(a), size=(samples, len(a)))]
        b = np.asarray(b)[rng.integers(len(b), size=(samples, len(b)))]
        above = a[:, :, None] - b[:, None, :]
        total += (above > 0).mean((1, 2)) + 0.5 * (above == 0).mean((1, 2))
    tail = (1 - confidence) / 2
    low, high = np.quantile(total / len(x), [tail, 1 - tail])
    return float(low), float(high)
