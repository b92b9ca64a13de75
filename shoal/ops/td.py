"""The loss of one step of Q-learning on a batch, of values and of distributions of returns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal import fast
from shoal.fast import categorical, quantile, td as compiled
from shoal.ops import _check
from shoal.ops.value import (
    categorical_cross_entropy,
    categorical_kl,
    categorical_outside,
    categorical_projection,
    check_atoms,
    double_q_target,
    quantile_huber,
    select,
)  # fmt: skip

__all__ = ["categorical_td_loss", "quantile_td_loss", "td_loss"]


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


@torch.no_grad()
def categorical_td_loss(
    logits: Tensor, rewards: Tensor, discounts: Tensor, next_logits: Tensor, atoms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The cross-entropy of a distribution of returns against the projection of ``r + d * Z``, and its gradient.

    Args: logits (of the actions taken), next_logits (target network, of the next actions): float ``[B, N]``; rewards,
    discounts: float ``[B]``; atoms: float ``[N]``, evenly spaced and increasing, N >= 2.
    Returns: the loss ``[B]``, not differentiable; its gradient by the logits ``[B, N]``; the Kullback-Leibler
    divergence, which is the loss less the target's entropy, ``[B]``; and the probability of the target that lay outside
    of the atoms ``[B]``.
    Source: Bellemare et al. (2017), algorithm 1; the divergence is the priority of Hessel et al. (2018).
    """
    _check.same_shape("categorical_td_loss", rewards=rewards, discounts=discounts)
    _check.same_shape("categorical_td_loss", logits=logits, next_logits=next_logits)
    check_atoms("categorical_td_loss", atoms, rewards, "logits", logits)
    next_probs = next_logits.softmax(-1)
    if fast.ENABLED and logits.device.type == "cpu":
        return categorical.categorical_td_loss(logits.log_softmax(-1), rewards, discounts, next_probs, atoms)
    return plain_categorical_td_loss(logits, rewards, discounts, next_probs, atoms)


@torch.no_grad()
def plain_categorical_td_loss(
    logits: Tensor, rewards: Tensor, discounts: Tensor, next_probs: Tensor, atoms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``categorical_td_loss`` by torch's operations, on any device."""
    target = categorical_projection(rewards, discounts, next_probs, atoms)
    outside = categorical_outside(rewards, discounts, next_probs, atoms)
    loss = categorical_cross_entropy(target, logits)
    return loss, logits.softmax(-1) - target, categorical_kl(target, logits), outside


@torch.no_grad()
def quantile_td_loss(
    quantiles: Tensor, rewards: Tensor, discounts: Tensor, next_quantiles: Tensor, kappa: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The quantile regression loss of a distribution of returns against samples of ``r + d * Z``, and its gradient.

    Args: quantiles (of the actions taken): float ``[B, N]``, at the middles of as many equal shares; rewards,
    discounts: float ``[B]``; next_quantiles (target network, of the next actions): float ``[B, M]``; kappa: where
    Huber's loss becomes linear, 0: the plain loss.
    Returns: the loss ``[B]``, not differentiable, and its gradient by the quantiles ``[B, N]``.
    Raises: ValueError for a negative kappa.
    Source: Dabney et al. (2018), algorithm 1; ``quantile_huber`` is its sum.
    """
    _check.same_shape("quantile_td_loss", rewards=rewards, discounts=discounts)
    _check.values("quantile_td_loss", "next_quantiles", next_quantiles, rewards)
    _check.values("quantile_td_loss", "quantiles", quantiles, rewards)
    if kappa < 0.0:
        raise ValueError(f"quantile_td_loss: expected kappa >= 0, found {kappa}")
    if fast.ENABLED and quantiles.device.type == "cpu":
        return quantile.quantile_td_loss(quantiles, rewards, discounts, next_quantiles, kappa)
    return plain_quantile_td_loss(quantiles, rewards, discounts, next_quantiles, kappa)


def plain_quantile_td_loss(
    quantiles: Tensor, rewards: Tensor, discounts: Tensor, next_quantiles: Tensor, kappa: float
) -> tuple[Tensor, Tensor]:
    """``quantile_td_loss`` by torch's operations, on any device."""
    targets = rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * next_quantiles
    with torch.enable_grad():
        leaf = quantiles.detach().requires_grad_()
        loss = quantile_huber(leaf, targets, kappa)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), gradient
