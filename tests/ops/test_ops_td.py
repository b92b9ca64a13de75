"""Q-learning's loss, its gradient and its errors, in both forms: compiled, and by torch's operations (other
devices)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import oracles
import pytest
import torch
from tolerance import rounding

from shoal.ops import importance_weights
from shoal.systems import dqn
from shoal.systems.dqn import td_loss as compiled
from shoal.systems.rainbow import returns
from shoal.systems.rainbow.returns import categorical_td_loss, quantile_td_loss


class Found(NamedTuple):
    loss: torch.Tensor
    gradient: torch.Tensor
    error: torch.Tensor


def plain(*args, clip=1.0):
    return dqn.plain_td_loss(*[*args, math.inf if clip is None else clip])


def differentiated(form):
    """``form`` with its gradient, the weights from a scale and from the probabilities of a prioritised replay."""

    def call(q, actions, rewards, discounts, next_q, selector_q, *, clip=1.0, scale=1.0, probs=None, beta=0.0):
        weight = scale * (torch.ones_like(rewards) if probs is None else importance_weights(probs, 1, beta))
        q = q.detach().clone().requires_grad_()
        loss, error = form(q, actions, rewards, discounts, next_q, selector_q, weight, clip=clip)
        loss.backward()
        return Found(loss.detach(), q.grad, error)

    return call


td_loss, by_operations = differentiated(compiled), differentiated(plain)


FORMS = pytest.mark.parametrize("form", [td_loss, by_operations])


def given(rows: int, actions: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    out = {
        "q": rng.normal(size=(rows, actions)), "rewards": 2 * rng.normal(size=rows), "discounts": rng.random(rows),
        "next_q": rng.normal(size=(rows, actions)), "selector_q": rng.normal(size=(rows, actions)),
    }  # fmt: skip
    return {k: torch.from_numpy(v.astype(np.float32)) for k, v in out.items()} | {
        "actions": torch.from_numpy(rng.integers(0, actions, rows))
    }


@FORMS
@pytest.mark.parametrize(("rows", "actions"), [(1, 1), (3, 2), (17, 6)])
@pytest.mark.parametrize("clip", [None, 1.0, 0.3])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("beta", [None, 0.0, 0.4, 1.0])
def test_both_forms_are_the_oracle(form, rows, actions, clip, single, beta) -> None:
    t = given(rows, actions)
    if single:
        t["selector_q"] = t["next_q"]
    probs = None if beta is None else torch.from_numpy(np.random.default_rng(1).uniform(0.01, 0.2, rows)).float()
    found = form(**t, clip=clip, scale=0.25, probs=probs, beta=beta or 0.0)
    n = {k: v.numpy() for k, v in t.items()}
    loss, gradient, error = oracles.td_loss(
        n["q"], n["actions"], n["rewards"], n["discounts"], n["next_q"], n["selector_q"], clip, 0.25,
        None if probs is None else probs.numpy().astype(float), beta,
    )  # fmt: skip
    assert float(found.loss) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(found.gradient.numpy(), gradient, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.error.numpy(), error, rtol=1e-5, atol=1e-6)
    assert found.gradient.dtype == found.error.dtype == torch.float32


@FORMS
def test_worked_numbers(form) -> None:
    """Target 2.7 (double: online [1, 3, 2] selects, target [5, 3, 4] evaluates, 0.9), 4.5 without; errors of 2 and of
    0.5 against them, clipped at 1."""
    one, zero = torch.ones(1), torch.zeros(1)
    online, target = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[5.0, 3.0, 4.0]])
    q, action = torch.tensor([[0.0, 4.7, 0.0]]), torch.tensor([1])
    far = form(q, action, zero, 0.9 * one, target, online)
    assert float(far.loss) == pytest.approx(1.5) and far.gradient.tolist() == [[0.0, 1.0, 0.0]]
    near, few = form(q - 0.7, action, zero, 0.9 * one, target, target), rounding(4, 4.7)  # operations on up to 4.7
    assert float(near.loss) == pytest.approx(0.125, abs=few) and near.error.item() == pytest.approx(0.5, abs=few)
    assert near.gradient[0].tolist() == pytest.approx([0.0, -0.5, 0.0], abs=few)
    assert form(q, action, one, zero, target, target).error.item() == pytest.approx(3.7)  # a terminal: nothing after


@FORMS
def test_what_is_no_number_is_told_by_the_loss(form) -> None:
    for name in ("q", "rewards", "next_q", "selector_q"):
        t = given(4, 3)
        t["selector_q"] = t["next_q"] if name == "next_q" else t["selector_q"]
        t[name].fill_(math.nan)
        if name == "selector_q":  # it only selects
            assert math.isfinite(float(form(**t).loss))
        else:
            assert math.isnan(float(form(**t).loss))
    t = given(4, 3)
    t["next_q"][2, 1] = math.nan
    assert math.isnan(float(form(**t | {"selector_q": t["next_q"]}).loss))


def test_no_gradient_flows_and_bad_input_is_named() -> None:
    t: dict[str, Any] = given(4, 3)
    weight = torch.ones(4)
    for form in compiled, plain:
        q, next_q = t["q"].clone().requires_grad_(), t["next_q"].clone().requires_grad_()
        loss, error = form(q, t["actions"], t["rewards"], t["discounts"], next_q.detach(), t["selector_q"], weight)
        assert loss.requires_grad and not error.requires_grad
        loss.backward()
        assert next_q.grad is None
    with pytest.raises(ValueError, match=r"td_loss: expected rewards of shape \(4,\) \(as actions\), found \(3,\)"):
        compiled(**t | {"rewards": torch.zeros(3)}, weight=weight)
    with pytest.raises(ValueError, match=r"td_loss: expected next_q of shape \(4, 3\) \(as q\), found \(4, 2\)"):
        compiled(**t | {"next_q": torch.zeros(4, 2)}, weight=weight)
    with pytest.raises(ValueError, match=r"td_loss: expected weight of shape \(4,\) \(as actions\), found \(2,\)"):
        compiled(**t, weight=torch.ones(2))
    with pytest.raises(ValueError, match="importance_weights: expected beta in"):
        td_loss(**t | {"next_q": torch.zeros(4, 3)}, probs=torch.ones(4), beta=-0.4)
    for wrong in (-1, 3):
        with pytest.raises((IndexError, RuntimeError), match=r"td_loss|out of bounds"):
            td_loss(**given(4, 3) | {"actions": torch.tensor([0, 1, wrong, 2])})


def categorical_by_operations(logits, rewards, discounts, next_logits, atoms):
    return returns.plain_categorical_td_loss(logits, rewards, discounts, torch.softmax(next_logits, -1), atoms)


CATEGORICAL = pytest.mark.parametrize("form", [categorical_td_loss, categorical_by_operations])


def distributions(rows: int, atoms: int) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(atoms)
    drawn = (
        rng.normal(size=(rows, atoms)), 4 * rng.normal(size=rows), 0.99 * (rng.random(rows) < 0.8),
        3 * rng.normal(size=(rows, atoms)), np.linspace(-3, 5, atoms),
    )  # fmt: skip
    logits, rewards, discounts, next_logits, support = (torch.from_numpy(x.astype(np.float32)) for x in drawn)
    return logits, rewards, discounts, next_logits, support


@CATEGORICAL
@pytest.mark.parametrize(("rows", "atoms"), [(1, 2), (5, 3), (20, 51)])
def test_the_categorical_loss_is_the_oracle(form, rows, atoms) -> None:
    logits, rewards, discounts, next_logits, support = distributions(rows, atoms)
    probs = torch.softmax(next_logits.double(), -1).numpy()
    r, d, z = (x.double().numpy() for x in (rewards, discounts, support))
    target = oracles.categorical_projection(r, d, probs, z)
    expected = oracles.cross_entropy(target, logits.double().numpy())
    image = r[:, None] + d[:, None] * z
    loss, gradient, divergence, outside = form(logits, rewards, discounts, next_logits, support)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), torch.softmax(logits.double(), -1).numpy() - target, atol=1e-5)
    np.testing.assert_allclose(divergence.numpy(), expected - oracles.entropy(target), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outside.numpy(), (probs * ((image < z[0]) | (image > z[-1]))).sum(-1), atol=1e-5)
    assert (outside > 0).any() and {loss.dtype, gradient.dtype, divergence.dtype, outside.dtype} == {torch.float32}


@CATEGORICAL
def test_an_image_on_an_atom_keeps_its_mass(form) -> None:
    """Even logits, reward 1 and no discount: all mass on the atom 1, so the loss is log 3."""
    even, one = torch.zeros(1, 3), torch.ones(1)
    loss, gradient, divergence, outside = form(even, one, 0 * one, even, torch.tensor([0.0, 1.0, 2.0]))
    assert loss.item() == pytest.approx(math.log(3)) and divergence.item() == pytest.approx(math.log(3))
    assert gradient[0].tolist() == pytest.approx([1 / 3, -2 / 3, 1 / 3], abs=rounding(3, 1.0)) and outside.item() == 0.0


def test_a_categorical_loss_of_what_is_no_number_is_none() -> None:
    for which in (0, 1, 3):
        given = list(distributions(3, 5))
        given[which][1] = math.nan
        loss = categorical_td_loss(*given)[0]
        assert loss.isnan().tolist() == [False, True, False]
    logits, rewards, discounts, *_ = distributions(3, 5)
    with pytest.raises(ValueError, match=r"categorical_td_loss: expected next_logits of shape \(3, 5\) \(as logits\)"):
        categorical_td_loss(logits, rewards, discounts, torch.zeros(3, 4), torch.linspace(-1, 1, 5))
    with pytest.raises(ValueError, match=r"categorical_td_loss: expected atoms of shape \(N >= 2,\), found \(1,\)"):
        categorical_td_loss(torch.zeros(3, 1), torch.zeros(3), torch.zeros(3), torch.zeros(3, 1), torch.zeros(1))


def quantile_by_operations(quantiles, rewards, discounts, next_quantiles, kappa=1.0):
    return returns.plain_quantile_td_loss(quantiles, rewards, discounts, next_quantiles, kappa)


def drawn_quantiles(rows: int, count: int, samples: int) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(count)
    drawn = rng.normal(size=(rows, count)), rng.normal(size=rows), 0.9 * (rng.random(rows) < 0.7), 2 * rng.normal(
        size=(rows, samples)
    )  # fmt: skip
    quantiles, rewards, discounts, after = (torch.from_numpy(x.astype(np.float32)) for x in drawn)
    return quantiles, rewards, discounts, after


@pytest.mark.parametrize("form", [quantile_td_loss, quantile_by_operations])
@pytest.mark.parametrize(("rows", "count", "samples"), [(1, 1, 1), (5, 3, 4), (20, 51, 51)])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_the_quantile_loss_is_the_oracle(form, rows, count, samples, kappa) -> None:
    given = drawn_quantiles(rows, count, samples)
    loss, gradient = form(*given, kappa)
    theta, r, d, z = (x.double().numpy() for x in given)
    taus = np.tile((np.arange(count) + 0.5) / count, (rows, 1))
    target = r[:, None] + d[:, None] * z
    np.testing.assert_allclose(loss.numpy(), oracles.quantile_huber(theta, target, kappa, taus), rtol=1e-5)
    u = target[:, None, :] - theta[:, :, None]
    slope = np.clip(u, -kappa, kappa) / kappa if kappa else np.sign(u)
    expected = -(np.abs(taus[:, :, None] - (u < 0)) * slope).mean(-1)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert not loss.requires_grad and not gradient.requires_grad


def test_a_quantile_loss_of_what_is_no_number_is_none_and_bad_input_is_named() -> None:
    for which in range(4):
        given: list[Any] = list(drawn_quantiles(3, 5, 4))
        given[which][1] = math.nan
        assert quantile_td_loss(*given)[0].isnan().tolist() == [False, True, False]
    quantiles, rewards, discounts, after = drawn_quantiles(3, 5, 4)
    with pytest.raises(ValueError, match=r"quantile_td_loss: expected discounts of shape \(3,\) \(as rewards\)"):
        quantile_td_loss(quantiles, rewards, discounts[:2], after)
    with pytest.raises(ValueError, match=r"expected next_quantiles without its last axis of shape \(3,\)"):
        quantile_td_loss(quantiles, rewards, discounts, after[:2])
    with pytest.raises(ValueError, match="quantile_td_loss: expected kappa >= 0, found -1"):
        quantile_td_loss(quantiles, rewards, discounts, after, -1)
