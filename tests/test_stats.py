"""Statistics against plain loops, worked numbers, and what they promise on drawn data."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.analysis.stats import bootstrap, improvement_interval, iqm, probability_of_improvement


def middle_half(values: np.ndarray) -> float:
    kept = sorted(values.tolist())[len(values) // 4 : len(values) - len(values) // 4]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 100])
def test_the_interquartile_mean_is_that_of_a_sorted_list(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(n, 3))
    assert np.allclose(iqm(x, 0), [middle_half(column) for column in x.T])
    assert np.isclose(iqm(x), middle_half(x.ravel()))


def test_worked_numbers() -> None:
    assert iqm([1, 2, 3, 100]) == 2.5
    assert iqm([5.0]) == 5.0
    # 3 > 1, 3 > 2, 2 > 1, 2 = 2: three and a half of four
    assert probability_of_improvement([np.array([3, 2])], [np.array([1, 2])]) == 0.875
    two = [np.array([3, 2]), np.array([0.0])], [np.array([1, 2]), np.array([1.0])]
    assert probability_of_improvement(*two) == pytest.approx(0.4375)
    with pytest.raises(ValueError, match="no values"):
        iqm([])


def test_probability_of_improvement_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 8, 20), rng.integers(2, 9, 15)
    pairs = [(a > b) + 0.5 * (a == b) for a in x.tolist() for b in y.tolist()]
    assert probability_of_improvement([x], [y]) == pytest.approx(sum(pairs) / (20 * 15))


def test_the_interval_of_a_mean_is_that_of_a_loop() -> None:
    x = np.random.default_rng(1).exponential(size=40)
    low, high = bootstrap([x], np.mean, samples=20_000)
    rng = np.random.default_rng(2)
    means = sorted(float(rng.choice(x, 40).mean()) for _ in range(20_000))
    assert low == pytest.approx(means[500], abs=0.015) and high == pytest.approx(means[-500], abs=0.015)


@pytest.mark.parametrize("value", [0.0, 500.0])
def test_runs_that_all_end_alike_are_neither_better_nor_worse(value: float) -> None:
    same = [np.full(3, value)]
    assert probability_of_improvement(same, same) == 0.5 and improvement_interval(same, same) == (0.5, 0.5)
    assert improvement_interval([np.array([value])], same) == (0.5, 0.5)
    assert bootstrap(same) == (value, value)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for i in range(200):
        low, high = bootstrap([rng.normal(size=30)], samples=300, seed=i)
        held += bool(low <= 0 <= high)
    assert 0.86 <= held / 200 <= 0.99


def test_strata_are_drawn_within() -> None:
    """Two environments of very different scores: drawn over both, the interval would span them."""
    low, high = bootstrap([np.array([0.0, 0.1]), np.array([100.0, 100.1])], np.mean)
    assert 49.9 < low <= high < 50.2
    low, high = bootstrap([np.array([1.0]), np.array([3.0])])
    assert low == high == 2.0


def test_the_interval_of_the_probability_holds_it() -> None:
    rng = np.random.default_rng(5)
    x, y = [rng.normal(1, 1, 10)], [rng.normal(0, 1, 10)]
    low, high = improvement_interval(x, y)
    assert 0 <= low < probability_of_improvement(x, y) < high <= 1
    assert improvement_interval([x[0]], [x[0] - 100]) == (1.0, 1.0)


def test_curves_keep_their_other_axes() -> None:
    x = np.random.default_rng(0).normal(size=(5, 11))
    low, high = bootstrap([x], samples=100)
    assert low.shape == high.shape == (11,) and (low <= iqm(x, 0)).all() and (iqm(x, 0) <= high).all()
