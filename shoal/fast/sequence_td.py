"""Compiled loss of temporal-difference errors on sequences, with its gradient and the sequences' priorities
(``systems.r2d2.sequence_td_loss`` on a CPU)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.fast.precomputed import loss_with_gradient
from shoal.jit import jit_late


def sequence_td_loss(
    q: Tensor, target_q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, weight: Tensor,
    double: bool, n: int, eps: float | None, bound: float, eta: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the results of ``systems.r2d2.sequence_td_loss``, which has checked the arguments. bound: largest error in
    the gradient; infinite for none."""
    gradient, error, priority = torch.zeros_like(q), torch.zeros_like(rewards), torch.empty_like(weight)
    selector_q = q if double else target_q
    tensors = q, target_q, selector_q, actions, rewards, discounts, valid, weight, gradient, error, priority
    kernel: Callable[..., float] = _by_sequences
    value = kernel(*(t.detach().numpy() for t in tensors), n, -1.0 if eps is None else eps, bound, eta)
    return loss_with_gradient(q, value, gradient), error, priority


@jit_late
def _by_sequences(
    q: np.ndarray, target_q: np.ndarray, selector_q: np.ndarray, actions: np.ndarray, rewards: np.ndarray,
    discounts: np.ndarray, valid: np.ndarray, weights: np.ndarray, gradient: np.ndarray, error: np.ndarray,
    priority: np.ndarray, n: int, eps: float, bound: float, eta: float,
) -> float:  # fmt: skip
    length, batch = actions.shape
    count, loss = q.shape[2], 0.0
    for b in range(batch):
        steps, most, total = 0, 0.0, 0.0
        for t in range(length):
            if not valid[t, b]:
                continue
            action = actions[t, b]
            if action < 0 or action >= count:
                raise IndexError("sequence_td_loss: expected actions from 0 to A - 1, found another")
            target, passed, row = 0.0, 1.0, t
            while True:  # over the steps of the return
                target += passed * rewards[row, b]
                passed *= discounts[row, b]
                row += 1
                if passed == 0 or row == t + n or row == length or not valid[row, b]:
                    break
            if passed != 0:  # with discount 0 the bootstrap value does not count, even if it is infinite or nan
                best, found = 0, selector_q[row, b]
                for other in range(1, count):
                    if not found[other] <= found[best] and found[best] == found[best]:
                        best = other  # nan counts as the largest value, as in PyTorch
                value = float(target_q[row, b, best])
                if eps >= 0:  # ops.signed_hyperbolic_inverse
                    size = abs(value)
                    root = math.sqrt(1 + 4 * eps * (size + 1 + eps))
                    value *= (2 - 4 * eps / (1 + 2 * eps + root)) / (1 + root)
                    value *= 2 * (size + 1 + eps) / (1 + root) + 1
                target += passed * value
            if eps >= 0:  # ops.signed_hyperbolic
                target = target / (math.sqrt(abs(target) + 1) + 1) + eps * target
            delta = q[t, b, action] - target
            slope = delta
            if delta > bound:
                slope = bound
            elif delta < -bound:
                slope = -bound
            loss += weights[b] * (delta - 0.5 * slope) * slope
            gradient[t, b, action] = weights[b] * slope
            error[t, b] = abs(delta)
            steps, most, total = steps + 1, max(most, abs(delta)), total + abs(delta)
        priority[b] = eta * most + (1 - eta) * total / max(steps, 1)
    return loss
