"""Noisy linear layers, and a head of noisy or plain layers that outputs values or distributions of returns.

The caller draws the noise, one vector of standard normals for all layers of a head. Networks thus have no hidden random
state, a batch can hold a different vector for each row, and copies of a network in other processes use the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.fast.rounded import may_round
from shoal.fast.streams import Streams
from shoal.nets.encoder import Encoder
from shoal.nets.heads import scale_gradient
from shoal.nets.precision import full
from shoal.ops import dueling

MAX_UNFUSED_ROWS = 64
"""Largest number of rows that are multiplied with mean and noise separately instead of forming a layer's noisy
weights."""


class NoisyLinear(nn.Linear):
    """Noisy linear layer with factorised Gaussian noise: weight ``mu + sigma * noise`` (Fortunato et al. 2018, section
    3 (b)). ``mu`` (the layer's ``weight`` and ``bias``) starts uniform within ±1/sqrt(p), and each ``sigma`` at ``sigma
    / sqrt(p)``, for p inputs."""

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5):
        super().__init__(inputs, outputs)
        bound = 1.0 / math.sqrt(inputs)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)
        self.sigma_weight = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.sigma_bias = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.normals = inputs + outputs

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return outputs [B, q] for x [B, p].

        noise: p + q normals transformed by ``scale_noise``, [p + q], or [B, p + q] with different noise for each row;
        None: the mean weights.

        Rows that share their noise are multiplied with the noisy weights. If each row has its own noise, or if few rows
        make it faster, these weights are not formed: ``f(out) * (sigma_weight (f(in) * x) + sigma_bias)`` is the same.
        """
        if noise is None:
            return F.linear(x, self.weight, self.bias)
        noise = noise.to(self.weight.dtype)
        into, out = noise[..., : self.in_features], noise[..., self.in_features :]
        cheap = not torch.is_grad_enabled() or noise.dtype == torch.bfloat16  # two products would need a gradient each
        if noise.ndim == 1 and (len(x) > MAX_UNFUSED_ROWS or not cheap):
            weight = torch.addcmul(self.weight, self.sigma_weight, torch.outer(out, into))
            return F.linear(x, weight, torch.addcmul(self.bias, self.sigma_bias, out))
        return F.linear(x, self.weight, self.bias) + out * F.linear(x * into, self.sigma_weight, self.sigma_bias)


class Stream(nn.ModuleList):
    """One stream of a head: features [B, F] -> [B, outputs] (float32), by a hidden layer and a relu (none if ``hidden``
    is 0) and a linear layer. sigma: initial noise of both layers; None: plain layers."""

    def __init__(self, features: int, outputs: int, hidden: int, sigma: float | None):
        sizes = (features, hidden, outputs) if hidden else (features, outputs)
        pairs = list(pairwise(sizes))
        super().__init__(nn.Linear(p, q) if sigma is None else NoisyLinear(p, q, sigma) for p, q in pairs)
        for layer in list(self)[:-1]:
            may_round(layer)

    def forward(self, x: Tensor, noise: Iterator[Tensor]) -> Tensor:
        """Return outputs [B, outputs]. noise: yields the noise of each noisy layer in turn; if exhausted, mean weights
        are used."""
        *inner, last = self
        for layer in inner:  # in the torso's precision, as if they were its last layers
            x = F.relu(_apply(layer, x, noise))
        with full(x.device):
            return _apply(last, x.float(), noise)


def _apply(layer: nn.Module, x: Tensor, noise: Iterator[Tensor]) -> Tensor:
    y: Tensor = layer(x, next(noise, None)) if isinstance(layer, NoisyLinear) else layer(x)
    return y


class ReturnHead(nn.Module):
    """Return head: features [B, F] -> [B, actions, atoms], numbers that describe each action's return, such as logits
    or quantiles.

    dueling: two streams; for each atom, the mean of the advantages over the actions is subtracted, and the gradient
    into the torso is scaled by 1/sqrt(2) (Wang et al. 2016; Hessel et al. 2018, "The Integrated Agent"). hidden: units
    of each stream's hidden layer, 0: none. sigma: initial noise of all layers (Fortunato et al. 2018), None: no noise.
    """

    def __init__(
        self, features: int, actions: int, atoms: int = 1, *, dueling: bool = False, hidden: int = 512,
        sigma: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = (actions, atoms)
        self.advantage = Stream(features, actions * atoms, hidden, sigma)
        self.value = Stream(features, atoms, hidden, sigma) if dueling else None
        self.sizes = [layer.normals for layer in self.modules() if isinstance(layer, NoisyLinear)]
        self.normals = sum(self.sizes)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return [B, actions, atoms]. noise: transformed normals, [normals], or [B, normals] with different noise for
        each row; None: the mean weights."""
        parts = self.parts(noise)
        if self.value is None:
            return self.advantage(x, parts).unflatten(-1, self.shape)  # type: ignore[no-any-return]
        x = scale_gradient(x, 1 / math.sqrt(2))
        advantage = self.advantage(x, parts).unflatten(-1, self.shape)
        return dueling(self.value(x, parts).unsqueeze(-2), advantage, -2)

    def parts(self, noise: Tensor | None) -> Iterator[Tensor]:
        """Yield the noise of each noisy layer."""
        return iter(torch.split(noise, self.sizes, -1) if noise is not None and self.sizes else ())

    def streams(self, encoder: Encoder) -> Streams | None:
        """Return a compiled version of this head behind ``encoder.vector`` that computes outside autograd, or None if
        the encoder has other parts than linear layers and relus or compiled code is turned off."""
        chain = encoder.chain()
        if chain is None or chain[1] is not nn.ReLU:
            return None
        streams = [self.advantage] if self.value is None else [self.advantage, self.value]
        return Streams(chain[0], [cast(list[nn.Linear], list(stream)) for stream in streams], self.shape)
