"""A perceptron outside of autograd, its gradient worked out by hand: much of a small network's time goes into
autograd, the calls of modules and the memory that they take anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.fast.few import FewRows, are_few

# Takes a loss's gradient by some values to the parameters' ``grad``; returns all of them, if they lie as one vector
Backward = Callable[[Tensor], Tensor | None]

_GRADIENT: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {  # by what came out of it
    nn.ReLU: lambda gradient, y: torch.ops.aten.threshold_backward.default(gradient, y, 0),
    nn.Tanh: torch.ops.aten.tanh_backward.default,
}
_APPLY: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {nn.ReLU: torch.relu_, nn.Tanh: torch.tanh_}
ACTIVATIONS = tuple(_APPLY)


TALL = 128  # rows per input, from where the product for a gradient is faster the other way round


class Perceptron:
    """Linear layers with the same activation after each, then one or more linear heads side by side.

    layers, heads: the network's own, which they stay when both are copied. activation: one of ``ACTIVATIONS``.
    """

    def __init__(self, layers: Sequence[nn.Linear], activation: type[nn.Module], heads: Sequence[nn.Linear]) -> None:
        self._layers = [(layer.weight, layer.bias) for layer in layers]
        self._heads = [(head.weight, head.bias) for head in heads]
        self.few = FewRows(self._layers, activation is nn.Tanh, self._heads) if layers else None  # type: ignore[arg-type]
        self._apply, self._back = _APPLY[activation], _GRADIENT[activation]
        self._gradient = torch.empty(0)  # of all of them, and each layer's part of it; the heads are one layer
        self._parts: list[tuple[Tensor, Tensor, int]] = []  # weights, biases, rows that are few
        self._grads: list[tuple[nn.Parameter, Tensor]] = []

    def values(self, x: Tensor) -> Tensor:
        """Rows ``[N, inputs]`` to what comes out of the heads ``[N, outputs]``. Call it outside autograd."""
        if self.few is not None and are_few(x):
            return self.few(x)
        return self.forward(x)[-1]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Rows ``[N, inputs]`` to what goes into each layer, and at last what comes out of the heads ``[N, outputs]``.
        Call it outside autograd."""
        kept = [x]
        for weight, bias in self._layers:
            kept.append(self._apply(F.linear(kept[-1], weight, bias)))
        # output by output in memory, which is how losses read them
        kept.append(torch.addmm(self._joined(1)[:, None], self._joined(0), kept[-1].t()).t())
        return kept

    def differentiable(self, x: Tensor) -> tuple[Tensor, Backward]:
        """What comes out of the heads, outside autograd, and ``backward`` of it."""
        with torch.no_grad():
            kept = self.forward(x)
        return kept[-1], partial(self.backward, kept)

    @torch.no_grad()
    def backward(self, kept: list[Tensor], gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter, given ``forward``'s result and the loss's gradient by its output. Returns
        all of them as one vector; it and they are valid until the next call."""
        if not self._parts or self._gradient.device != gradient.device:
            self._make()
        weights, rows = [weight for weight, _ in self._layers] + [self._joined(0)], len(gradient)
        for i in reversed(range(len(weights))):
            (by_weight, by_bias, few), x = self._parts[i], kept[i]
            if rows > few:
                by_weight.copy_(x.t().mm(gradient).t())
            else:
                torch.mm(gradient.t(), x, out=by_weight)
            torch.sum(gradient, 0, out=by_bias)
            if i:
                gradient = self._back(gradient.mm(weights[i]), x)
        for parameter, grad in self._grads:
            parameter.grad = grad
        return self._gradient

    @torch.no_grad()
    def backward_to_input(self, kept: list[Tensor], gradient: Tensor, last: int) -> Tensor:
        """The loss's gradient by the ``last`` columns of the input ``[N, last]``, given ``forward``'s result and the
        gradient by its output; none of the parameters."""
        weights = [weight for weight, _ in self._layers] + [self._joined(0)]
        for i in reversed(range(1, len(weights))):
            gradient = self._back(gradient.mm(weights[i]), kept[i])
        return gradient.mm(weights[0][:, -last:])

    def _joined(self, which: int) -> Tensor:
        """Weights (0) or biases (1) of the heads."""
        return self._heads[0][which] if len(self._heads) == 1 else torch.cat([head[which] for head in self._heads])

    def _make(self) -> None:
        groups = [[layer] for layer in self._layers] + [self._heads]
        self._gradient = groups[0][0][0].new_zeros(sum(p.numel() for group in groups for layer in group for p in layer))
        self._parts, self._grads, at = [], [], 0
        for group in groups:  # weights of all in the group, then their biases
            parts = []
            for parameters in zip(*group, strict=True):
                begin = at
                for parameter in parameters:
                    part = self._gradient[at : at + parameter.numel()]
                    self._grads.append((parameter, part.view(parameter.shape)))
                    at += parameter.numel()
                parts.append(self._gradient[begin:at].view(-1, *parameters[0].shape[1:]))
            self._parts.append((parts[0], parts[1], TALL * parts[0].shape[1]))
