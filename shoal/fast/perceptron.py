"""A perceptron outside of autograd, its gradient worked out by hand: much of a small network's time goes into
autograd, the calls of modules and the memory that they take anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

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


class Pass(NamedTuple):
    """What a gradient needs to know of values ``out [N, outputs]``: ``inputs`` of each layer and of the heads; of each
    layer norm its input, and this one's mean and 1 / standard deviation."""

    inputs: list[Tensor]
    normed: list[tuple[Tensor, Tensor, Tensor]]
    out: Tensor


class Perceptron:
    """Linear layers with (a layer norm and) the same activation after each, then one or more linear heads side by side.

    layers, heads, norms: the network's own, which they stay when both are copied; a norm of each layer, or none at all.
    activation: one of ``ACTIVATIONS``.
    """

    def __init__(
        self, layers: Sequence[nn.Linear], activation: type[nn.Module], heads: Sequence[nn.Linear],
        norms: Sequence[nn.LayerNorm] = (),
    ) -> None:  # fmt: skip
        modules = zip(layers, norms, strict=True) if norms else zip(layers)
        self._layers = [[p for module in together for p in (module.weight, module.bias)] for together in modules]
        self._heads = [[head.weight, head.bias] for head in heads]
        plain = bool(layers) and not norms and layers[0].weight.device.type != "meta"  # where nothing takes memory
        self.few = FewRows(self._layers, activation is nn.Tanh, self._heads) if plain else None  # type: ignore[arg-type]
        self._epsilons = [norm.eps for norm in norms]
        self._apply, self._back = _APPLY[activation], _GRADIENT[activation]
        self._gradient = torch.empty(0)  # of all of them, and each layer's part of it; the heads are one layer
        self._parts: list[list[Tensor]] = []  # weights and biases, and those of the norm
        self._grads: list[tuple[nn.Parameter, Tensor]] = []

    def values(self, x: Tensor) -> Tensor:
        """Rows ``[N, inputs]`` to what comes out of the heads ``[N, outputs]``. Call it outside autograd."""
        if self.few is not None and are_few(x):
            return self.few(x)
        return self.forward(x).out

    def forward(self, x: Tensor) -> Pass:
        """Rows ``[N, inputs]`` to what comes out of the heads, and what ``backward`` needs. Call it outside
        autograd."""
        inputs, normed = [x], []
        for i, (weight, bias, *norm) in enumerate(self._layers):
            y = F.linear(inputs[-1], weight, bias)
            if norm:
                before = y
                y, mean, scale = torch.native_layer_norm(y, y.shape[-1:], norm[0], norm[1], self._epsilons[i])
                normed.append((before, mean, scale))
            inputs.append(self._apply(y))
        # output by output in memory, which is how losses read them
        return Pass(inputs, normed, torch.addmm(self._joined(1)[:, None], self._joined(0), inputs[-1].t()).t())

    def differentiable(self, x: Tensor) -> tuple[Tensor, Backward]:
        """Compute the outputs of the heads outside autograd, and ``backward`` of them."""
        with torch.no_grad():
            kept = self.forward(x)
        return kept.out, partial(self.backward, kept)

    @torch.no_grad()
    def backward(self, kept: Pass, gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter, given ``forward``'s result and the loss's gradient by its output. Returns
        all of them as one vector; it and they are valid until the next call."""
        if not self._parts or self._gradient.device != gradient.device:
            self._make()
        weights, rows = self._weights(), len(gradient)
        for i in reversed(range(len(weights))):
            (by_weight, by_bias, *by_norm), x = self._parts[i], kept.inputs[i]
            if i < len(kept.normed):
                gradient, *found = self._through_norm(kept, i, gradient, [True, True, True])
                for part, grad in zip(by_norm, found, strict=True):
                    part.copy_(grad)
            if rows > TALL * by_weight.shape[1]:
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
    def backward_to_input(self, kept: Pass, gradient: Tensor, last: int) -> Tensor:
        """The loss's gradient by the ``last`` columns of the input ``[N, last]``, given ``forward``'s result and the
        gradient by its output; none of the parameters."""
        weights = self._weights()
        for i in reversed(range(len(weights))):
            if i < len(kept.normed):
                gradient, *_ = self._through_norm(kept, i, gradient, [True, False, False])
            if i:
                gradient = self._back(gradient.mm(weights[i]), kept.inputs[i])
        return gradient.mm(weights[0][:, -last:])

    def _through_norm(self, kept: Pass, i: int, gradient: Tensor, which: list[bool]) -> tuple[Tensor, ...]:
        """The gradient by what goes into norm ``i``, by its weight and by its bias; of these, ``which``."""
        x, *moments = kept.normed[i]
        back = torch.ops.aten.native_layer_norm_backward.default
        return cast(tuple[Tensor, ...], back(gradient, x, x.shape[-1:], *moments, *self._layers[i][2:], which))

    def _weights(self) -> list[Tensor]:
        """Of each layer, and of all heads."""
        return [layer[0] for layer in self._layers] + [self._joined(0)]

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
            self._parts.append(parts)
