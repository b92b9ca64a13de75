"""Q-learning's loss, its gradient and its errors, in both forms: compiled, and by torch's operations (other
devices)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import oracles
import pytest
import torch
from tolerance import rounding

from shoal.ops import importance_weights, td, td_loss as compiled


class Found(NamedTuple):
    loss: torch.Tensor
    gradient: torch.Tensor
    error: torch.Tensor


def plain(*args, clip=1.0):
    return td.plain_td_loss(*args, math.inf if clip is None else clip)


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
    t = given(4, 3)
    weight = torch.ones(4)
    for form in compiled, plain:
        q, next_q = t["q"].clone().requires_grad_(), t["next_q"].clone().requires_grad_()
        loss, error = form(**t | {"q": q, "next_q": next_q.detach()}, weight=weight) if form is compiled else form(
            q, t["actions"], t["rewards"], t["discounts"], next_q.detach(), t["selector_q"], weight
        )  # fmt: skip
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
