"""Importance weights, priorities and schedules against the oracles and the fact sheets' worked numbers."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

from shoal import fast
from shoal.ops import epsilon_ladder, importance_weights, linear, sequence_priority


def f32(*x):
    return torch.tensor(x, dtype=torch.float32)


def check(found, expected, tol=1e-5):
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=tol, atol=tol)


def close(found, *expected, tol=1e-6):
    np.testing.assert_allclose(np.asarray(found, dtype=np.float64).ravel(), expected, atol=tol, rtol=0)


# ------------------------------------------------------------------------------------- oracles
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
def test_dqn_item_2():
    """dqn-family.md 4.2: raw and normalised weights, the beta = 1 identity. (4.1 and 4.3 are the samplers'.)"""
    p = f32(0.518658, 0.344215, 0.137127)
    close(importance_weights(p, 3, 0.4, normalise=False), 0.837914, 0.987233, 1.4266, tol=2e-6)
    close(importance_weights(p, 3, 0.4), 0.587350, 0.692018, 1.0)
    close((p * importance_weights(p, 3, 1.0, normalise=False)).sum(), 1.0)


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


def test_apex_item_4():
    """apex.md 4.4: raw weights at N = 2e6."""
    close(importance_weights(f32(1e-6, 1e-7), 2_000_000, 0.4, normalise=False), 0.757858, 1.903654, tol=2e-6)


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
