"""The loss on sequences, its gradient, errors and priorities, in both forms: compiled, and by torch's operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oracles
import pytest
import torch

from shoal.systems.r2d2 import plain_sequence_td_loss, sequence_td_loss


def plain(*args, double, n, eps, clip, eta):
    return plain_sequence_td_loss(*[*args, double, n, eps, math.inf if clip is None else clip, eta])


FORMS = pytest.mark.parametrize("form", [sequence_td_loss, plain])
pytestmark = pytest.mark.usefixtures("fast_enabled")


def case(T: int, B: int, A: int) -> dict[str, np.ndarray]:
    """Sequences that end early, in all ways."""
    rng = np.random.default_rng(T)
    last = rng.integers(1, T + 1, B)
    valid = np.arange(T + 1)[:, None] < last
    ends = (np.arange(T)[:, None] == last - 1) & (rng.random(B) < 0.5)
    return {
        "q": rng.normal(size=(T + 1, B, A)) * 5, "target_q": rng.normal(size=(T + 1, B, A)) * 5,
        "actions": rng.integers(0, A, (T, B)), "r": rng.normal(size=(T, B)) * 3, "d": 0.97 * ~ends,
        "valid": valid & (rng.random((T + 1, B)) < 0.95), "weight": rng.random(B),
    }  # fmt: skip


def tensors(arrays: dict[str, np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(a.astype(np.float32) if a.dtype == float else a) for a in arrays.values()]


@FORMS
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.parametrize(("T", "B", "A"), [(1, 1, 2), (8, 3, 4), (13, 6, 2)])
def test_both_forms_are_the_oracle(form, T, B, A, n, eps, clip, double) -> None:
    settings = dict(double=double, n=n, eps=eps, clip=clip, eta=0.9)
    arrays = case(T, B, A)
    given = tensors(arrays)
    given[0].requires_grad_()
    loss, error, priority = form(*given, **settings)
    loss.backward()
    wanted = oracles.sequence_td_loss(**arrays, **settings)
    assert loss.item() == pytest.approx(wanted[0], rel=1e-4, abs=1e-4)
    for found, expected in zip((given[0].grad, error, priority), wanted[1:], strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert not error.requires_grad and not priority.requires_grad


@FORMS
def test_what_does_not_count_may_be_no_number(form) -> None:
    """Values after an episode's end, and values, rewards and targets of rows that are padding."""
    q, target_q, actions, r, d, _, weight = tensors(case(4, 1, 2))
    valid = torch.tensor([[True], [True], [False], [False], [False]])
    d[1] = 0.0
    q[2:], target_q[2:], r[2:] = 0.0, torch.nan, torch.inf
    loss, error, priority = form(
        q, target_q, actions, r, d, valid, weight, double=True, n=3, eps=1e-3, clip=1.0, eta=0.9
    )
    assert loss.isfinite() and error.isfinite().all() and priority.isfinite().all() and not error[2:].any()


def test_arguments_are_checked() -> None:
    given = tensors(case(4, 2, 3))
    for place, wrong, text in (
        (1, torch.zeros(5, 2, 2), r"expected target_q of shape \(5, 2, 3\) \(as q\), found \(5, 2, 2\)"),
        (3, torch.zeros(3, 2), r"expected rewards of shape \(4, 2\) \(as actions\), found \(3, 2\)"),
        (5, torch.ones(4, 2, dtype=torch.bool), r"expected valid of shape \(5, 2\), found \(4, 2\)"),
        (6, torch.ones(3), r"expected weight of shape \(2,\), found \(3,\)"),
    ):
        changed: list[Any] = [*given[:place], wrong, *given[place + 1 :]]
        with pytest.raises(ValueError, match=f"sequence_td_loss: {text}"):
            sequence_td_loss(*changed)
    for action in (-1, 3):
        given[2][0, 0], given[5][0, 0] = action, True
        for form in (sequence_td_loss, plain):
            with pytest.raises((IndexError, RuntimeError), match=r"sequence_td_loss|out of bounds"):
                form(*given, double=True, n=2, eps=None, clip=None, eta=0.9)
