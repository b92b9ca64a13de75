"""Losses whose gradient is known as soon as their value is: a compiled function has worked out both. Autograd's engine
need not walk a graph of one operation to find it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FLOAT32_MAX = torch.finfo(torch.float32).max


def known_loss(leaf: Tensor, value: float | Tensor, gradient: Tensor) -> Tensor:
    """``value``, a scalar whose gradient by ``leaf`` is ``gradient``."""
    loss = (leaf * gradient).sum()  # has that gradient; not yet the value
    if isinstance(value, Tensor):
        loss.data.copy_(value)
    else:
        loss.data.fill_(value if abs(value) <= FLOAT32_MAX or math.isnan(value) else math.copysign(math.inf, value))
    # with its version: `loss += more` changes it in place, and its gradient is another then
    loss.known = leaf, gradient, loss._version  # type: ignore[attr-defined]
    return loss


def compiled_loss(
    kernel: Callable[..., float], outputs: Tensor, rest: Sequence[Tensor | float], metrics: int
) -> tuple[Tensor, Tensor]:
    """The loss that ``kernel`` makes of arrays, given ``outputs`` and ``rest`` by position and where to write the
    gradient by ``outputs`` and so many metrics; and these [metrics]."""
    gradient, found = torch.empty(outputs.shape, dtype=outputs.dtype), torch.zeros(metrics, dtype=torch.float64)
    given = [r.numpy() if isinstance(r, Tensor) else r for r in (outputs.detach(), *rest)]
    value = kernel(*given, gradient.numpy(), found.numpy())
    return known_loss(outputs, value, gradient), found.float()


def known_gradient(loss: Tensor, leaf: Tensor) -> Tensor | None:
    """Return the gradient of ``loss`` by ``leaf`` if its kernel has worked it out; None if autograd has to, as where
    more was done with the kernel's result."""
    known: tuple[Tensor, Tensor, int] | None = getattr(loss, "known", None)
    if known is None or known[0] is not leaf or known[2] != loss._version:
        return None
    return known[1]
