"""Compiled quantile regression loss and gradient (``systems.rainbow.returns.quantile_td_loss`` on a CPU)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.jit import jit_sums


def quantile_td_loss(
    quantiles: Tensor, rewards: Tensor, discounts: Tensor, next_quantiles: Tensor, kappa: float
) -> tuple[Tensor, Tensor]:
    """Return the loss as ``systems.rainbow.returns.quantile_td_loss``, which has checked the arguments."""
    loss, gradient = torch.empty_like(rewards), torch.empty_like(quantiles)
    target = np.empty(next_quantiles.shape[-1], np.float32)
    theta, reward, discount, after = (t.numpy() for t in (quantiles, rewards, discounts, next_quantiles))
    _by_rows(theta, reward, discount, after, np.float32(kappa), target, loss.numpy(), gradient.numpy())
    return loss, gradient


@jit_sums
def _by_rows(
    quantiles: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, next_quantiles: np.ndarray, kappa: np.float32,
    target: np.ndarray, loss: np.ndarray, gradient: np.ndarray,
) -> None:  # fmt: skip
    rows, count = quantiles.shape
    samples = len(target)
    zero, one, half = np.float32(0.0), np.float32(1.0), np.float32(0.5)
    scale = one / (kappa * samples) if kappa > zero else one / np.float32(samples)
    for i in range(rows):
        for j in range(samples):
            target[j] = rewards[i] + discounts[i] * next_quantiles[i, j]
        total = zero
        for k in range(count):
            tau, here = (np.float32(k) + half) / np.float32(count), quantiles[i, k]
            size, slope = zero, zero
            for j in range(samples):
                u = target[j] - here
                weight = one - tau if u < zero else tau
                if kappa > zero:
                    steep = min(max(u, -kappa), kappa)  # Huber's derivative; (u - steep / 2) steep is Huber's loss
                    size += weight * ((u - half * steep) * steep)
                    slope -= weight * steep
                else:
                    size += weight * abs(u)
                    slope -= weight * np.sign(u)
            total += size * scale
            gradient[i, k] = slope * scale
        loss[i] = total
