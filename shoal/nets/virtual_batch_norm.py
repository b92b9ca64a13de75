"""Virtual batch normalisation: layers are normalised by the statistics of one reference batch that is fixed at the
start."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from shoal.api import UsageError
from shoal.nets.encoder import Encoder
from shoal.nets.torsos import ImageTorso


class VirtualBatchNorm(nn.Module):
    """Normalises each of ``features`` channels (axis 1) by the ``mean`` and ``var`` of a reference batch, which
    ``refer`` sets, and then applies a learned scale and shift.

    Salimans et al. 2016, section 3.5. In evolution strategies (Salimans et al. 2017, section 2.2), without it small
    perturbations of the weights might not change any action.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, features: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.epsilon, self.refers = epsilon, False

    def forward(self, x: Tensor) -> Tensor:
        """Return x [N, features, ...] normalised, with the same shape."""
        if self.refers:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            var, mean = torch.var_mean(x.float(), axes, correction=0)
            self.mean.copy_(mean)
            self.var.copy_(var)
        scale = self.weight * (self.var + self.epsilon).rsqrt()
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return x * scale.view(shape) + (self.bias - self.mean * scale).view(shape)


def normalise_virtually(encoder: Encoder) -> Encoder:
    """Insert a VirtualBatchNorm after every convolution and the fully connected layer of the image torsos, in place."""
    for torso in encoder.images.values():
        convs = torso.convs if isinstance(torso, ImageTorso) else None
        if not isinstance(convs, nn.Sequential) or not all(isinstance(m, (nn.Conv2d, nn.ReLU)) for m in convs):
            raise UsageError("virtual batch normalisation is for the torsos nature, impala-shallow and minatar")
        torso.convs = _with_norms(convs)
        torso.fc = _with_norms(cast(nn.Sequential, torso.fc))
    return encoder


def _with_norms(layers: nn.Sequential) -> nn.Sequential:
    out: list[nn.Module] = []
    for layer in layers:
        out.append(layer)
        if isinstance(layer, nn.Conv2d):
            out.append(VirtualBatchNorm(layer.out_channels))
        elif isinstance(layer, nn.Linear):
            out.append(VirtualBatchNorm(layer.out_features))
    return nn.Sequential(*out)


@torch.no_grad()
def refer(net: nn.Module, encoder: Encoder, reference: dict[str, Tensor]) -> None:
    """Set the statistics of every VirtualBatchNorm in ``net`` to those of the observations ``reference`` [N, ...] under
    the current weights."""
    norms = [layer for layer in net.modules() if isinstance(layer, VirtualBatchNorm)]
    for norm in norms:
        norm.refers = True
    try:
        encoder(reference)
    finally:
        for norm in norms:
            norm.refers = False
