"""A perceptron outside autograd, its gradient worked out by hand: at the batches of value learning most of a small
network's time goes into autograd and the calls of modules. An update of 64 transitions on 128-128 units takes 445 us
in its place instead of 690, with the same numbers (docs/performance.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.nets.encoder import Encoder
from shoal.nets.heads import QHead


class Perceptron:
    """Linear layers with a ReLU between them; ``layers`` are the network's own, and stay so when both are copied."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = [(layer.weight, layer.bias) for layer in layers]
        self._gradient = torch.empty(0)  # of all of them, and each one's part of it
        self._parts: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def of(cls, encoder: Encoder, head: nn.Module) -> Perceptron | None:
        """The same function of ``encoder.vector``; None if they are more than linear layers and ReLUs."""
        if encoder.own is not None or encoder.images or not isinstance(head, QHead):
            return None
        chain = [*encoder.mlp.children(), head.linear]
        linear = [m for m in chain if isinstance(m, nn.Linear)]
        kinds = [nn.Linear, nn.ReLU] * (len(linear) - 1) + [nn.Linear]
        return cls(linear) if [type(m) for m in chain] == kinds else None

    def forward(self, x: Tensor) -> list[Tensor]:
        """Rows ``[N, inputs]`` to what goes into each layer, and at last what comes out. Call it outside autograd."""
        kept = [x]
        for weight, bias in self._layers[:-1]:
            kept.append(F.linear(kept[-1], weight, bias).relu_())
        kept.append(F.linear(kept[-1], *self._layers[-1]))
        return kept

    @torch.no_grad()
    def backward(self, kept: list[Tensor], gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter, given ``forward``'s result and the loss's gradient by its output. Returns
        all of them as one vector; it and they are valid until the next call."""
        if not self._parts or self._gradient.device != gradient.device:
            self._make()
        for i in reversed(range(len(self._layers))):
            (weight, bias), (by_weight, by_bias), x = self._layers[i], self._parts[i], kept[i]
            torch.mm(gradient.t(), x, out=by_weight)
            torch.sum(gradient, 0, out=by_bias)
            weight.grad, bias.grad = by_weight, by_bias
            if i:
                gradient = torch.ops.aten.threshold_backward.default(gradient.mm(weight), x, 0)
        return self._gradient

    def _make(self) -> None:
        tensors = [tensor for layer in self._layers for tensor in layer]
        sizes = [t.numel() for t in tensors]
        self._gradient = tensors[0].new_zeros(sum(sizes))
        parts = [part.view(t.shape) for part, t in zip(self._gradient.split(sizes), tensors, strict=True)]
        self._parts = list(zip(parts[::2], parts[1::2], strict=True))
