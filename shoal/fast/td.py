"""Compiled loss of temporal-difference errors and its gradient (``systems.dqn.td_loss`` on a CPU)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.fast.precomputed import loss_with_gradient
from shoal.jit import jit_late


def td_loss(
    q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor, weight: Tensor,
    bound: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return loss and errors as ``systems.dqn.td_loss``, which has checked the arguments. bound: largest error in the
    gradient; infinite for none."""
    gradient, error = torch.zeros_like(q), torch.empty_like(rewards)
    given = [t.detach().numpy() for t in (q, actions, rewards, discounts, next_q, selector_q, weight)]
    kernel: Callable[..., float] = _by_rows
    value = kernel(*given, bound, gradient.numpy(), error.numpy())
    return loss_with_gradient(q, value, gradient), error


@jit_late
def _by_rows(
    q: np.ndarray, actions: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, next_q: np.ndarray,
    selector_q: np.ndarray, weights: np.ndarray, bound: float, gradient: np.ndarray, error: np.ndarray,
) -> float:  # fmt: skip
    rows, count = q.shape
    loss = 0.0
    for i in range(rows):
        action, best = actions[i], 0
        if action < 0 or action >= count:
            raise IndexError("td_loss: expected actions from 0 to A - 1, found another")
        for other in range(1, count):
            if not selector_q[i, other] <= selector_q[i, best] and selector_q[i, best] == selector_q[i, best]:
                best = other  # nan counts as the largest value, as in PyTorch
        delta = q[i, action] - (rewards[i] + discounts[i] * next_q[i, best])
        slope = delta
        if delta > bound:
            slope = bound
        elif delta < -bound:
            slope = -bound
        weighted = weights[i] * slope
        loss += (delta - 0.5 * slope) * weighted
        gradient[i, action] = weighted
        error[i] = abs(delta)
    return loss
