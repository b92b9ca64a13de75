"""Targets of Q-learning on sequences: n-step returns inside a sequence in the space of rescaled values."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.ops import check
from shoal.ops.returns import n_step_returns
from shoal.ops.value import select, signed_hyperbolic, signed_hyperbolic_inverse

__all__ = ["rescaled_n_step_targets"]


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
    check.time_major("rescaled_n_step_targets", cut, rewards=rewards, discounts=discounts)
    check.same_shape("rescaled_n_step_targets", next_q=next_q, selector_q=selector_q)
    check.values("rescaled_n_step_targets", "next_q", next_q, rewards)
    values = select(next_q, selector_q.argmax(-1))
    if eps is None:
        return n_step_returns(rewards, discounts, values, cut, n)
    returns = n_step_returns(rewards, discounts, signed_hyperbolic_inverse(values, eps), cut, n)
    return signed_hyperbolic(returns, eps)
