"""Targets of Q-learning on sequences, n-step returns inside a sequence in the space of rescaled values, and the loss of
the errors from them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal import fast
from shoal.fast import sequence_td as compiled
from shoal.ops import _check
from shoal.ops.returns import n_step_returns
from shoal.ops.sampling import sequence_priority
from shoal.ops.value import select, signed_hyperbolic, signed_hyperbolic_inverse

__all__ = ["rescaled_n_step_targets", "sequence_td_loss"]


@torch.no_grad()
def rescaled_n_step_targets(
    rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor, cut: Tensor, n: int,
    eps: float | None = 1e-3,
) -> Tensor:  # fmt: skip
    """``h(sum_{k<n} d^k r[t + k] + d^n h^-1(next_q[t + n - 1][argmax_a selector_q[t + n - 1]]))``, time-major.

    Near a cut or the last row the window is shorter, with the last value there is. ``selector_q = next_q`` is plain
    Q-learning, the online network's values make it double.

    Args: rewards, discounts: float ``[T, B]`` (a discount is 0 only where the episode terminated); next_q (target
    network), selector_q: float ``[T, B, A]``, row t of the observation after step t; cut: bool ``[T, B]``, True where
    nothing passes from row t + 1 back to row t; n: steps, at least 1; eps: of ``signed_hyperbolic``, None: no
    rescaling. Returns: ``[T, B]``, without a gradient.
    Source: Kapturowski et al. (2019), R2D2, section 2.3; Pohlen et al. (2018), Observe and Look Further, section 3.1.
    """
    _check.time_major("rescaled_n_step_targets", cut, rewards=rewards, discounts=discounts)
    _check.same_shape("rescaled_n_step_targets", next_q=next_q, selector_q=selector_q)
    _check.values("rescaled_n_step_targets", "next_q", next_q, rewards)
    values = select(next_q, selector_q.argmax(-1))
    if eps is None:
        return n_step_returns(rewards, discounts, values, cut, n)
    returns = n_step_returns(rewards, discounts, signed_hyperbolic_inverse(values, eps), cut, n)
    return signed_hyperbolic(returns, eps)


def sequence_td_loss(
    q: Tensor, target_q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, weight: Tensor, *,
    double: bool = True, n: int = 5, eps: float | None = 1e-3, clip: float | None = None, eta: float = 0.9,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """``sum_b w_b sum_t huber(delta[t, b])`` over real steps, with ``delta = q[t][a] - rescaled_n_step_targets[t]``.

    Args: q (of the network that learns), target_q (target network): float ``[T + 1, B, A]``, of the steps and of the
    observation after them; actions: int64 ``[T, B]``; rewards, discounts: float ``[T, B]``; valid: bool ``[T + 1, B]``,
    which steps are real; weight: float ``[B]``; double: the network that learns selects the action whose value is the
    bootstrap; n: steps; eps: of the rescaling, None: none; clip: of the error in the gradient (Huber's loss), None: the
    loss is ``delta^2 / 2``; eta: of ``sequence_priority``.
    Returns: the loss, differentiable by ``q`` alone; the absolute errors ``[T, B]``, 0 where no step is real; and the
    sequences' priorities ``[B]``.
    Raises: IndexError or RuntimeError for an action outside of [0, A).
    Source: Kapturowski et al. (2019), R2D2, section 2.3.
    """
    _check.same_shape("sequence_td_loss", actions=actions, rewards=rewards, discounts=discounts)
    _check.same_shape("sequence_td_loss", q=q, target_q=target_q)
    _check.values("sequence_td_loss", "q", q[1:], rewards)
    _check.shape("sequence_td_loss", "valid", valid, q.shape[:2])
    _check.shape("sequence_td_loss", "weight", weight, q.shape[1:2])
    _check.in_range("sequence_td_loss", "eta", eta, 0.0, 1.0)
    bound = math.inf if clip is None else clip
    if fast.ENABLED and q.device.type == "cpu":
        return compiled.sequence_td_loss(
            q, target_q, actions, rewards, discounts, valid, weight, double, n, eps, bound, eta
        )
    return plain_sequence_td_loss(q, target_q, actions, rewards, discounts, valid, weight, double, n, eps, bound, eta)


def plain_sequence_td_loss(
    q: Tensor, target_q: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor, valid: Tensor, weight: Tensor,
    double: bool, n: int, eps: float | None, bound: float, eta: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """``sequence_td_loss`` by torch's operations, on any device."""
    selector_q, real = (q.detach() if double else target_q), valid[:-1]
    targets = rescaled_n_step_targets(rewards, discounts, target_q[1:], selector_q[1:], ~valid[1:], n, eps)
    delta = torch.where(real, select(q[:-1], actions) - targets, 0.0)
    slope = delta.detach().clamp(-bound, bound)
    # Its gradient is the slope: (delta - slope / 2) slope is Huber's loss, or half the square
    loss = ((delta - 0.5 * slope) * slope).sum(0).dot(weight)
    error = delta.detach().abs()
    return loss, error, sequence_priority(error, eta, real)
