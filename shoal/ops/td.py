"""One step of Q-learning on a batch, by hand: the loss of the taken actions' TD errors, and its gradient by the values.

As one compiled function where the tensors are at hand: of an update of 64 transitions on 128-128 units, a dozen small
operations of torch take 150 us and this takes 20 (docs/performance.md).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.jit import jit_late
from shoal.ops import _check
from shoal.ops.sampling import importance_weights
from shoal.ops.value import double_q_target, select

__all__ = ["TDLoss", "td_loss"]


class TDLoss(NamedTuple):
    """``loss``: a number, or a tensor of one; ``gradient``: of the loss by the values ``[B, A]``; ``error``: the
    absolute TD errors ``[B]``."""

    loss: float | Tensor
    gradient: Tensor
    error: Tensor


@torch.no_grad()
def td_loss(
    q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor, *,
    clip: float | None = 1.0, scale: float = 1.0, probs: Tensor | None = None, beta: float = 0.0,
) -> TDLoss:  # fmt: skip
    """``scale * sum_i w_i huber(delta_i)`` with ``delta = q[a] - (r + d * next_q[argmax selector_q])``.

    Args: q: float ``[B, A]``, of the network that learns; actions: int64 ``[B]``; rewards, discounts: float ``[B]``;
    next_q (target network), selector_q (online network; ``next_q`` itself: plain Q-learning): float ``[B, A]``; clip:
    of the error in the gradient, None: the loss is ``delta^2 / 2``; probs: float ``[B]``, the probability with which
    each item was drawn: ``w`` are ``importance_weights(probs, ..., beta)``, without ``probs`` 1.
    Source: Mnih et al. (2015), Methods, algorithm 1; van Hasselt et al. (2016), eq. 4; Schaul et al. (2016), 3.4.
    """
    _check.same_shape("td_loss", actions=actions, rewards=rewards, discounts=discounts)
    _check.values("td_loss", "q", q, rewards)
    _check.same_shape("td_loss", q=q, next_q=next_q, selector_q=selector_q)
    _check.in_range("td_loss", "beta", beta, 0.0, math.inf)
    bound = math.inf if clip is None else clip
    if q.device.type != "cpu":
        return _by_operations(q, actions, rewards, discounts, next_q, selector_q, bound, scale, probs, beta)
    gradient, error = torch.zeros_like(q), torch.empty_like(rewards)
    loss = _by_rows(
        q.numpy(), actions.numpy(), rewards.numpy(), discounts.numpy(), next_q.numpy(), selector_q.numpy(), bound,
        scale, rewards.numpy() if probs is None else probs.numpy(), 0.0 if probs is None else beta,
        gradient.numpy(), error.numpy(),
    )  # fmt: skip
    return TDLoss(loss, gradient, error)


def _by_operations(
    q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor, bound: float,
    scale: float, probs: Tensor | None, beta: float,
) -> TDLoss:  # fmt: skip
    delta = select(q, actions) - double_q_target(rewards, discounts, next_q, selector_q)
    slope = delta.clamp(-bound, bound)
    weighted = scale * slope if probs is None else scale * slope * importance_weights(probs, len(probs), beta)
    loss = torch.sub(delta, slope, alpha=0.5).dot(weighted)  # (delta - slope / 2) slope: Huber's, or half the square
    return TDLoss(loss, torch.zeros_like(q).scatter_(-1, actions.unsqueeze(-1), weighted.unsqueeze(-1)), delta.abs())


@jit_late
def _by_rows(
    q: Any, actions: Any, rewards: Any, discounts: Any, next_q: Any, selector_q: Any, bound: float, scale: float,
    probs: Any, beta: float, gradient: Any, error: Any,
) -> float:  # fmt: skip
    rows, count = q.shape
    least = np.float32(math.inf)
    for i in range(rows):
        least = min(least, probs[i])
    loss = 0.0
    for i in range(rows):
        action, best = actions[i], 0
        if action < 0 or action >= count:
            raise IndexError("td_loss: expected actions from 0 to A - 1, found another")
        for other in range(1, count):
            if not selector_q[i, other] <= selector_q[i, best] and selector_q[i, best] == selector_q[i, best]:
                best = other  # a value that is not a number counts as the largest, as it does elsewhere
        delta = q[i, action] - (rewards[i] + discounts[i] * next_q[i, best])
        slope = delta
        if delta > bound:
            slope = bound
        elif delta < -bound:
            slope = -bound
        weighted = scale * slope
        if beta > 0.0:
            weighted *= (least / probs[i]) ** beta
        loss += (delta - 0.5 * slope) * weighted
        gradient[i, action] = weighted
        error[i] = abs(delta)
    return loss
