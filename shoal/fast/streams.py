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

    def __init__(self, layer: nn.Module) -> None:
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
        self.set_grads()

    def set_grads(self) -> None:
        """What is written in ``grads`` is the parameters' ``grad``."""
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad


class Streams:
    """A torso, then one stream, or an advantage and a value stream that are dueling. shape: [actions, atoms]."""

    def __init__(self, torso: Sequence[nn.Linear], streams: Sequence[Sequence[nn.Linear]], shape: tuple[int, int]):
        self._torso = [Layer(layer) for layer in torso]
        self._streams = [[Layer(layer) for layer in stream] for stream in streams]
        self._shape = shape
        self.layers = [layer for layers in (self._torso, *self._streams) for layer in layers]
        self._gradient = torch.empty(0)  # of all of them

    def forward(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, list[list[Used]]]:
        """Rows ``[N, inputs]`` to ``[N, actions, atoms]``, and what ``backward`` needs. Call it outside autograd."""
        features, used = self.features(x, noise)
        described, further = self.described(features, noise)
        return described, [used, *further]

    def features(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, list[Used]]:
        """The first half of ``forward``: what comes out of the torso."""
        used = []
        for layer in self._torso:
            x, one = layer.forward(x, noise)
            x = torch.relu_(x)
            used.append(one)
        return x, used

    def described(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, list[list[Used]]]:
        """The second half of ``forward``: what the streams make of features."""
        ends, used = [], []
        for stream in self._streams:
            y, kept = x, []
            for i, layer in enumerate(stream):
                y, one = layer.forward(torch.relu_(y) if i else y, noise)
                kept.append(one)
            ends.append(y)
            used.append(kept)
        described = ends[0].view(-1, *self._shape)
        if len(ends) > 1:  # ops.dueling
            described += (ends[1] - described.mean(1)).unsqueeze(1)
        return described, used

    def differentiable(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Compute the outputs outside autograd, and ``backward`` of them."""
        with torch.no_grad():
            described, used = self.forward(x, noise)
        return described, partial(self.backward, used)

    @torch.no_grad()
    def backward(self, used: list[list[Used]], gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter, given what ``forward`` used and the loss's gradient by its output. Returns
        all of them as one vector; it and they are valid until the next call."""
        if not len(self._gradient) or self._gradient.device != gradient.device:
            self._gradient = side_by_side(self.layers, gradient)
        by_features = self.back_to_features(used[1:], gradient, bool(self._torso))
        self.back_to_input(used[0], used[1][0].x, by_features)
        return self._gradient

    def back_to_features(self, used: list[list[Used]], gradient: Tensor, further: bool) -> Tensor:
        """Set ``grad`` of the streams; with ``further``, the gradient by the features is returned."""
        ends = [gradient.flatten(1)]
        if len(self._streams) > 1:
            value = gradient.sum(1)
            ends = [(gradient - (value / self._shape[0]).unsqueeze(1)).flatten(1), value]
        by_x = [_down(*each, further) for each in zip(self._streams, used, ends, strict=True)]
        return (by_x[0] + by_x[1]).mul_(SCALE) if further and len(by_x) > 1 else by_x[0]

    def back_to_input(self, used: list[Used], features: Tensor, gradient: Tensor) -> None:
        """Set ``grad`` of the torso, given its features and the loss's gradient by them."""
        if self._torso:
            _down(self._torso, used, _by_relu(gradient, features, 0), False)


def side_by_side(layers: Sequence[Layer], like: Tensor) -> Tensor:
    """Give layers memory for their gradients, which together are the vector that is returned."""
    joined, at = like.new_zeros(sum(p.numel() for layer in layers for p in layer.parameters)), 0
    for layer in layers:
        layer.grads = []
        for p in layer.parameters:
            layer.grads.append(joined[at : at + p.numel()].view(p.shape))
            at += p.numel()
    return joined


def _down(layers: Sequence[Layer], used: Sequence[Used], gradient: Tensor, further: bool) -> Tensor:
    """Set ``grad`` of layers with a relu between each and the next, given the gradient by what came out of the last;
    with ``further``, the gradient by what went into the first is returned."""
    for i in reversed(range(len(layers))):
        layers[i].backward(used[i], gradient)
        if i or further:
            gradient = gradient.mm(used[i].weight)
        if i:
            gradient = _by_relu(gradient, used[i].x, 0)
    return gradient
