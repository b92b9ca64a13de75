"""A perceptron with a head of streams, noisy or plain (``nets.ReturnHead``), outside autograd with a hand-written
gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SCALE = 1 / math.sqrt(2)  # scale of a dueling head's gradient into the torso, as in ``nets.ReturnHead``
_by_relu = torch.ops.aten.threshold_backward.default


class Used(NamedTuple):
    """Intermediate results of a layer's forward pass: its input, the weights it was multiplied with, and the noise of
    weights and biases (None: a plain layer, or each row had its own noise)."""

    x: Tensor
    weight: Tensor
    noise: tuple[Tensor, Tensor] | None = None


class Layer:
    """A linear layer, or a noisy one (``nets.NoisyLinear``) with four parameters. The modules are the network's own,
    also in a copy of both. grads: where ``backward`` writes their gradients."""

    def __init__(self, layer: nn.Module) -> None:
        self.parameters = list(layer.parameters())
        self.grads: list[Tensor] = []

    def forward(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, Used]:
        """Return outputs and intermediate results for x [N, inputs]. noise: yields the noise of a noisy layer, as
        ``nets.NoisyLinear`` takes it."""
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
        """Set ``grad`` of the parameters, given the gradient of the loss with respect to the output of ``forward``."""
        torch.mm(gradient.t(), used.x, out=self.grads[0])
        torch.sum(gradient, 0, out=self.grads[1])
        if used.noise is not None:
            torch.mul(self.grads[0], used.noise[0], out=self.grads[2])
            torch.mul(self.grads[1], used.noise[1], out=self.grads[3])
        self.set_grads()

    def set_grads(self) -> None:
        """Make ``grads`` the parameters' ``grad``."""
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad


class Streams:
    """A torso followed by one stream, or by an advantage and a value stream (dueling). shape: [actions, atoms]."""

    def __init__(self, torso: Sequence[nn.Linear], streams: Sequence[Sequence[nn.Linear]], shape: tuple[int, int]):
        self._torso = [Layer(layer) for layer in torso]
        self._streams = [[Layer(layer) for layer in stream] for stream in streams]
        self._shape = shape
        self.layers = [layer for layers in (self._torso, *self._streams) for layer in layers]
        self._gradient = torch.empty(0)  # of all parameters

    def forward(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, list[list[Used]]]:
        """Return outputs ``[N, actions, atoms]`` and the intermediate results for ``backward``, for rows ``[N,
        inputs]``. Call it outside autograd."""
        features, used = self.features(x, noise)
        described, further = self.described(features, noise)
        return described, [used, *further]

    def features(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, list[Used]]:
        """Return the torso's features and intermediate results, the first half of ``forward``."""
        used = []
        for layer in self._torso:
            x, one = layer.forward(x, noise)
            x = torch.relu_(x)
            used.append(one)
        return x, used

    def described(self, x: Tensor, noise: Iterator[Tensor]) -> tuple[Tensor, list[list[Used]]]:
        """Return the outputs of the streams and intermediate results for features, the second half of ``forward``."""
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
        """Return the outputs, computed outside autograd, and the function that propagates their gradient."""
        with torch.no_grad():
            described, used = self.forward(x, noise)
        return described, partial(self.backward, used)

    @torch.no_grad()
    def backward(self, used: list[list[Used]], gradient: Tensor) -> Tensor:
        """Set ``grad`` of every parameter and return all gradients as one vector, which is valid until the next call.
        used: the results of ``forward``; gradient: of the loss with respect to the outputs."""
        if not len(self._gradient) or self._gradient.device != gradient.device:
            self._gradient = side_by_side(self.layers, gradient)
        by_features = self.back_to_features(used[1:], gradient, bool(self._torso))
        self.back_to_input(used[0], used[1][0].x, by_features)
        return self._gradient

    def back_to_features(self, used: list[list[Used]], gradient: Tensor, further: bool) -> Tensor:
        """Set ``grad`` of the streams. With ``further``, return the gradient with respect to the features."""
        ends = [gradient.flatten(1)]
        if len(self._streams) > 1:
            value = gradient.sum(1)
            ends = [(gradient - (value / self._shape[0]).unsqueeze(1)).flatten(1), value]
        by_x = [_down(*each, further) for each in zip(self._streams, used, ends, strict=True)]
        return (by_x[0] + by_x[1]).mul_(SCALE) if further and len(by_x) > 1 else by_x[0]

    def back_to_input(self, used: list[Used], features: Tensor, gradient: Tensor) -> None:
        """Set ``grad`` of the torso, given its features and the gradient of the loss with respect to them."""
        if self._torso:
            _down(self._torso, used, _by_relu(gradient, features, 0), False)


def side_by_side(layers: Sequence[Layer], like: Tensor) -> Tensor:
    """Allocate one vector for the gradients of the layers, give each layer its part, and return the vector."""
    joined, at = like.new_zeros(sum(p.numel() for layer in layers for p in layer.parameters)), 0
    for layer in layers:
        layer.grads = []
        for p in layer.parameters:
            layer.grads.append(joined[at : at + p.numel()].view(p.shape))
            at += p.numel()
    return joined


def _down(layers: Sequence[Layer], used: Sequence[Used], gradient: Tensor, further: bool) -> Tensor:
    """Set ``grad`` of layers that have a relu between them, given the gradient with respect to the last one's output.
    With ``further``, return the gradient with respect to the first one's input."""
    for i in reversed(range(len(layers))):
        layers[i].backward(used[i], gradient)
        if i or further:
            gradient = gradient.mm(used[i].weight)
        if i:
            gradient = _by_relu(gradient, used[i].x, 0)
    return gradient
