"""Sampling probabilities and schedules against the oracles and the fact sheets' worked numbers."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

from shoal import fast
from shoal.ops import (
    epsilon_ladder,
    importance_weights,
    linear,
    proportional,
    rank_based,
    sequence_priority,
)


def f32(*x):
    return torch.tensor(x, dtype=torch.float32)


def check(found, expected, tol=1e-5):
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=tol, atol=tol)


def close(found, *expected, tol=1e-6):
    np.testing.assert_allclose(np.asarray(found, dtype=np.float64).ravel(), expected, atol=tol, rtol=0)


# ------------------------------------------------------------------------------------- oracles
@pytest.mark.parametrize("n", [1, 2, 9, 40])
@pytest.mark.parametrize("alpha", [0.6, 1.0, -0.4, 0.0])
def test_probability_oracles(n, alpha):
    p = np.random.default_rng(n).random(n).astype(np.float32) + 0.01
    check(proportional(torch.from_numpy(p), alpha), oracles.proportional(p.astype(float), alpha))
    check(rank_based(torch.from_numpy(p), alpha), oracles.rank_based(p.astype(float), alpha))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("compiled", [True, False])
def test_importance_oracle(beta, normalise, compiled, monkeypatch):
    monkeypatch.setattr(fast, "ENABLED", compiled)
    p = np.random.default_rng(0).dirichlet(np.ones(32)).astype(np.float32)
    found = importance_weights(torch.from_numpy(p), 1000, beta, normalise)
    check(found, oracles.importance_weights(p.astype(float), 1000, beta, normalise))


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (80, 5)])
def test_sequence_priority_oracle(shape):
    rng = np.random.default_rng(shape)
    td, mask = rng.normal(size=shape).astype(np.float32), rng.random(shape) < 0.6
    mask[:, 0] = False  # a sequence without any real step
    t, m = torch.from_numpy(td), torch.from_numpy(mask)
    check(sequence_priority(t, 0.9, m), oracles.sequence_priority(td, 0.9, mask))
    check(sequence_priority(t, 0.3), oracles.sequence_priority(td, 0.3, np.ones(shape, dtype=bool)))
    poisoned = torch.where(m, t, torch.full_like(t, float("nan")))
    assert torch.equal(sequence_priority(poisoned, 0.9, m), sequence_priority(t, 0.9, m))


# -------------------------------------------------------------------------------- worked numbers
def test_dqn_item_1_and_2():
    """dqn-family.md 4.1 and 4.2: proportional probabilities, raw and normalised weights, the beta = 1 identity."""
    p = proportional(f32(1, 0.5, 0.1) + 0.01, 0.6)
    close(p, 0.518658, 0.344215, 0.137127)
    close(p * sum([1.005988, 0.667640, 0.265972]), 1.005988, 0.667640, 0.265972, tol=2e-6)
    close(importance_weights(p, 3, 0.4, normalise=False), 0.837914, 0.987233, 1.4266, tol=2e-6)
    close(importance_weights(p, 3, 0.4), 0.587350, 0.692018, 1.0)
    close((p * importance_weights(p, 3, 1.0, normalise=False)).sum(), 1.0)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_dqn_item_3(scale):
    """dqn-family.md 4.3: rank-based probabilities depend on the order only, and stay in input order."""
    found = rank_based(f32(0.1, 3, 0.2, 0.5 * scale + 2.6), 0.7)
    close(found, 0.154164, 0.250440, 0.188556, 0.406841)


def test_apex_item_1():
    """apex.md 4.1: the epsilon ladder for 8 and 360 actors."""
    eight = [epsilon_ladder(i, 8) for i in range(8)]
    close(eight, 0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.001638, 0.000655)
    many = [epsilon_ladder(i, 360) for i in range(360)]
    close([many[0], many[1], many[359]], 0.4, 0.392917, 0.000655)
    close(np.median(many), 0.01619, tol=1e-5)


def test_apex_trap_one_actor():
    """apex.md 6: N = 1 must not divide by zero; an index from 1 is an error."""
    assert epsilon_ladder(0, 1) == 0.4 and epsilon_ladder(0, 1, base=0.1) == 0.1
    with pytest.raises(ValueError, match="found index 8 and n 8"):
        epsilon_ladder(8, 8)


def test_apex_items_4_and_5():
    """apex.md 4.4 and 4.5: raw weights at N = 2e6; eviction with alpha -.4."""
    close(importance_weights(f32(1e-6, 1e-7), 2_000_000, 0.4, normalise=False), 0.757858, 1.903654, tol=2e-6)
    close(proportional(f32(1, 0.1, 0.01), -0.4), 0.101818, 0.255755, 0.642427)


def test_d4pg_item_6():
    """d4pg.md 4.6: weights (R P)^-1, R = 1e6."""
    close(importance_weights(f32(1e-6, 4e-6), 1_000_000, 1.0, normalise=False), 1.0, 0.25)


def test_r2d2_item_3():
    """r2d2-r2d3.md 4.3: eta mixture 1.86, p^.9 = 1.748081."""
    p = sequence_priority(f32(-0.1, 0.2, -2, 0.1).unsqueeze(1))
    close(p, 1.86)
    close(p**0.9, 1.748081)


def test_linear():
    assert [linear(1.0, 0.1, f) for f in (-1.0, 0.0, 1.0, 2.0)] == [1.0, 1.0, 0.1, 0.1]
    close(linear(0.4, 1.0, 0.25), 0.55, tol=1e-12)


def test_errors_state_expected_and_found():
    with pytest.raises(ValueError, match="expected size >= 1, found 0"):
        importance_weights(f32(0.5), 0, 0.4)
    with pytest.raises(ValueError, match=r"expected beta in \[0.0, inf\], found -1"):
        importance_weights(f32(0.5), 2, -1)
    with pytest.raises(ValueError, match=r"expected priorities of shape \(4,\), found \(2, 2\)"):
        rank_based(torch.ones(2, 2), 0.7)
