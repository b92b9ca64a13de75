"""Targets on sequences against their oracle and the worked numbers of R2D2."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

from shoal.ops import n_step_returns, rescaled_n_step_targets, select, sequence_priority


def case(seed: int, T: int, B: int, A: int):
    rng = np.random.default_rng(seed)
    r = rng.normal(size=(T, B)).astype(np.float32) * 3
    terminated = rng.random((T, B)) < 0.15
    d = (0.97 * ~terminated).astype(np.float32)
    cut = terminated | (rng.random((T, B)) < 0.1)
    q, s = (rng.normal(size=(T, B, A)).astype(np.float32) * 5 for _ in range(2))
    return r, d, q, s, cut


@pytest.mark.parametrize("eps", [None, 1e-3, 0.1])
@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.parametrize(("T", "B", "A"), [(1, 1, 1), (8, 3, 4), (13, 2, 2)])
def test_oracle(T, B, A, n, eps):
    arrays = case(n, T, B, A)
    r, d, q, s, cut = arrays
    t = [torch.from_numpy(x) for x in arrays]
    found = rescaled_n_step_targets(t[0], t[1], t[2], t[3], t[4], n, eps)
    expected = oracles.rescaled_n_step_targets(*[*(x.astype(float) for x in (r, d, q, s)), cut, n, eps or None])
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-5)


def test_without_rescaling_they_are_n_step_returns():
    r, d, q, s, cut = map(torch.from_numpy, case(0, 9, 4, 3))
    values = select(q, s.argmax(-1))
    assert torch.equal(rescaled_n_step_targets(r, d, q, s, cut, 4, None), n_step_returns(r, d, values, cut, 4))


def test_r2d2_item_2_worked_target():
    """r2d2-r2d3.md 4.2: r = [0, 1, 0, 0, 2], gamma .997, Q- = 3: target 3.334158, with q = 2.5 an error of .834158."""
    r = torch.tensor([0.0, 1, 0, 0, 2]).unsqueeze(1)
    q = torch.full((5, 1, 2), 3.0)
    cut = torch.zeros(5, 1, dtype=torch.bool)
    target = rescaled_n_step_targets(r, torch.full((5, 1), 0.997), q, q, cut, 5)
    assert float(target[0]) == pytest.approx(3.334158, abs=2e-6)
    assert float(target[0]) - 2.5 == pytest.approx(0.834158, abs=2e-6)


def test_r2d2_item_3_priority():
    """r2d2-r2d3.md 4.3."""
    p = sequence_priority(torch.tensor([0.1, 0.2, 2.0, 0.1]).unsqueeze(1), 0.9)
    assert float(p) == pytest.approx(1.86) and float(p**0.9) == pytest.approx(1.748081, rel=1e-5)


def test_double_selects_by_the_online_network():
    """dqn-family.md 4.5: online [1, 2], target [5, 3], r = 0, gamma .9: double 2.7, plain 4.5."""
    r, d, cut = torch.zeros(1, 1), torch.full((1, 1), 0.9), torch.zeros(1, 1, dtype=torch.bool)
    target, online = torch.tensor([[[5.0, 3.0]]]), torch.tensor([[[1.0, 2.0]]])
    assert float(rescaled_n_step_targets(r, d, target, online, cut, 1, None)) == pytest.approx(2.7)
    assert float(rescaled_n_step_targets(r, d, target, target, cut, 1, None)) == pytest.approx(4.5)


def test_shapes_are_checked():
    r, d, q, s, cut = map(torch.from_numpy, case(0, 4, 2, 3))
    with pytest.raises(ValueError, match="rescaled_n_step_targets"):
        rescaled_n_step_targets(r, d, q[:3], s[:3], cut, 2)
