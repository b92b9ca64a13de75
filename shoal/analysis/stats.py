"""Statistics over few runs: interquartile mean, stratified bootstrap, probability of improvement.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"; computed by SciPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Sequence[ArrayLike]  # one array [runs, ...] per stratum (environment)


def iqm(values: ArrayLike, axis: int | None = None) -> Array:
    """Mean of the middle half: the lowest and the highest quarter (rounded down) are left out.

    Over ``axis`` (None: all values). Raises ValueError if there are no values.
    """
    array = np.asarray(values, np.float64)
    if array.size == 0:
        raise ValueError("the interquartile mean of no values")
    return np.asarray(stats.trim_mean(array, 0.25, axis))


def bootstrap(
    scores: Scores,
    statistic: Callable[..., Array] = iqm,
    *,
    confidence: float = 0.95,
    samples: int = 2_000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Percentile interval (low, high) of ``statistic`` over all runs, drawn with replacement within each stratum.

    scores: per stratum an array [runs, ...]; low and high are [...]. statistic: takes an array and ``axis``, as
    ``numpy.median`` does. With one run in every stratum there is nothing to draw: the interval is a point.
    """

    def of_all(*strata: Array, axis: int) -> Array:
        return statistic(np.concatenate(strata, axis), axis=axis)

    return bootstrap_strata(scores, of_all, confidence=confidence, samples=samples, seed=seed)


def median_of_means(*strata: ArrayLike, axis: int = 0) -> Array:
    """Median over strata of each stratum's mean over ``axis``: the median over tasks of Agarwal et al. 2021."""
    return np.asarray(np.median([np.mean(np.asarray(s, np.float64), axis) for s in strata], 0))


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """P(a run of X scores higher than a run of Y), a tie counting half, averaged over strata: Mann-Whitney's U over
    the number of pairs. x, y: per stratum an array [runs]."""
    return float(_improvement(*(np.asarray(s, np.float64) for s in (*x, *y)), axis=-1))


def improvement_interval(
    x: Scores, y: Scores, *, confidence: float = 0.95, samples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of ``probability_of_improvement``, runs of each stratum drawn with replacement."""
    low, high = bootstrap_strata([*x, *y], _improvement, confidence=confidence, samples=samples, seed=seed)
    return float(low), float(high)


def _improvement(*strata: Array, axis: int) -> Array:
    """Of the strata of X, and after them as many of Y."""
    half = len(strata) // 2
    shares = [
        stats.mannwhitneyu(x, y, axis=axis, method="asymptotic").statistic / (x.shape[axis] * y.shape[axis])
        for x, y in zip(strata[:half], strata[half:], strict=True)
    ]
    return np.asarray(np.mean(shares, 0))


def bootstrap_strata(
    scores: Scores,
    statistic: Callable[..., Array],
    *,
    confidence: float = 0.95,
    samples: int = 2_000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """``bootstrap`` of a statistic that tells the strata apart: it takes an array for each, and ``axis``, that of the
    runs."""
    strata = [np.asarray(s, np.float64) for s in scores]
    several = [s for s in strata if len(s) > 1]  # SciPy draws from no others
    if not several:
        return (point := statistic(*strata, axis=0)), point

    def of_drawn(*drawn: Array, axis: int) -> Array:
        """Of arrays [..., samples, runs]; the one run of a stratum is drawn in every sample."""
        left = iter(drawn)
        every = (next(left) if len(s) > 1 else np.repeat(s.T[..., None, :], drawn[0].shape[-2], -2) for s in strata)
        return statistic(*every, axis=axis)

    rng = np.random.default_rng(seed)
    interval = stats.bootstrap(
        several, of_drawn, axis=0, vectorized=True, confidence_level=confidence, n_resamples=samples,
        method="percentile", rng=rng,
    ).confidence_interval  # fmt: skip
    return np.asarray(interval.low), np.asarray(interval.high)
