"""Compiled importance weights (``ops.importance_weights`` on a CPU)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.jit import jit_late


def normalised_weights(probs: Tensor, beta: float) -> Tensor:
    """Return ``(min P / P(i))^beta`` for probs, float [B], outside autograd."""
    weights = torch.empty_like(probs)
    _normalised(probs.numpy(), beta, weights.numpy())
    return weights


@jit_late
def _normalised(probs: np.ndarray, beta: float, weights: np.ndarray) -> None:
    least = probs[0]
    for p in probs:
        least = min(least, p)
    for i in range(len(probs)):
        weights[i] = (least / probs[i]) ** beta
