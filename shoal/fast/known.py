"""Losses whose gradient is known as soon as their value is: a compiled function has worked out both. Autograd's engine
need not walk a graph of one operation to find it."""

from __future__ import annotations

import torch
from torch import Tensor


def known_loss(leaf: Tensor, value: float, gradient: Tensor) -> Tensor:
    """``value``, a scalar whose gradient by ``leaf`` is ``gradient``."""
    loss = (leaf * gradient).sum()  # has that gradient; not yet the value
    loss.data.fill_(value)
    loss.known = leaf, gradient  # type: ignore[attr-defined]
    return loss


def gradient_of(loss: Tensor, leaf: Tensor) -> Tensor:
    """The gradient of a scalar by ``leaf``: the known one, or autograd's where more was done with the result."""
    known: tuple[Tensor, Tensor] | None = getattr(loss, "known", None)
    if known is not None and known[0] is leaf:
        return known[1]
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient
