"""The norm of a gradient that consists of several tensors, and its clip."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["clip", "excess", "global_norm"]


def global_norm(grads: list[Tensor]) -> float:
    """L2 norm of all ``grads`` together."""
    if len(grads) == 1:
        return float(torch.linalg.vector_norm(grads[0]))
    return math.hypot(*torch.stack(torch._foreach_norm(grads)).tolist())


def excess(norm: float, max_norm: float) -> float:
    """Return what a gradient of that norm is divided by so as to have at most ``max_norm``: 1 if it has no more."""
    return (norm + 1e-6) / max_norm if norm > max_norm else 1.0


def clip(grads: list[Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients of global norm ``norm`` down to ``max_norm``, as torch's ``clip_grad_norm_`` does."""
    if (divisor := excess(norm, max_norm)) != 1.0:
        torch._foreach_mul_(grads, 1.0 / divisor)
