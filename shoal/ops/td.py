"""The loss of one step of Q-learning on a batch."""

from __future__ import annotations

import math

from torch import Tensor

from shoal import fast
from shoal.fast import td as compiled
from shoal.ops import _check
from shoal.ops.value import double_q_target, select

__all__ = ["td_loss"]


def td_loss(
    q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor,
    weight: Tensor, *, clip: float | None = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``sum_i w_i huber(delta_i)`` with ``delta = q[a] - (r + d * next_q[argmax selector_q])``.

    Args: q: float ``[B, A]``, of the network that learns; actions: int64 ``[B]``; rewards, discounts, weight: float
    ``[B]``; next_q (target network), selector_q (online network; ``next_q`` itself: plain Q-learning): float ``[B,
    A]``; clip: of the error in the gradient (Huber's loss), None: the loss is ``delta^2 / 2``.
    Returns: the loss, differentiable by ``q`` alone, and the absolute errors ``[B]``.
    Raises: IndexError or RuntimeError for an action outside of [0, A).
    Source: Mnih et al. (2015), Methods, algorithm 1; van Hasselt et al. (2016), eq. 4; Schaul et al. (2016), 3.4.
    """
    _check.same_shape("td_loss", actions=actions, rewards=rewards, discounts=discounts, weight=weight)
    _check.values("td_loss", "q", q, rewards)
    _check.same_shape("td_loss", q=q, next_q=next_q, selector_q=selector_q)
    bound = math.inf if clip is None else clip
    if fast.ENABLED and q.device.type == "cpu":
        return compiled.td_loss(q, actions, rewards, discounts, next_q, selector_q, weight, bound)
    return plain_td_loss(q, actions, rewards, discounts, next_q, selector_q, weight, bound)


def plain_td_loss(
    q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor, weight: Tensor,
    bound: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``td_loss`` by torch's operations, on any device."""
    delta = select(q, actions) - double_q_target(rewards, discounts, next_q, selector_q)
    slope = delta.detach().clamp(-bound, bound)
    # Its gradient is the slope: (delta - slope / 2) slope is Huber's loss, or half the square
    loss = ((delta - 0.5 * slope) * slope).dot(weight)
    return loss, delta.detach().abs()
