"""Compiled RMSProp, which passes over memory once (``ops.RMSProp``, ``ops.SharedRMSProp`` on a CPU)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal import fast
from shoal.jit import jit_late


def moves(params: Sequence[Tensor]) -> bool:
    """Return True if ``descend`` supports these parameters."""
    if not fast.ENABLED or params[0].device.type != "cpu" or params[0].dtype != torch.float32:
        return False
    return all(p.is_contiguous() for p in params)


@torch.no_grad()
def descend(
    params: Sequence[Tensor], squares: Sequence[Tensor], gradient: Sequence[Tensor], lr: float, decay: float, eps: float
) -> None:
    """Update in place: ``s = decay s + (1 - decay) g^2``, ``theta = theta - lr g / sqrt(s + eps)``."""
    numbers = [np.float32(x) for x in (lr, decay, 1.0 - decay, eps)]
    for p, s, g in zip(params, squares, gradient, strict=True):
        _descend(_flat(p), _flat(s), _flat(g.contiguous()), *numbers)


def _flat(x: Tensor) -> np.ndarray:
    return x.detach().numpy().reshape(-1)


@jit_late
def _descend(
    params: np.ndarray, squares: np.ndarray, gradient: np.ndarray, lr: np.float32, decay: np.float32,
    share: np.float32, eps: np.float32,
) -> None:  # fmt: skip
    for i in range(len(params)):
        g = gradient[i]
        s = decay * squares[i] + share * g * g
        squares[i] = s
        params[i] -= lr * g / math.sqrt(s + eps)
