"""A perceptron outside autograd with a hand-written gradient. In a small network, autograd, module calls and memory
allocation take much of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.fast.small_batch import SmallBatchPerceptron, is_small_batch

# Propagates a loss's gradient with respect to some values to the parameters' ``grad``; returns all of them if they are
# one vector
Backward = Callable[[Tensor], Tensor | None]

_GRADIENT: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {  # as a function of the activation's output
    nn.ReLU: lambda gradient, y: torch.ops.aten.threshold_backward.default(gradient, y, 0),
    nn.Tanh: torch.ops.aten.tanh_backward.default,
}
_APPLY: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {nn.ReLU: torch.relu_, nn.Tanh: torch.tanh_}
ACTIVATIONS = tuple(_APPLY)


TALL = 128  # rows per input from which the transposed product is the faster gradient


class Pass(NamedTuple):
    """Intermediate results of a forward pass with output ``out [N, outputs]``: ``inputs`` of each layer and of the
    heads; input, mean and 1 / standard deviation of each layer norm."""

    inputs: list[Tensor]
    normed: list[tuple[Tensor, Tensor, Tensor]]
    out: Tensor


class Perceptron:
    """Linear layers with (a layer norm and) the same activation after each, then one or more linear heads side by side.

    layers, heads, norms: modules of the network, which copies of both keep sharing; either every layer has a norm or
    none. activation: one of ``ACTIVATIONS``.
    """

    def __init__(
        self, layers: Sequence[nn.Linear], activation: type[nn.Module], heads: Sequence[nn.Linear],
        norms: Sequence[nn.LayerNorm] = (),
    ) -> None:  # fmt: skip
        modules = zip(layers, norms, strict=True) if norms else zip(layers)
        self._layers = [[p for module in together for p in (module.weight, module.bias)] for together in modules]
        self._heads = [[head.weight, head.bias] for head in heads]
        # on the meta device tensors have no memory
        plain = bool(layers) and not norms and layers[0].weight.device.type != "meta"
        self.small_batch = SmallBatchPerceptron(self._layers, activation is nn.Tanh, self._heads) if plain else None  # type: ignore[arg-type]
        self._epsilons = [norm.eps for norm in norms]
        self._apply, self._back = _APPLY[activation], _GRADIENT[activation]
        # gradient of all parameters, and each layer's part of it; the heads count as one layer
        self._gradient = torch.empty(0)
        self._parts: list[list[Tensor]] = []  # weights and biases of the layer, and of its norm
        self._grads: list[tuple[nn.Parameter, Tensor]] = []

    def values(self, x: Tensor) -> Tensor:
        """Return the outputs of the heads ``[N, outputs]`` for rows ``[N, inputs]``. Call it outside autograd."""
        if self.small_batch is not None and is_small_batch(x):
            return self.small_batch(x)
        return self.forward(x).out

    def forward(self, x: Tensor) -> Pass:
        """Return the outputs of the heads and the intermediate results for ``backward``, for rows ``[N, inputs]``. Call
        it outside autograd."""
        inputs, normed = [x], []
        for i, (weight, bias, *norm) in enumerate(self._layers):
            y = F.linear(inputs[-1], weight, bias)
            if norm:
                before = y
                y, mean, scale = torch.native_layer_norm(y, y.shape[-1:], norm[0], norm[1], self._epsilons[i])
                normed.append((before, mean, scale))
            inputs.append(self._apply(y))
        # stored output by output, which is how losses read them
        return Pass(inputs, normed, torch.addmm(self._joined(1)[:, None], self._joined(0), inputs[-1].t()).t())

    def differentiable(self, x: Tensor) -> tuple[Tensor, Backward]:
        """Return the outputs of the heads, computed outside autograd, and the function that propagates their
        gradient."""
        with torch.no_grad():
            kept = self.forward(x)
        return kept.out, partial(self.backward, kept)

    @torch.no_grad()
    def backward(self, kept: Pass, gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter and return all gradients as one vector, which is valid until the next call.
        kept: the result of ``forward``; gradient: of the loss with respect to the outputs."""
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
        """Return the gradient with respect to the ``last`` columns of the input, ``[N, last]``. kept: the result of
        ``forward``; gradient: of the loss with respect to the outputs. Parameters get no gradient."""
        weights = self._weights()
        for i in reversed(range(len(weights))):
            if i < len(kept.normed):
                gradient, *_ = self._through_norm(kept, i, gradient, [True, False, False])
            if i:
                gradient = self._back(gradient.mm(weights[i]), kept.inputs[i])
        return gradient.mm(weights[0][:, -last:])

    def _through_norm(self, kept: Pass, i: int, gradient: Tensor, which: list[bool]) -> tuple[Tensor, ...]:
        """Return the gradient with respect to the input, the weight and the bias of norm ``i``, as far as ``which``
        selects them."""
        x, *moments = kept.normed[i]
        back = torch.ops.aten.native_layer_norm_backward.default
        return cast(tuple[Tensor, ...], back(gradient, x, x.shape[-1:], *moments, *self._layers[i][2:], which))

    def _weights(self) -> list[Tensor]:
        """Return the weights of each layer, and of all heads as one layer."""
        return [layer[0] for layer in self._layers] + [self._joined(0)]

    def _joined(self, which: int) -> Tensor:
        """Return the weights (0) or biases (1) of all heads, joined."""
        return self._heads[0][which] if len(self._heads) == 1 else torch.cat([head[which] for head in self._heads])

    def _make(self) -> None:
        groups = [[layer] for layer in self._layers] + [self._heads]
        self._gradient = groups[0][0][0].new_zeros(sum(p.numel() for group in groups for layer in group for p in layer))
        self._parts, self._grads, at = [], [], 0
        for group in groups:  # weights of all modules in the group, then their biases
            parts = []
            for parameters in zip(*group, strict=True):
                begin = at
                for parameter in parameters:
                    part = self._gradient[at : at + parameter.numel()]
                    self._grads.append((parameter, part.view(parameter.shape)))
                    at += parameter.numel()
                parts.append(self._gradient[begin:at].view(-1, *parameters[0].shape[1:]))
            self._parts.append(parts)
