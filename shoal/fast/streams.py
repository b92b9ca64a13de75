"""A perceptron under a head of streams, noisy or plain (``nets.ReturnHead``), outside of autograd: its gradient by
hand, as that of ``Perceptron``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SCALE = 1 / math.sqrt(2)  # of a dueling head's gradient into the torso, as in ``nets.ReturnHead``
_by_relu = torch.ops.aten.threshold_backward.default


class Used(NamedTuple):
    """In a layer's forward pass: what went in, the weights it was multiplied with, and their noise and the biases'
    (None: plain, or each row had noise of its own)."""

    x: Tensor
    weight: Tensor
    noise: tuple[Tensor, Tensor] | None = None


class Layer:
    """A linear layer; a noisy one (``nets.NoisyLinear``) has four parameters. They stay the network's own when both
    are copied. grads: where ``backward`` writes their gradients."""

    def __init__(self, layer: nn.Linear) -> None:
        self.parameters = list(layer.parameters())
        self.grads: list[Tensor] = []

    def forward(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, Used]:
        """x: [N, inputs]; noise: the next is a noisy layer's, as ``nets.NoisyLinear`` takes it."""
        weight, bias, *sigmas = self.parameters
        if not sigmas or (drawn := next(noise, None)) is None:
            return F.linear(x, weight, bias), Used(x, weight)
        into, out = drawn[..., : weight.shape[1]], drawn[..., weight.shape[1] :]
        if drawn.ndim == 2:
            return F.linear(x, weight, bias).addcmul_(out, F.linear(x * into, *sigmas)), Used(x, weight)
        both = torch.outer(out, into)
        noisy = torch.addcmul(weight, sigmas[0], both)
        return F.linear(x, noisy, torch.addcmul(bias, sigmas[1], out)), Used(x, noisy, (both, out))

    def backward(self, used: Used, gradient: Tensor) -> None:
        """Set ``grad`` of the parameters, given the loss's gradient by what ``forward`` returned."""
        torch.mm(gradient.t(), used.x, out=self.grads[0])
        torch.sum(gradient, 0, out=self.grads[1])
        if used.noise is not None:
            torch.mul(self.grads[0], used.noise[0], out=self.grads[2])
            torch.mul(self.grads[1], used.noise[1], out=self.grads[3])
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad


class Streams:
    """A torso, then one stream, or an advantage and a value stream that are dueling. shape: [actions, atoms]."""

    def __init__(self, torso: Sequence[nn.Linear], streams: Sequence[Sequence[nn.Linear]], shape: tuple[int, int]):
        self._torso = [Layer(layer) for layer in torso]
        self._streams = [[Layer(layer) for layer in stream] for stream in streams]
        self._shape = shape
        self._gradient = torch.empty(0)  # of all of them

    def forward(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, list[list[Used]]]:
        """Rows ``[N, inputs]`` to ``[N, actions, atoms]``, and what ``backward`` needs. Call it outside autograd."""
        used: list[list[Used]] = [[] for _ in range(1 + len(self._streams))]
        for layer in self._torso:
            x, one = layer.forward(x, noise)
            x = torch.relu_(x)
            used[0].append(one)
        ends = []
        for stream, kept in zip(self._streams, used[1:], strict=True):
            y = x
            for i, layer in enumerate(stream):
                y, one = layer.forward(torch.relu_(y) if i else y, noise)
                kept.append(one)
            ends.append(y)
        described = ends[0].view(-1, *self._shape)
        if len(ends) > 1:  # ops.dueling
            described += (ends[1] - described.mean(1)).unsqueeze(1)
        return described, used

    def differentiable(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """What comes out, outside autograd, and ``backward`` of it."""
        with torch.no_grad():
            described, used = self.forward(x, noise)
        return described, partial(self.backward, used)

    @torch.no_grad()
    def backward(self, used: list[list[Used]], gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter, given what ``forward`` used and the loss's gradient by its output. Returns
        all of them as one vector; it and they are valid until the next call."""
        if not len(self._gradient) or self._gradient.device != gradient.device:
            self._make(gradient)
        ends = [gradient.flatten(1)]
        if len(self._streams) > 1:
            value = gradient.sum(1)
            ends = [(gradient - (value / self._shape[0]).unsqueeze(1)).flatten(1), value]
        by_x = [
            _down(stream, kept, end, bool(self._torso))
            for stream, kept, end in zip(self._streams, used[1:], ends, strict=True)
        ]
        if self._torso:
            _down(self._torso, used[0], by_x[0] if len(by_x) == 1 else (by_x[0] + by_x[1]).mul_(SCALE), False)
        return self._gradient

    def _make(self, like: Tensor) -> None:
        layers = [layer for layers in (self._torso, *self._streams) for layer in layers]
        self._gradient, at = like.new_zeros(sum(p.numel() for layer in layers for p in layer.parameters)), 0
        for layer in layers:
            layer.grads = []
            for p in layer.parameters:
                layer.grads.append(self._gradient[at : at + p.numel()].view(p.shape))
                at += p.numel()


def _down(layers: Sequence[Layer], used: Sequence[Used], gradient: Tensor, further: bool) -> Tensor:
    """Set ``grad`` of the layers, given the gradient by what came out of the last; with ``further``, what went into the
    first came out of a relu, and the gradient by its argument is returned."""
    for i in reversed(range(len(layers))):
        layers[i].backward(used[i], gradient)
        if i or further:
            gradient = _by_relu(gradient.mm(used[i].weight), used[i].x, 0)
    return gradient
