"""Compiled loss and gradient of categorical return distributions (``systems.rainbow.returns.categorical_td_loss`` on a
CPU)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.jit import jit_late


def categorical_td_loss(
    log_probs: Tensor, rewards: Tensor, discounts: Tensor, next_probs: Tensor, atoms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss as ``systems.rainbow.returns.categorical_td_loss``, which has checked the arguments:
    (log-)probabilities [B, N]."""
    gradient = log_probs.exp()
    loss, divergence, outside = (torch.empty_like(rewards) for _ in range(3))
    given = [t.numpy() for t in (log_probs, rewards, discounts, next_probs, atoms)]
    kernel: Callable[..., None] = _by_rows
    scratch, out = np.empty(len(atoms), np.float32), (gradient, loss, divergence, outside)
    kernel(*given, scratch, *(t.numpy() for t in out))
    return loss, gradient, divergence, outside


@jit_late
def _by_rows(
    log_probs: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, next_probs: np.ndarray, atoms: np.ndarray,
    target: np.ndarray, gradient: np.ndarray, loss: np.ndarray, divergence: np.ndarray, outside: np.ndarray,
) -> None:  # fmt: skip
    rows, count = log_probs.shape
    low, high, last = atoms[0], atoms[-1], count - 1
    scale = last / (high - low)
    for i in range(rows):
        target[:] = 0.0
        beyond = np.float32(0.0)
        for j in range(count):
            image, mass = rewards[i] + discounts[i] * atoms[j], next_probs[i, j]
            if image <= low:
                target[0] += mass
            elif image >= high:
                target[last] += mass
            elif image == image:
                position = (image - low) * scale
                lower = min(int(position), last - 1)
                share = min(position - lower, np.float32(1.0))
                target[lower] += mass * (np.float32(1.0) - share)
                target[lower + 1] += mass * share
            else:
                target[0] = np.nan  # the reward is nan
            if image < low or image > high:
                beyond += mass
        cross, entropy = np.float32(0.0), np.float32(0.0)
        for j in range(count):
            share = target[j]
            gradient[i, j] -= share
            if share != 0.0:  # avoids 0 times minus infinity
                cross -= share * log_probs[i, j]
                entropy += share * np.log(share)
        loss[i], divergence[i], outside[i] = cross, cross + entropy, beyond
