"""Sampling probabilities, schedules and RMSProp against the oracles and the fact sheets' worked numbers."""

from __future__ import annotations

import copy

import numpy as np
import oracles
import pytest
import torch

from shoal.ops import (
    RMSProp,
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
def test_importance_oracle(beta, normalise):
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
    with pytest.raises(ValueError, match="expected eps > 0, found 0"):
        RMSProp([torch.zeros(1)], eps=0)


# --------------------------------------------------------------------------------------- RMSProp
def run(optimiser, params, grads):
    """Feed flat gradients; returns the flat parameters after each step."""
    history = []
    for grad in grads:
        at = 0
        for p in params:
            p.grad = torch.tensor(grad[at : at + p.numel()], dtype=p.dtype).view_as(p)
            at += p.numel()
        optimiser.step()
        history.append(torch.cat([p.detach().flatten() for p in params]).numpy())
    return np.array(history)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("lr", "decay", "eps"), [(2.5e-4, 0.95, 0.01), (7e-4, 0.99, 0.1), (6.25e-5, 0.95, 1.5e-7)])
def test_rmsprop_oracle(centred, momentum, lr, decay, eps):
    rng = np.random.default_rng(0)
    start, grads = rng.normal(size=11), rng.normal(size=(25, 11))
    params = [torch.tensor(start[:6]).view(2, 3).requires_grad_(), torch.tensor(start[6:]).requires_grad_()]
    optimiser = RMSProp(params, lr=lr, decay=decay, eps=eps, centred=centred, momentum=momentum)
    found = run(optimiser, params, grads)
    expected = oracles.rmsprop(start, grads, lr, decay, eps, centred, momentum)
    np.testing.assert_allclose(found - start, expected - start, rtol=1e-9, atol=1e-14)


def test_dqn_trap_eps_inside():
    """dqn-family.md 6: E[g^2] = .04, E[g] = .1, eps = .01: denominator .2, torch's .1832."""
    steps = {}
    for cls, kind in ((RMSProp, {"centred": True}), (torch.optim.RMSprop, {"centered": True})):
        p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        decay = {"decay": 0.5} if cls is RMSProp else {"alpha": 0.5}
        optimiser = cls([p], lr=1.0, eps=0.01, **decay, **kind)
        p.grad = torch.ones(1, dtype=torch.float64)
        optimiser.step()
        optimiser.state[p]["square_avg"].fill_(2 * 0.04 - 0.1**2)  # after one more gradient of .1: .04
        optimiser.state[p]["grad_avg"].fill_(0.1)  # stays .1
        before = p.item()
        p.grad = torch.full((1,), 0.1, dtype=torch.float64)
        optimiser.step()
        steps[cls] = 0.1 / (before - p.item())
    close(steps[RMSProp], 0.2, tol=1e-12)
    close(steps[torch.optim.RMSprop], 0.1832, tol=1e-4)


def test_a3c_item_3():
    """a3c-unreal.md 4.3: g = .01 and .0499, steps .00211058 and .00361599."""
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = RMSProp([p], lr=7e-4, decay=0.99, eps=0.1)
    one = run(optimiser, [p], [[1.0]])[0, 0]
    close(optimiser.state[p]["square_avg"], 0.01, tol=1e-12)
    two = run(optimiser, [p], [[2.0]])[0, 0]
    close(optimiser.state[p]["square_avg"], 0.0499, tol=1e-12)
    close([-one, one - two], 0.00211058, 0.00361599, tol=5e-9)


def test_rmsprop_constant_large_gradient_stays_finite():
    """Rounding makes the centred variance negative, by more than Ape-X's eps of 1.5e-7, for a constant gradient."""
    p = torch.zeros(64, requires_grad=True)
    optimiser = RMSProp([p], lr=1e-4, decay=0.95, eps=1.5e-7, centred=True)
    grad = torch.linspace(1.0, 300.0, 64)
    negative = False
    for _ in range(400):
        p.grad = grad.clone()
        optimiser.step()
        variance = optimiser.state[p]["square_avg"] - optimiser.state[p]["grad_avg"] ** 2
        negative |= bool((variance < -1.5e-7).any())
    assert negative and torch.isfinite(p).all()


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_resumes_from_its_state_dict(centred, momentum):
    rng = np.random.default_rng(1)
    grads = rng.normal(size=(10, 5))
    kind = {"lr": 1e-3, "centred": centred, "momentum": momentum}
    p = torch.zeros(5, requires_grad=True)
    whole = run(RMSProp([p], **kind), [p], grads)
    p = torch.zeros(5, requires_grad=True)
    first = RMSProp([p], **kind)
    run(first, [p], grads[:4])
    saved, q = copy.deepcopy(first.state_dict()), p.detach().clone().requires_grad_()
    second = RMSProp([q])
    second.load_state_dict(saved)
    assert np.array_equal(run(second, [q], grads[4:]), whole[4:])


def test_rmsprop_skips_missing_gradients_and_keeps_groups_apart():
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    optimiser = RMSProp([{"params": [a, c]}, {"params": [b], "lr": 0.5}], lr=0.1, decay=0.0, eps=1e-12)
    a.grad, b.grad = f32(3.0, -2.0), f32(3.0, -2.0)
    optimiser.step()
    close(a.detach(), 0.9, 1.1, tol=1e-5)
    close(b.detach(), 0.5, 1.5, tol=1e-5)
    assert torch.equal(c, torch.ones(2)) and c not in optimiser.state


def test_rmsprop_closure():
    p = torch.tensor([2.0], requires_grad=True)
    optimiser = RMSProp([p], lr=0.1)

    def closure():
        optimiser.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return float(loss.detach())

    losses = [optimiser.step(closure) for _ in range(30)]
    assert losses[0] == 4.0 and losses[-1] < 0.5
