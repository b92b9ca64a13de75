"""Losses whose gradient was computed together with their value by a compiled function, so that autograd need not walk a
graph of one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor


class _PrecomputedGradient(torch.autograd.Function):
    """A scalar that carries its gradient in autograd's graph."""

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


_NODE: Any = _PrecomputedGradient._backward_cls


def loss_with_gradient(leaf: Tensor, value: float | Tensor, gradient: Tensor) -> Tensor:
    """Return ``value`` (a number, or a tensor [] on the device of ``leaf``) as a scalar with the gradient ``gradient``
    with respect to ``leaf``. Does not wait for a GPU."""
    return cast(Tensor, _PrecomputedGradient.apply(leaf, gradient, value))  # type: ignore[no-untyped-call]


def compiled_loss(
    kernel: Callable[..., float], outputs: Tensor, rest: Sequence[Tensor | float], metrics: int
) -> tuple[Tensor, Tensor]:
    """Return (loss, metrics [metrics]) computed by ``kernel``, which is called with arrays of ``outputs`` and ``rest``
    by position and with output arrays for the gradient with respect to ``outputs`` and for the metrics."""
    gradient, found = torch.empty(outputs.shape, dtype=outputs.dtype), torch.zeros(metrics, dtype=torch.float64)
    given = [r.numpy() if isinstance(r, Tensor) else r for r in (outputs.detach(), *rest)]
    value = kernel(*given, gradient.numpy(), found.numpy())
    return loss_with_gradient(outputs, value, gradient), found.float()


def precomputed_gradient(loss: Tensor, leaf: Tensor) -> Tensor | None:
    """Return the gradient of ``loss`` with respect to ``leaf`` if it was computed with the loss, or None if autograd is
    needed because ``loss`` is more than that result."""
    node: Any = loss.grad_fn
    if not isinstance(node, _NODE):
        return None
    found: Tensor = node.saved_tensors[0]
    return found if getattr(node.next_functions[0][0], "variable", None) is leaf else None
