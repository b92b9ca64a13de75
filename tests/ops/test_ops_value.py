"""Value targets and losses against the oracles of this folder and the fact sheets' worked numbers."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from present import present
from tolerance import rounding

from shoal.ops import (
    categorical_cross_entropy,
    categorical_kl,
    categorical_outside,
    categorical_projection,
    double_q_target,
    dueling,
    huber,
    n_step_returns,
    quantile_huber,
    scale_noise,
    select,
    signed_hyperbolic,
    signed_hyperbolic_inverse,
)


def f32(*x):
    return torch.tensor(x, dtype=torch.float32)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(found, expected, tol=1e-5):
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=tol, atol=tol)


def close(found, *expected, tol=1e-6):
    np.testing.assert_allclose(found.detach().flatten().numpy(), expected, atol=tol, rtol=0)


# ------------------------------------------------------------------------------------- oracles
@pytest.mark.parametrize(("B", "A"), [(1, 1), (3, 2), (17, 6)])
def test_q_oracles(B, A):
    r, d, q, s = normal(0, B), np.abs(normal(1, B)), normal(2, B, A), normal(3, B, A)
    tr, td, tq, ts = map(torch.from_numpy, (r, d, q, s))
    check(double_q_target(tr, td, tq, ts), oracles.double_q_target(r, d, q, s))
    v = normal(5, B, 1)
    check(dueling(torch.from_numpy(v), tq), oracles.dueling(v, q))


def test_time_major_q_functions_equal_their_flat_form():
    r, d, q, s = (
        torch.from_numpy(x) for x in (normal(0, 4, 3), normal(1, 4, 3), normal(2, 4, 3, 5), normal(3, 4, 3, 5))
    )
    flat = double_q_target(r.flatten(), d.flatten(), q.flatten(0, 1), s.flatten(0, 1))
    assert torch.equal(double_q_target(r, d, q, s).flatten(), flat)


def test_dueling_over_atoms():
    v, a = torch.from_numpy(normal(0, 2, 1, 5)), torch.from_numpy(normal(1, 2, 3, 5))
    found = dueling(v, a, dim=-2)
    for k in range(5):
        torch.testing.assert_close(found[..., k], dueling(v[..., k], a[..., k]))


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.5])
def test_huber_oracle_and_gradient(kappa):
    x = np.concatenate((normal(0, 50) * 3, np.array([0, kappa, -kappa], np.float32))).astype(np.float32)
    t = torch.from_numpy(x).requires_grad_()
    loss = huber(t, kappa)
    check(loss, oracles.huber(x.astype(float), kappa))
    loss.sum().backward()
    assert torch.allclose(present(t.grad), t.detach().clamp(-kappa, kappa))  # DQN's error clipping


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 0.5])
def test_rescaling_oracles(eps):
    x = np.concatenate((normal(0, 40) * 50, normal(1, 20) * 1e-3, [0.0])).astype(np.float64)
    t = torch.from_numpy(x)
    np.testing.assert_allclose(signed_hyperbolic(t, eps).numpy(), oracles.h(x, eps), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        signed_hyperbolic_inverse(t, eps).numpy(), oracles.h_inverse(x, eps), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize(("B", "N", "low", "high"), [(1, 2, -1, 1), (5, 3, 0, 2), (7, 11, -3, 5), (20, 51, -10, 10)])
def test_projection_oracle(B, N, low, high):
    rng = np.random.default_rng(N)
    p = rng.dirichlet(np.ones(N), B).astype(np.float32)
    r = (rng.normal(size=B) * (high - low)).astype(np.float32)
    d = (0.99 * (rng.random(B) < 0.8)).astype(np.float32)
    z = np.linspace(low, high, N).astype(np.float32)
    found = categorical_projection(*map(torch.from_numpy, (r, d, p, z)))
    check(found, oracles.categorical_projection(r.astype(float), d.astype(float), p, z.astype(float)))
    np.testing.assert_allclose(found.sum(-1, dtype=torch.float64).numpy(), 1.0, atol=rounding(N + 4, 1.0))
    for share in (0.0, 0.3):
        given = [torch.from_numpy(x) for x in (r, d, p, z)]
        outside = categorical_outside(given[0], given[1], given[2], given[3], rounding=share)
        check(outside, oracles.categorical_outside(r.astype(float), d.astype(float), p, z.astype(float), share))


@pytest.mark.parametrize(("B", "N", "M"), [(1, 1, 1), (4, 3, 5), (6, 8, 8)])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_quantile_huber_oracle(B, N, M, kappa):
    theta, targets = normal(0, B, N), normal(1, B, M) * 2
    found = quantile_huber(torch.from_numpy(theta), torch.from_numpy(targets), kappa)
    middle = np.tile((np.arange(N) + 0.5) / N, (B, 1))
    check(found, oracles.quantile_huber(theta.astype(float), targets.astype(float), kappa, middle))
    taus = np.random.default_rng(2).random((B, N)).astype(np.float32)
    found = quantile_huber(torch.from_numpy(theta), torch.from_numpy(targets), kappa, torch.from_numpy(taus))
    check(found, oracles.quantile_huber(theta.astype(float), targets.astype(float), kappa, taus))


def test_quantile_regression_finds_the_quantiles():
    """Minimising the kappa = 0 loss on samples 0, 1, ..., 99 puts tau .25 and .75 at 25 and 75 (within 1)."""
    theta = torch.full((1, 2), 50.0, requires_grad=True)
    samples = torch.arange(100.0).unsqueeze(0)
    for k in range(600):
        (grad,) = torch.autograd.grad(quantile_huber(theta, samples, 0.0).sum(), theta)
        theta.data -= (8.0 if k < 300 else 1.0) * grad
    close(theta, 25.0, 75.0, tol=1.0)


@pytest.mark.parametrize(("B", "N"), [(1, 2), (5, 3), (4, 51)])
def test_categorical_loss_oracles(B, N):
    m = np.random.default_rng(0).dirichlet(np.ones(N), B).astype(np.float32)
    m[0] = np.eye(N, dtype=np.float32)[1]  # zero probabilities must not give nan
    logits = normal(1, B, N)
    tm, tl = torch.from_numpy(m), torch.from_numpy(logits)
    expected = oracles.cross_entropy(m.astype(float), logits.astype(float))
    check(categorical_cross_entropy(tm, tl), expected)
    check(categorical_kl(tm, tl), expected - oracles.entropy(m.astype(float)))
    assert categorical_kl(torch.softmax(tl, -1), tl).abs().max() < 1e-5


# -------------------------------------------------------------------------------- worked numbers
def delta_at(index, count=51):
    return torch.eye(count)[index : index + 1]


@pytest.mark.parametrize(
    ("start", "r", "gamma", "mass"),
    [
        (25, 1.0, 0.99, {27: 0.5, 28: 0.5}),
        (30, 0.3, 0.9, {30: 0.75, 31: 0.25}),
        (7, 0.0, 0.0, {25: 1.0}),
        (7, 50.0, 0.0, {50: 1.0}),
    ],
)
def test_dqn_item_4_c51(start, r, gamma, mass):
    """dqn-family.md 4.4: +-10, 51 atoms: shifts, the l=u trap at a terminal, and saturation."""
    found = categorical_projection(f32(r), f32(gamma), delta_at(start), torch.linspace(-10, 10, 51))
    expected = np.zeros(51)
    for k, v in mass.items():
        expected[k] = v
    close(found, *expected, tol=2e-6)


def test_dqn_item_4_three_atoms():
    """dqn-family.md 4.4: atoms -1, 0, 1, r = gamma = .5 -> [0, .5, .5], mean .5 kept."""
    found = categorical_projection(f32(0.5), f32(0.5), f32([0.25, 0.5, 0.25]), f32(-1, 0, 1))
    close(found, 0, 0.5, 0.5)


def test_d4pg_item_1():
    """d4pg.md 4.1: support +-150: m25 = .52475, m26 = .47525, mean 2.851498."""
    z = torch.linspace(-150, 150, 51)
    found = categorical_projection(f32(2.8514976), f32(0.99**5), delta_at(25), z)
    close(found[0, 25:27], 0.52475, 0.47525, tol=5e-6)
    close(found @ z, 2.851498, tol=1e-5)


def test_d4pg_item_2():
    """d4pg.md 4.2: saturation at the upper end: m = [.1, .4, .5], mean 1.4."""
    found = categorical_projection(f32(0.5), f32(0.9), f32([0.2, 0.5, 0.3]), f32(0, 1, 2))
    close(found, 0.1, 0.4, 0.5)
    close(found @ f32(0, 1, 2), 1.4)


def test_d4pg_item_3():
    """d4pg.md 4.3: cross-entropy, KL and gradient p - m against logits [.1, .2, -.3]."""
    m, logits = f32([0.1, 0.4, 0.5]), f32([0.1, 0.2, -0.3]).requires_grad_()
    loss = categorical_cross_entropy(m, logits)
    close(loss, 1.180828)
    close(categorical_kl(m, logits), 0.237479)
    loss.sum().backward()
    close(logits.grad, 0.260297, -0.001811, -0.258486)


@pytest.mark.parametrize("n", [2, 3, 51, 101])
def test_d4pg_items_7_and_8(n):
    """d4pg.md 4.7 and 4.8: a terminal forgets the target net; an identity Bellman step keeps p."""
    z = torch.linspace(-7, 3, n)
    p = torch.softmax(torch.from_numpy(normal(0, 4, n)), -1)
    zero, one = torch.zeros(4), torch.ones(4)
    places = rounding(4 * n, 1.0)  # an atom's place among n, from four operations
    torch.testing.assert_close(categorical_projection(zero, one, p, z), p, atol=places, rtol=0)
    terminal = categorical_projection(one, zero, p, z)
    torch.testing.assert_close(terminal @ z, one, atol=places, rtol=0)
    other = categorical_projection(one, zero, p.flip(0), z)  # the same but for the order of the sum over n atoms
    torch.testing.assert_close(terminal, other, atol=2 * rounding(n, 1.0), rtol=0)
    assert ((terminal > 1e-5).sum(-1) <= 2).all()


def test_dqn_item_5():
    """dqn-family.md 4.5: Double 2.7, DQN 4.5."""
    online, target = f32([1, 2]), f32([5, 3])
    close(double_q_target(f32(0), f32(0.9), target, online), 2.7)
    close(double_q_target(f32(0), f32(0.9), target, target), 4.5)  # what selects is what evaluates


def test_dqn_item_6():
    """dqn-family.md 4.6: dueling [2, 4, 0]; a constant added to A changes nothing."""
    close(dueling(f32([2]), f32([1, 3, -1])), 2, 4, 0)
    close(dueling(f32([2]), f32([1, 3, -1]) + 7), 2, 4, 0)


def test_dqn_item_8():
    """dqn-family.md 4.8: f(-4) = -2, f(2.25) = 1.5. (Their product -3 is the noisy layer's.)"""
    close(scale_noise(f32(-4, 2.25)), -2, 1.5)


def test_dqn_trap_weight_after_clip():
    """dqn-family.md 6: clip delta, then multiply by w; huber(w delta) is different."""
    close(4.0 * huber(f32(0.5)), 0.5)
    close(huber(4.0 * f32(0.5)), 1.5)


def test_r2d2_item_1():
    """r2d2-r2d3.md 4.1: values of h, round trip in float64 to 1e-9, and h^-1(2)."""
    x = torch.tensor([1, 10, 100, -3, 0], dtype=torch.float64)
    close(signed_hyperbolic(x), 0.415213562, 2.326624790, 9.149875621, -1.003, 0, tol=5e-10)
    wide = torch.cat(
        (torch.logspace(-9, 5, 200, dtype=torch.float64), -torch.logspace(-9, 5, 200, dtype=torch.float64))
    )
    back = signed_hyperbolic_inverse(signed_hyperbolic(wide))
    torch.testing.assert_close(back, wide, rtol=1e-12, atol=1e-15)
    close(signed_hyperbolic_inverse(f32(2)), 7.952349, tol=2e-6)


def test_rescaling_round_trip_in_float32():
    """The sheet's printed form errs by 1.5e-3 at 1000 in float32; ours stays within 1e-6 relative."""
    x = torch.cat((torch.logspace(-4, 5, 300), -torch.logspace(-4, 5, 300)))
    torch.testing.assert_close(signed_hyperbolic_inverse(signed_hyperbolic(x)), x, rtol=2e-6, atol=0)


def test_rescaling_gradients():
    x = torch.tensor([-30.0, -0.5, 0.0, 0.5, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(signed_hyperbolic, x) and torch.autograd.gradcheck(signed_hyperbolic_inverse, x)


def test_r2d2_item_2():
    """r2d2-r2d3.md 4.2: rescaled 5-step target 3.334158, delta .834158."""
    bootstrap = signed_hyperbolic_inverse(f32(3))
    close(bootstrap, 14.881172073, tol=1e-5)
    r, d = f32(0, 1, 0, 0, 2).unsqueeze(1), torch.full((5, 1), 0.997)
    cut = torch.zeros(5, 1, dtype=torch.bool)
    close(n_step_returns(r, d, torch.zeros(5, 1), cut, 5)[0], 2.973107784)
    target = signed_hyperbolic(n_step_returns(r, d, bootstrap.expand(5).unsqueeze(1), cut, 5)[0])
    close(target, 3.334158, tol=2e-6)
    close(target - select(f32([2.5, 9]), torch.tensor([0])), 0.834158, tol=2e-6)


# -------------------------------------------------------------------------------------- contracts
def test_gradients_stop_where_they_should():
    q, other = f32([1, 2]).requires_grad_(), f32([3, 1]).requires_grad_()
    r, d = f32(1.0), f32(0.9)
    assert not double_q_target(r, d, q, other).requires_grad
    quantile_huber(other, q, 1.0).sum().backward()
    assert q.grad is None
    assert other.grad.abs().sum() > 0


def test_select_takes_any_integer_type():
    q = torch.from_numpy(normal(0, 4, 3, 6))
    a = torch.randint(0, 6, (4, 3), generator=torch.Generator().manual_seed(0))
    expected = torch.stack([q[t, b, a[t, b]] for t in range(4) for b in range(3)]).view(4, 3)
    assert torch.equal(select(q, a), expected) and torch.equal(select(q, a.int()), expected)


def test_errors_state_expected_and_found():
    q, r = torch.zeros(3, 2), torch.zeros(3)
    with pytest.raises(ValueError, match=r"expected next_q without its last axis of shape \(4,\), found \(3,\)"):
        double_q_target(torch.zeros(4), torch.zeros(4), q, q)
    with pytest.raises(ValueError, match=r"expected selector_q of shape \(3, 2\).*found \(3, 5\)"):
        double_q_target(r, r, q, torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"expected value of shape \(3, 1\), found \(3,\)"):
        dueling(r, q)
    with pytest.raises(ValueError, match=r"expected actions of shape \(3,\), found \(3, 1\)"):
        select(q, torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"expected probs of shape \(3, 5\), found \(3, 2\)"):
        categorical_projection(r, r, q, torch.linspace(0, 1, 5))
    with pytest.raises(ValueError, match=r"expected atoms of shape \(N >= 2,\), found \(1,\)"):
        categorical_projection(r, r, q[:, :1], torch.zeros(1))
    with pytest.raises(ValueError, match=r"expected taus of shape \(2,\) or \(3, 2\), found \(3,\)"):
        quantile_huber(q, q, 1.0, r)
    with pytest.raises(ValueError, match=r"expected kappa > 0"):
        huber(r, 0.0)


@pytest.mark.parametrize("kappa", [0.0, 0.7])
def test_quantile_huber_is_exact_in_double_precision(kappa):
    rng = np.random.default_rng(0)
    quantiles, targets = rng.normal(size=(4, 3)), rng.normal(size=(4, 5))
    found = quantile_huber(torch.from_numpy(quantiles), torch.from_numpy(targets), kappa)
    middles = np.tile((np.arange(3) + 0.5) / 3, (4, 1))
    np.testing.assert_allclose(found, oracles.quantile_huber(quantiles, targets, kappa, middles), rtol=1e-13)
