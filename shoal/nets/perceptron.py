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

    @classmethod
    def of(cls, encoder: Encoder, head: nn.Module) -> Perceptron | None:
        """The same function of ``encoder.vector``; None if they are more than linear layers and ReLUs."""
        if encoder.own is not None or encoder.images or not isinstance(head, QHead):
            return None
        chain = [*encoder.mlp.children(), head.linear]
        linear = [m for m in chain if isinstance(m, nn.Linear)]
        kinds = [nn.Linear, nn.ReLU] * (len(linear) - 1) + [nn.Linear]
        return cls(linear) if [type(m) for m in chain] == kinds else None

    @torch.no_grad()
    def forward(self, x: Tensor) -> list[Tensor]:
        """Rows ``[N, inputs]`` to what goes into each layer, and at last what comes out."""
        kept = [x]
        for weight, bias in self._layers[:-1]:
            kept.append(F.linear(kept[-1], weight, bias).relu_())
        kept.append(F.linear(kept[-1], *self._layers[-1]))
        return kept

    @torch.no_grad()
    def backward(self, kept: list[Tensor], gradient: Tensor) -> None:
        """Set ``grad`` of every parameter, given ``forward``'s result and the loss's gradient by its output."""
        for (weight, bias), x in zip(reversed(self._layers), reversed(kept[:-1]), strict=True):
            weight.grad, bias.grad = gradient.t().mm(x), gradient.sum(0)
            if x is not kept[0]:
                gradient = torch.ops.aten.threshold_backward.default(gradient.mm(weight), x, 0)
