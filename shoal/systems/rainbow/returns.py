"""Descriptions of returns and their losses: the mean (DQN), a categorical distribution (C51), quantiles (QR-DQN).

Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning"; Dabney et al. 2018, "Distributional
Reinforcement Learning with Quantile Regression".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal import fast
from shoal.api import UsageError
from shoal.fast import categorical, quantile
from shoal.ops import check
from shoal.ops.value import (
    categorical_cross_entropy,
    categorical_kl,
    categorical_outside,
    categorical_projection,
    check_atoms,
    huber,
    quantile_huber,
)  # fmt: skip


class Terms(NamedTuple):
    """Of each item [B]: its loss, its priority, the loss's gradient by what describes the return [B, atoms] (None: ask
    autograd), and what part of its target's probability lies outside the support."""

    loss: Tensor
    priority: Tensor
    gradient: Tensor | None = None
    clipped: Tensor | None = None


class Mean(nn.Module):
    """A return described by its mean, one number: DQN."""

    atoms = 1

    def __init__(self, clip: float | None = 1.0) -> None:
        super().__init__()
        self.clip = clip

    def mean(self, described: Tensor) -> Tensor:
        """[..., 1] -> [...]."""
        return described.squeeze(-1)

    def terms(self, now: Tensor, after: Tensor, rewards: Tensor, discounts: Tensor) -> Terms:
        """The squared or Huber loss of the TD error, which is the priority (Mnih et al. 2015; Schaul et al. 2016)."""
        delta = rewards + discounts * after.squeeze(-1) - now.squeeze(-1)
        loss = 0.5 * delta.square() if self.clip is None else huber(delta, self.clip)
        return Terms(loss, delta.detach().abs())


class Categorical(nn.Module):
    """A return described by logits of ``atoms`` values from ``low`` to ``high``: C51."""

    support: Tensor

    def __init__(self, atoms: int, low: float, high: float) -> None:
        super().__init__()
        if atoms < 2 or not low < high:
            raise UsageError(
                f"a categorical distribution needs at least 2 atoms and v_min below v_max, found {atoms} atoms from "
                f"{low:g} to {high:g}"
            )
        self.atoms = atoms
        values = torch.tensor(np.linspace(low, high, atoms), dtype=torch.float32)
        self.register_buffer("support", values, persistent=False)

    def mean(self, described: Tensor) -> Tensor:
        """[..., atoms] -> [...]."""
        return described.softmax(-1) @ self.support

    def terms(self, now: Tensor, after: Tensor, rewards: Tensor, discounts: Tensor) -> Terms:
        """Cross-entropy against the projected target (Bellemare et al. 2017, algorithm 1); the priority is the
        Kullback-Leibler divergence (Hessel et al. 2018), which differs by the target's entropy."""
        loss, gradient, divergence, outside = categorical_td_loss(now, rewards, discounts, after, self.support)
        return Terms(loss, divergence.clamp_min(0.0), gradient, outside)  # rounding can take a divergence below 0


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
    On a CPU its compiled twin is used, ``fast.categorical.categorical_td_loss``.
    """
    check.same_shape("categorical_td_loss", rewards=rewards, discounts=discounts)
    check.same_shape("categorical_td_loss", logits=logits, next_logits=next_logits)
    check_atoms("categorical_td_loss", atoms, rewards, "logits", logits)
    next_probs = next_logits.softmax(-1)
    if fast.ENABLED and logits.device.type == "cpu":
        return categorical.categorical_td_loss(logits.log_softmax(-1), rewards, discounts, next_probs, atoms)
    return plain_categorical_td_loss(logits, rewards, discounts, next_probs, atoms)


@torch.no_grad()
def plain_categorical_td_loss(
    logits: Tensor, rewards: Tensor, discounts: Tensor, next_probs: Tensor, atoms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``categorical_td_loss`` in plain PyTorch, on any device."""
    target = categorical_projection(rewards, discounts, next_probs, atoms)
    outside = categorical_outside(rewards, discounts, next_probs, atoms)
    loss = categorical_cross_entropy(target, logits)
    return loss, logits.softmax(-1) - target, categorical_kl(target, logits), outside


class Quantiles(nn.Module):
    """A return described by ``atoms`` quantiles, at the middles of as many equal shares: QR-DQN."""

    def __init__(self, atoms: int, kappa: float = 1.0) -> None:
        super().__init__()
        self.atoms, self.kappa = atoms, kappa

    def mean(self, described: Tensor) -> Tensor:
        """[..., atoms] -> [...]."""
        return described.mean(-1)

    def terms(self, now: Tensor, after: Tensor, rewards: Tensor, discounts: Tensor) -> Terms:
        """The quantile Huber loss (Dabney et al. 2018, algorithm 1), which is also the priority."""
        loss, gradient = quantile_td_loss(now, rewards, discounts, after, self.kappa)
        return Terms(loss, loss, gradient)


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
    On a CPU its compiled twin is used, ``fast.quantile.quantile_td_loss``.
    """
    check.same_shape("quantile_td_loss", rewards=rewards, discounts=discounts)
    check.values("quantile_td_loss", "next_quantiles", next_quantiles, rewards)
    check.values("quantile_td_loss", "quantiles", quantiles, rewards)
    if kappa < 0.0:
        raise ValueError(f"quantile_td_loss: expected kappa >= 0, found {kappa}")
    if fast.ENABLED and quantiles.device.type == "cpu":
        return quantile.quantile_td_loss(quantiles, rewards, discounts, next_quantiles, kappa)
    return plain_quantile_td_loss(quantiles, rewards, discounts, next_quantiles, kappa)


def plain_quantile_td_loss(
    quantiles: Tensor, rewards: Tensor, discounts: Tensor, next_quantiles: Tensor, kappa: float
) -> tuple[Tensor, Tensor]:
    """``quantile_td_loss`` in plain PyTorch, on any device."""
    targets = rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * next_quantiles
    with torch.enable_grad():
        leaf = quantiles.detach().requires_grad_()
        loss = quantile_huber(leaf, targets, kappa)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), gradient


Returns = Mean | Categorical | Quantiles
