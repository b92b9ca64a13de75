"""The n-step actor-critic's loss: by torch's operations against a loop in NumPy, and by hand, with its gradient,
against torch's."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import oracles
import pytest
import torch

from shoal import fast
from shoal.api import Action
from shoal.nets import ActionDistribution
from shoal.systems.a3c import actor_critic_loss, discrete_actor_critic_loss

COSTS = [dict(value_cost=0.7, entropy_cost=entropy_cost) for entropy_cost in (0.0, 0.03)]
STEPS = ("reward", "discount", "next_value", "cut", "valid")
SIZES = [(1, 1, 1), (5, 1, 2), (7, 3, 6)]  # length, batch, actions


class Found(NamedTuple):
    loss: float
    gradient: torch.Tensor  # by the logits and, in the last column, the value
    means: torch.Tensor


def given(length: int, batch: int, actions: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Ends of both kinds in the middle of segments, and steps that do not count."""
    rng = np.random.default_rng(length)
    shape = (length, batch)
    ended, valid = rng.random(shape) < 0.2, rng.random(shape) < 0.9
    floats = {
        "outputs": rng.normal(size=((length + 1) * batch, actions + 1)), "reward": rng.normal(size=shape) * valid,
        "discount": 0.9 * ~(ended & (rng.random(shape) < 0.5)), "next_value": rng.normal(size=shape),
    }  # fmt: skip
    others = {"action": rng.integers(0, actions, shape), "cut": ended | ~valid, "valid": valid}
    out = {k: torch.from_numpy(v).to(dtype) for k, v in floats.items()}
    return out | {k: torch.from_numpy(v) for k, v in others.items()}


def by_operations(t: dict[str, torch.Tensor], **costs: float) -> Found:
    outputs, (length, batch) = t["outputs"].clone().requires_grad_(), t["action"].shape
    dist = ActionDistribution(Action("discrete", sizes=(outputs.shape[1] - 1,)))
    logits, value = outputs[: length * batch, :-1].view(length, batch, -1), outputs[:, -1].view(length + 1, batch)
    loss, means = actor_critic_loss(*dist.evaluate(logits, t["action"]), value, *(t[k] for k in STEPS), **costs)  # type: ignore[arg-type]
    loss.backward()
    assert outputs.grad is not None
    return Found(loss.item(), outputs.grad, means)


def by_hand(t: dict[str, torch.Tensor], **costs: float) -> Found:
    outputs = t["outputs"].clone().requires_grad_()
    loss, means = discrete_actor_critic_loss(outputs, t["action"], *(t[k] for k in STEPS), **costs)  # type: ignore[arg-type]
    loss.backward()
    assert outputs.grad is not None
    return Found(loss.item(), outputs.grad, means)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("size", SIZES)
def test_loss_and_means_are_the_oracle(size: tuple[int, int, int], costs: dict[str, float]) -> None:
    t = given(*size, dtype=torch.float64)
    loss, means = oracles.actor_critic_loss(*(t[k].numpy() for k in ("outputs", "action", *STEPS)), *costs.values())
    for found in (by_operations(t, **costs), by_hand(t, **costs)):
        assert found.loss == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(found.means.numpy(), means, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [0, 1])
def test_means_of_one_valid_step_or_none(steps: int) -> None:
    t = given(3, 2, 2)
    t["valid"] = torch.zeros(3, 2, dtype=torch.bool)
    t["valid"][1, 0] = bool(steps)
    arrays: list[Any] = [t[k].numpy() for k in ("outputs", "action", *STEPS)]
    _, means = oracles.actor_critic_loss(*[*arrays, 0.7, 0.03])
    for found in (by_operations(t, **COSTS[1]), by_hand(t, **COSTS[1])):
        np.testing.assert_allclose(found.means.numpy(), means, rtol=1e-4)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_by_hand_is_that_of_the_operations(
    size: tuple[int, int, int], costs: dict[str, float], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "ENABLED", compiled)
    t = given(*size)
    wanted, found = by_operations(t, **costs), by_hand(t, **costs)
    assert found.gradient.dtype == torch.float32
    torch.testing.assert_close(found.gradient, wanted.gradient, rtol=1e-4, atol=1e-6)
    assert not found.gradient[t["valid"].numel() :].any(), "the last observation is only bootstrapped from"


@pytest.mark.parametrize("compiled", [True, False])
def test_what_must_not_count_does_not(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that a mask forbids, a value behind a termination, and an action that is none."""
    monkeypatch.setattr(fast, "ENABLED", compiled)
    t: dict[str, Any] = given(6, 1, 3)
    t["action"] %= 2
    t["outputs"][:, 2] = -math.inf
    t["next_value"][2], t["discount"][2], t["cut"][2] = math.nan, 0.0, True
    found = by_hand(t, value_cost=0.5, entropy_cost=0.1)
    assert math.isfinite(found.loss) and bool((found.gradient[:, 2] == 0).all())
    assert bool(found.gradient.isfinite().all())
    t["action"][0] = 3
    with pytest.raises(IndexError, match="0 to A - 1"):
        by_hand(t, value_cost=0.5, entropy_cost=0.1)
