"""Losses whose gradient is known as soon as their value is: a compiled function has worked out both. Autograd's engine
need not walk a graph of one operation to find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor


class _Known(torch.autograd.Function):
    """A scalar and its gradient, which its node in autograd's graph keeps."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, gradient: Tensor, value: float | Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        if isinstance(value, Tensor):
            return value.to(leaf.dtype, copy=True)
        here = torch.tensor(value, dtype=leaf.dtype)
        return here if leaf.device.type == "cpu" else leaf.new_full((), here.item())

    @staticmethod
    def backward(ctx: Any, *by_loss: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * by_loss[0], None, None


_NODE: Any = _Known._backward_cls


def known_loss(leaf: Tensor, value: float | Tensor, gradient: Tensor) -> Tensor:
    """Return ``value`` (a number, or a tensor [] where ``leaf`` lies) as a scalar whose gradient by ``leaf`` is
    ``gradient``. A GPU is not waited for."""
    return cast(Tensor, _Known.apply(leaf, gradient, value))  # type: ignore[no-untyped-call]


def compiled_loss(
    kernel: Callable[..., float], outputs: Tensor, rest: Sequence[Tensor | float], metrics: int
) -> tuple[Tensor, Tensor]:
    """Return the loss that ``kernel`` makes of arrays, given ``outputs`` and ``rest`` by position and where to write
    the gradient by ``outputs`` and so many metrics; and these [metrics]."""
    gradient, found = torch.empty(outputs.shape, dtype=outputs.dtype), torch.zeros(metrics, dtype=torch.float64)
    given = [r.numpy() if isinstance(r, Tensor) else r for r in (outputs.detach(), *rest)]
    value = kernel(*given, gradient.numpy(), found.numpy())
    return known_loss(outputs, value, gradient), found.float()


def known_gradient(loss: Tensor, leaf: Tensor) -> Tensor | None:
    """Return the gradient of ``loss`` by ``leaf`` if its kernel has worked it out; None if autograd has to, as where
    more was done with the kernel's result."""
    node: Any = loss.grad_fn
    if not isinstance(node, _NODE):
        return None
    found: Tensor = node.saved_tensors[0]
    return found if getattr(node.next_functions[0][0], "variable", None) is leaf else None
