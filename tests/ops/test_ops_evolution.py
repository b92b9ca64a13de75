"""Evolution strategies' weights and noise against the oracles and the fact sheet's worked numbers."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

from shoal.fast.noise import PIECE
from shoal.ops import Adam, ars_weights, centred_ranks, es_weights, weighted_noise

RETURNS = torch.tensor([[10.0, 2.0], [5.0, 7.0], [1.0, 0.0]])


def close(found, *expected, tol=1e-6):
    np.testing.assert_allclose(np.asarray(found, dtype=np.float64).ravel(), expected, atol=tol, rtol=0)


# ------------------------------------------------------------------------------------- oracles
@pytest.mark.parametrize("shape", [(2,), (7,), (5, 2), (40, 2)])
@pytest.mark.parametrize("values", [3, 1000])
def test_rank_oracle(shape, values):
    """Few values: many ties."""
    returns = np.random.default_rng(len(shape)).integers(0, values, shape).astype(np.float32)
    found = centred_ranks(torch.from_numpy(returns))
    assert found.dtype == torch.float32 and found.shape == shape
    close(found, *oracles.centred_ranks(returns.ravel().tolist()))


@pytest.mark.parametrize("top", [1, 3, 12])
def test_weight_oracles(top):
    returns = np.random.default_rng(top).normal(size=(12, 2)).astype(np.float32)
    close(es_weights(torch.from_numpy(returns)), *oracles.es_weights(returns.astype(float)))
    close(ars_weights(torch.from_numpy(returns), top), *oracles.ars_weights(returns.astype(float), top))


@pytest.mark.parametrize("size", [8, PIECE + 7])  # of the latter the sum is made in two pieces
def test_noise_oracle(size):
    rng, last = np.random.default_rng(0), 42
    table, weights = rng.normal(size=last + size).astype(np.float32), rng.normal(size=6).astype(np.float32)
    indices = rng.integers(0, last + 1, 6)
    indices[0], indices[1] = 0, last  # both ends
    found = weighted_noise(torch.from_numpy(table), torch.from_numpy(indices), torch.from_numpy(weights), size)
    close(found, *oracles.weighted_noise(table.astype(float), indices, weights.astype(float), size), tol=1e-5)


# ------------------------------------------------------------------------------- worked numbers
def test_centred_ranks_over_both_halves():
    close(centred_ranks(RETURNS), 0.5, -0.1, 0.1, 0.3, -0.3, -0.5)
    assert float(centred_ranks(RETURNS).sum()) == pytest.approx(0.0, abs=1e-6)
    close(6 * es_weights(RETURNS), 0.6, -0.2, 0.2)


def test_gradient_and_first_step():
    table = torch.tensor([1.0, 0.0, 1.0, -1.0])  # slices [1, 0], [0, 1], [1, -1]
    g = weighted_noise(table, torch.tensor([0, 1, 2]), es_weights(RETURNS), 2)
    close(g, 0.133333, -0.066667, tol=1e-6)
    theta = torch.tensor([0.5, -0.2])
    direction = -g + 0.005 * theta
    close(direction, -0.130833, 0.065667, tol=1e-6)
    Adam([theta], lr=0.01).descend([direction], 0.01)
    close(theta, 0.51, -0.21, tol=1e-5)


def test_only_the_order_of_returns_counts():
    for transformed in (RETURNS + 100.0, RETURNS.exp(), RETURNS**3):
        assert torch.equal(es_weights(transformed), es_weights(RETURNS))


def test_returns_that_are_all_equal_move_nothing():
    assert not es_weights(torch.full((4, 2), 7.0)).any()
    assert not ars_weights(torch.full((4, 2), 7.0), 2).any()


def test_ars_keeps_the_best_directions():
    found = ars_weights(torch.tensor([[3.0, 1.0], [2.0, 4.0], [0.0, -1.0]]), 2)
    close(found, 1.788854 / 2, -1.788854 / 2, 0.0, tol=1e-6)  # the sheet's coefficients are before the 1 / b


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"\[n, 2\], found \(3,\)"):
        es_weights(torch.zeros(3))
    with pytest.raises(ValueError, match="top in"):
        ars_weights(RETURNS, 4)
    with pytest.raises(ValueError, match=r"indices in \[0, 2\], found 3"):
        weighted_noise(torch.zeros(4), torch.tensor([3]), torch.ones(1), 2)
    with pytest.raises(ValueError, match="at least 2 returns"):
        centred_ranks(torch.zeros(1))
