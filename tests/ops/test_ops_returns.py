"""Returns against the oracles of this folder, the fact sheets' worked numbers, and the identities between them."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from devices import DEVICE
from tolerance import assert_rounded

from shoal.ops import gae, lambda_returns, n_step_returns, vtrace

SHAPES = [(1, 1), (1, 4), (2, 3), (5, 2), (8, 1), (13, 3), (20, 4), (33, 2)]


def case(T, B, seed=0, gamma=0.97, dtype=np.float32):
    """Random steps with terminations, truncations and invalid rows mixed."""
    rng = np.random.default_rng((seed, T, B))
    terminated = rng.random((T, B)) < 0.15
    truncated = ~terminated & (rng.random((T, B)) < 0.15)
    invalid = rng.random((T, B)) < 0.1
    arrays = {
        "rewards": rng.normal(size=(T, B)),
        "discounts": gamma * (1.0 - terminated),
        "values": rng.normal(size=(T, B)),
        "next_values": rng.normal(size=(T, B)),
    }
    return {k: v.astype(dtype) for k, v in arrays.items()}, terminated | truncated | invalid, rng


def tensors(arrays, cut):
    return {k: torch.from_numpy(v) for k, v in arrays.items()}, torch.from_numpy(cut)


def column(*x):
    return torch.tensor(x, dtype=torch.float32).unsqueeze(1)


def no_cut(T, *at):
    cut = torch.zeros(T, 1, dtype=torch.bool)
    for t in at:
        cut[t] = True
    return cut


def check(found, expected, tol=2e-5):
    assert found.dtype == torch.float32 and not found.requires_grad
    np.testing.assert_allclose(found.numpy(), expected, rtol=tol, atol=tol)


def close(found, *expected, tol=1e-4):
    np.testing.assert_allclose(found.flatten().numpy(), expected, atol=tol, rtol=0)


# ------------------------------------------------------------------------------------- oracles
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 100])
def test_n_step_oracle(shape, n):
    a, cut, _ = case(*shape)
    t, c = tensors(a, cut)
    found = n_step_returns(t["rewards"], t["discounts"], t["next_values"], c, n)
    check(found, oracles.n_step_returns(a["rewards"], a["discounts"], a["next_values"], cut, n))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_lambda_and_gae_oracle(shape, lam):
    a, cut, _ = case(shape[0], shape[1], seed=1)
    t, c = tensors(a, cut)
    found = lambda_returns(t["rewards"], t["discounts"], t["next_values"], c, lam)
    check(found, oracles.lambda_returns(a["rewards"], a["discounts"], a["next_values"], cut, lam))
    found = gae(t["rewards"], t["discounts"], t["values"], t["next_values"], c, lam)
    check(found, oracles.gae(a["rewards"], a["discounts"], a["values"], a["next_values"], cut, lam))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bars", [(1, 1, 1, 1), (2, 1, 1, 1), (1.5, 0.7, 3, 0.9), (math.inf, 1, math.inf, 0.5)])
def test_vtrace_oracle(shape, bars):
    a, cut, rng = case(shape[0], shape[1], seed=2)
    log_rhos = rng.normal(size=shape).astype(np.float32)
    t, c = tensors(a, cut)
    found = vtrace(
        torch.from_numpy(log_rhos), **t, cut=c, rho_bar=bars[0], c_bar=bars[1], pg_rho_bar=bars[2], lam=bars[3]
    )
    vs, pg = oracles.vtrace(*[log_rhos.astype(float), *a.values(), cut, *bars])
    check(found.vs, vs)
    check(found.pg_advantages, pg)


def test_inputs_are_not_written():
    a, cut, rng = case(9, 3, seed=3)
    t, c = tensors(a, cut)
    before = {k: v.clone() for k, v in t.items()}, c.clone()
    log_rhos = torch.from_numpy(rng.normal(size=(9, 3)).astype(np.float32))
    vtrace(log_rhos, **t, cut=c)
    gae(**t, cut=c, lam=0.9)
    t2 = {k: t[k] for k in ("rewards", "discounts", "next_values")}
    lambda_returns(**t2, cut=c, lam=0.9)
    n_step_returns(**t2, cut=c, n=3)
    assert all(torch.equal(v, before[0][k]) for k, v in t.items()) and torch.equal(c, before[1])


@pytest.mark.parametrize("T", [128, 1000])
def test_long_float32_unroll_stays_accurate(T):
    a, cut, _ = case(T, 2, seed=4, gamma=0.99)
    cut[:] = False
    a["discounts"][:] = 0.999
    t, c = tensors(a, cut)
    a = {k: x.astype(float) for k, x in a.items()}
    expected = oracles.gae(*[*a.values(), cut, 1.0])
    sizes = {k: np.abs(x) for k, x in a.items()} | {"values": -np.abs(a["values"])}  # they are subtracted
    assert_rounded(gae(**t, cut=c, lam=1.0), expected, oracles.gae(*[*sizes.values(), cut, 1.0]), 3 * T)


# -------------------------------------------------------------------------------- worked numbers
def impala(ratios=(1, 1, 1), lam=1.0, rho_bar=1.0, done=None, **kw):
    v, nv = column(0.5, 0.4, 0.3), column(0.4, 0.3, 0.2)
    d = column(0.9, 0.9, 0.9)
    cut = no_cut(3)
    if done is not None:
        d[done], cut[done] = 0.0, True
    return vtrace(column(*ratios).log(), column(1, 0, 2), d, v, nv, cut, rho_bar=rho_bar, lam=lam, **kw)


def test_impala_item_1():
    """impala.md 4.1: on-policy, lambda 1: n-step returns."""
    found = impala()
    close(found.vs, 2.7658, 1.962, 2.18)
    close(found.pg_advantages, 2.2658, 1.562, 1.88)


def test_impala_item_2():
    """impala.md 4.2: ratios 2, .5, 1.5 clipped at 1."""
    found = impala((2, 0.5, 1.5))
    close(found.vs, 2.0629, 1.181, 2.18)
    close(found.pg_advantages, 1.5629, 0.781, 1.88)


def test_impala_item_3():
    """impala.md 4.3: rho_bar 2, c_bar 1, pg clip 1."""
    found = impala((2, 0.5, 1.5), rho_bar=2.0)
    close(found.vs, 3.3036, 1.604, 3.12)
    close(found.pg_advantages, 1.9436, 1.204, 1.88)


def test_impala_item_4():
    """impala.md 4.4: lambda 0 and .95 on-policy."""
    close(impala(lam=0.0).vs, 1.36, 0.27, 2.18)
    close(impala(lam=0.95).vs, 2.623177, 1.8774, 2.18, tol=2e-6)


def test_impala_item_5():
    """impala.md 4.5: done after t=1 in case 2."""
    found = impala((2, 0.5, 1.5), done=1)
    close(found.vs, 1.18, 0.2, 2.18)
    close(found.pg_advantages, 0.68, -0.2, 1.88)


def test_impala_item_8():
    """impala.md 4.8: pi -> 0 gives v = V and A = 0; c_bar -> 0 gives v = V + delta."""
    gone = impala((1e-30, 1e-30, 1e-30))
    close(gone.vs, 0.5, 0.4, 0.3, tol=1e-7)
    close(gone.pg_advantages, 0, 0, 0, tol=1e-7)
    close(impala((2, 0.5, 1.5), c_bar=0.0).vs, 1.36, 0.4 + 0.5 * (0.27 - 0.4), 2.18)


def test_impala_trap_log_space():
    """impala.md 6: huge log-ratios are clamped before exp."""
    v = column(0.5, 0.4)
    huge = vtrace(column(500, -500), column(1, 1), column(0.9, 0.9), v, v, no_cut(2))
    one = vtrace(column(0, -500), column(1, 1), column(0.9, 0.9), v, v, no_cut(2))
    assert torch.equal(huge.vs, one.vs) and torch.equal(huge.pg_advantages, one.pg_advantages)
    assert torch.isfinite(huge.vs).all()


def test_recurrent_ppo_item_1():
    """recurrent-ppo.md 4.1: GAE with and without an episode end after t=1."""
    r, v, nv, d = column(1, 0, 1), column(0.5, 0.6, 0.4), column(0.6, 0.4, 0.3), column(0.99, 0.99, 0.99)
    close(gae(r, d, v, nv, no_cut(3), 0.95), 1.695571, 0.639628, 0.897, tol=2e-6)
    d[1] = 0.0
    a = gae(r, d, v, nv, no_cut(3, 1), 0.95)
    close(a, 0.5297, -0.6, 0.897, tol=2e-6)
    close(a + v, 1.0297, 0.0, 1.297, tol=2e-6)


def test_recurrent_ppo_item_5():
    """recurrent-ppo.md 4.5: truncation: target r + gamma V(final obs) = 2.98, whatever follows."""
    for after in (0.0, 100.0):
        r, v = column(1, after), column(0.0, 0.0)
        a = gae(r, column(0.99, 0.99), v, column(2, after), no_cut(2, 0), 0.95)
        close(a[:1] + v[:1], 2.98, tol=1e-6)


def test_dqn_item_7():
    """dqn-family.md 4.7: n=3, r=[1,0,2], gamma .9, bootstrap 10 -> 9.91."""
    nv = column(-7, -7, 10)
    close(n_step_returns(column(1, 0, 2), column(0.9, 0.9, 0.9), nv, no_cut(3), 3)[0], 9.91)
    more = torch.cat((nv, column(55)))
    four = n_step_returns(column(1, 0, 2, 9), column(0.9, 0.9, 0.9, 0.9), more, no_cut(4), 3)
    close(four[0], 9.91)


def test_apex_items_2_and_3():
    """apex.md 4.2 and 4.3: n-step target and actor priority; a terminal after two steps."""
    d = column(0.99, 0.99, 0.99)
    g = n_step_returns(column(1, 0, 1), d, column(-1, -1, 3), no_cut(3), 3)[0]
    close(g, 4.890997, tol=2e-6)
    close((g - 1).abs(), 3.890997, tol=2e-6)
    close((g - 1).abs() ** 0.6, 2.259626, tol=2e-6)
    d[1] = 0.0
    g = n_step_returns(column(1, 2, 9), d, column(9, 9, 9), no_cut(3, 1), 3)[0]
    close(g, 2.98, tol=1e-6)
    close((g - 2).abs(), 0.98, tol=1e-6)


def test_d4pg_item_1_return():
    """d4pg.md 4.1: R_5 = 2.8514976, gamma^5 = .95099 (read off as the factor of the bootstrap)."""
    r, d = column(1, 0.5, 0.2, 0.8, 0.4), torch.full((5, 1), 0.99)
    zero = n_step_returns(r, d, column(0, 0, 0, 0, 0), no_cut(5), 5)[0]
    one = n_step_returns(r, d, column(0, 0, 0, 0, 1), no_cut(5), 5)[0]
    close(zero, 2.8514976, tol=1e-6)
    close(one - zero, 0.95099, tol=1e-6)


def test_a3c_item_1():
    """a3c-unreal.md 4.1: returns of one t_max segment."""
    r = n_step_returns(column(0, 0, 1), column(0.99, 0.99, 0.99), column(7, 7, 0.5), no_cut(3), 3)
    close(r, 1.4652495, 1.48005, 1.495, tol=1e-6)
    close(r - column(0.6, 0.7, 0.8), 0.8652495, 0.78005, 0.695, tol=1e-6)


def test_qt_opt_item_3():
    """qt-opt.md 4.3: success on step 5 after four penalties."""
    d = column(0.9, 0.9, 0.9, 0.9, 0.0)
    r = n_step_returns(column(-0.05, -0.05, -0.05, -0.05, 1), d, torch.ones(5, 1), no_cut(5, 4), 5)
    close(r[0], 0.48415, tol=1e-6)


# ------------------------------------------------------------------------------------ identities
def chained(T, B, seed):
    """A case whose values and next values agree (next_values[t] = values[t + 1] inside an episode)."""
    a, cut, rng = case(T, B, seed=seed)
    inside = ~cut[:-1]
    a["next_values"][:-1][inside] = a["values"][1:][inside]
    return (*tensors(a, cut), rng)


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
def test_vtrace_on_policy_is_gae_plus_values_and_lambda_return(lam):
    """INDEX.md: V-trace(pi = mu, lambda) = GAE(lambda) + V; recurrent-ppo.md 4.10."""
    t, cut, _ = chained(17, 3, 5)
    found = vtrace(torch.zeros(17, 3), **t, cut=cut, lam=lam)
    a = gae(**t, cut=cut, lam=lam)
    torch.testing.assert_close(found.vs, a + t["values"], atol=1e-5, rtol=1e-5)
    g = lambda_returns(t["rewards"], t["discounts"], t["next_values"], cut, lam)
    torch.testing.assert_close(found.vs, g, atol=1e-5, rtol=1e-5)


def test_lambda_one_is_the_longest_n_step_return_and_policy_target():
    """INDEX.md: V-trace(pi = mu, lambda 1) = n-step return; then pg = vs - V."""
    t, cut, _ = chained(17, 3, 6)
    found = vtrace(torch.zeros(17, 3), **t, cut=cut)
    g = n_step_returns(t["rewards"], t["discounts"], t["next_values"], cut, 17)
    torch.testing.assert_close(found.vs, g, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.pg_advantages, found.vs - t["values"], atol=1e-5, rtol=1e-5)


def test_lambda_zero_is_td():
    """recurrent-ppo.md 4.10: lambda 0 gives A = delta; the same for V-trace, lambda and 1-step returns."""
    t, cut, _ = chained(12, 4, 7)
    td = t["rewards"] + t["discounts"] * t["next_values"]
    torch.testing.assert_close(gae(**t, cut=cut, lam=0.0), td - t["values"])
    torch.testing.assert_close(vtrace(torch.zeros(12, 4), **t, cut=cut, lam=0.0).vs, td, atol=1e-6, rtol=1e-5)
    part = (t["rewards"], t["discounts"], t["next_values"], cut)
    torch.testing.assert_close(lambda_returns(*part, 0.0), td)
    torch.testing.assert_close(n_step_returns(*part, 1), td)


def test_nothing_passes_a_cut():
    """Rows up to a cut are bitwise equal whatever follows it; columns do not mix."""
    a, cut, rng = case(16, 3, seed=8)
    cut[6, 1] = True
    t, c = tensors(a, cut)
    log_rhos = torch.from_numpy(rng.normal(size=(16, 3)).astype(np.float32))
    before = (
        vtrace(log_rhos, **t, cut=c),
        gae(**t, cut=c, lam=0.95),
        n_step_returns(t["rewards"], t["discounts"], t["next_values"], c, 4),
    )
    for k in ("rewards", "values", "next_values"):
        t[k][7:, 1] += 10.0
    after = (
        vtrace(log_rhos, **t, cut=c),
        gae(**t, cut=c, lam=0.95),
        n_step_returns(t["rewards"], t["discounts"], t["next_values"], c, 4),
    )
    for x, y in zip((*before[0], *before[1:]), (*after[0], *after[1:]), strict=True):
        assert torch.equal(x[:7], y[:7]) and torch.equal(x[:, [0, 2]], y[:, [0, 2]])
        assert not torch.equal(x[7:, 1], y[7:, 1])


def test_batch_columns_do_not_change_a_result():
    """A column alone gives bitwise what it gives inside a batch (actor-count independence)."""
    t, cut, _ = chained(30, 5, 9)
    whole = gae(**t, cut=cut, lam=0.9)
    for b in range(5):
        alone = gae(**{k: v[:, b : b + 1].contiguous() for k, v in t.items()}, cut=cut[:, b : b + 1], lam=0.9)
        assert torch.equal(alone[:, 0], whole[:, b])


def test_no_gradient_flows_and_half_is_computed_in_float32():
    t, cut, _ = chained(4, 2, 10)
    t["values"].requires_grad_()
    log_rhos = torch.zeros(4, 2, requires_grad=True)
    for x in (*vtrace(log_rhos, **t, cut=cut), gae(**t, cut=cut, lam=0.9)):
        assert not x.requires_grad
    assert gae(**{k: v.detach().bfloat16() for k, v in t.items()}, cut=cut, lam=0.9).dtype == torch.float32


@pytest.mark.cuda
def test_vtrace_on_the_device_is_vtrace_on_the_cpu():
    t, cut, rng = chained(40, 3, 11)
    log_rhos = torch.from_numpy(rng.normal(size=(40, 3)).astype(np.float32))
    cpu = vtrace(log_rhos, **t, cut=cut)
    gpu = vtrace(log_rhos.to(DEVICE), **{k: v.to(DEVICE) for k, v in t.items()}, cut=cut.to(DEVICE))
    for x, y in zip(cpu, gpu, strict=True):
        torch.testing.assert_close(x, y.cpu(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("terminated", [False, True])
def test_what_is_not_finite_does_not_pass_a_cut(bad, terminated):
    t, cut, rng = chained(9, 2, 4)
    cut[:] = False
    cut[4] = True
    t["discounts"] = torch.full_like(t["discounts"], 0.9)
    if terminated:
        t["discounts"][4] = 0.0
    log_rhos = torch.from_numpy(rng.normal(size=(9, 2)).astype(np.float32))

    def rows():
        value = {k: v for k, v in t.items() if k != "values"}
        both = vtrace(log_rhos, **t, cut=cut)
        n_step = [n_step_returns(**value, cut=cut, n=n) for n in (1, 3, 9)]
        lambdas = [lambda_returns(**value, cut=cut, lam=lam) for lam in (0.0, 0.7)]
        return [x[:5] for x in (*both, gae(**t, cut=cut, lam=0.9), *lambdas, *n_step)]

    before = rows()
    for x in (*t.values(), log_rhos):
        x[5:] = bad
    if terminated:  # a next value that counts for nothing, as where the reset observation is in its place
        t["next_values"][4] = bad
    for x, y in zip(before, rows(), strict=True):
        assert torch.equal(x, y)


def test_errors_state_expected_and_found():
    x, cut = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"gae: expected values of shape \(3, 2\).*found \(2, 3\)"):
        gae(x, x, torch.zeros(2, 3), x, cut, 0.9)
    with pytest.raises(ValueError, match=r"expected cut of dtype torch.bool, found torch.float32"):
        vtrace(x, x, x, x, x, x)
    with pytest.raises(ValueError, match=r"expected cut of shape \(3, 2\).*found \(3, 1\)"):
        lambda_returns(x, x, x, cut[:, :1], 0.5)
    with pytest.raises(ValueError, match=r"expected n >= 1, found 0"):
        n_step_returns(x, x, x, cut, 0)
    with pytest.raises(ValueError, match=r"expected lam in \[0.0, 1.0\], found 1.5"):
        gae(x, x, x, x, cut, 1.5)
    with pytest.raises(ValueError, match=r"T >= 1"):
        gae(x[:0], x[:0], x[:0], x[:0], cut[:0], 0.5)
