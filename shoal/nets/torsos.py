"""Torsos: one kind of input [N, ...] -> features [N, F].

Each has ``.features``. Images are uint8 [N, C, H, W], or floats that are already scaled. They are stored channels-last,
and bytes are scaled by 1/255 inside. An image with a side below 36 pixels is too small for the 8x8 stride-4 kernels of
the published networks: ``NatureCNN`` and the shallow ``ImpalaResNet`` then use padded 3x3 kernels, stride 2, 2 (and 1),
with the same numbers of channels (``.small`` is True).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.api import UsageError
from shoal.fast.pixels import channels_last, readable, unshuffled
from shoal.fast.rounded import may_round
from shoal.nets.precision import compute_dtype

Activation = Literal["tanh", "relu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
NATURE_MIN_PIXELS = 36  # pixels: 36 -> 8 -> 3 -> 1 is the smallest side that the Nature network's kernels fit


class MLP(nn.Sequential):
    """Linear layers ``sizes[0] -> sizes[1] -> ...``, each followed by (layer norm and) the activation."""

    def __init__(self, sizes: Sequence[int], activation: Activation = "tanh", layer_norm: bool = False):
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers.append(nn.Linear(inputs, outputs))
            if layer_norm:
                layers.append(nn.LayerNorm(outputs))
            layers.append(ACTIVATIONS[activation]())
        super().__init__(*layers)
        self.features = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:  # direct calls: those of nn.Module take a sixth of a small batch's forward pass
            x = layer.forward(x)
        return x


class PixelConv2d(nn.Conv2d):
    """The first convolution of a torso. Its weights, not the pixels, are scaled so that bytes lie in [0, 1]. This is
    cheaper (benchmarks/results/notes-on-speed.md) and exact in bfloat16, which represents each byte but not its 255th.

    If the stride divides kernel and image, both are cut into blocks of stride x stride, whose pixels become channels. A
    kernel of stride 1 over many channels computes the same sums, and training is twice as fast in bfloat16.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            return cast(Tensor, self._conv_forward(channels_last(x).to(self.weight.dtype), self.weight, self.bias))
        dtype, weight = compute_dtype(x.device), self.weight * (1 / 255)
        if not self._blocks(x):
            return cast(Tensor, self._conv_forward(channels_last(x).to(dtype), weight, self.bias))
        side = self.stride[0]
        return F.conv2d(unshuffled(x, side).to(dtype), F.pixel_unshuffle(weight, side), self.bias)

    def _blocks(self, x: Tensor) -> bool:
        side = self.stride[0]
        lengths = (*self.kernel_size, *x.shape[-2:])
        return readable(x) and side > 1 and self.padding == (0, 0) and not any(n % side for n in lengths)


class ImageTorso(nn.Module):
    """Convolutions, then (unless ``fc`` is 0) one fully connected layer of ``fc`` units and a relu."""

    def __init__(self, convs: nn.Module, h: int, w: int, fc: int, layer_norm: bool):
        super().__init__()
        self.convs = convs
        flat = _flat(convs, h, w)
        self.features = fc or flat
        self.fc: nn.Module = MLP((flat, fc), "relu", layer_norm) if fc else nn.Identity()
        for layer in self.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)) and not isinstance(layer, PixelConv2d):
                may_round(layer)  # PixelConv2d is left out, as it scales its weights first

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.convs(x).flatten(1))
        return y


class NatureCNN(ImageTorso):
    """The convolutional torso of DQN (Mnih et al. 2015): 32 8x8/4, 64 4x4/2, 64 3x3/1, 512 units."""

    def __init__(self, channels: int, h: int, w: int, fc: int = 512, layer_norm: bool = False):
        small = min(h, w) < NATURE_MIN_PIXELS
        kernels = ((3, 2, 1), (3, 2, 1), (3, 1, 1)) if small else ((8, 4, 0), (4, 2, 0), (3, 1, 0))
        super().__init__(_plain(channels, (32, 64, 64), kernels), h, w, fc, layer_norm)
        self.small = small


class MinAtarCNN(ImageTorso):
    """The convolutional torso of MinAtar (Young and Tian 2019, section 3): one convolution of 16 3x3/1 filters and 128
    units, with relu after both. Reads boards [N, H, W, C] of any numbers as planes [N, C, H, W] without scaling, and
    images as other torsos do."""

    def __init__(self, shape: Sequence[int], board: bool = True, fc: int = 128, layer_norm: bool = False):
        h, w, c = shape if board else (*shape[1:], shape[0])
        if min(h, w) < 3:
            raise UsageError(f"torso minatar has a kernel of 3 x 3, too large for {h} x {w} cells")
        super().__init__(_plain(c, (16,), ((3, 1, 0),)), h, w, fc, layer_norm)
        self.board = board

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2) if self.board else x)


class ImpalaResNet(ImageTorso):
    """The residual torsos of IMPALA (Espeholt et al. 2018, figure 3). Shallow: 16 8x8/4, 32 4x4/2, 256 units. Deep:
    sections of 16, 32 and 32 channels (3x3 convolution, 3x3/2 max-pool, two residual blocks), relu, 256 units: 15
    convolutions."""

    def __init__(
        self,
        channels: int,
        h: int,
        w: int,
        depth: Literal["shallow", "deep"] = "deep",
        fc: int = 256,
        layer_norm: bool = False,
    ):
        small = depth == "shallow" and min(h, w) < NATURE_MIN_PIXELS
        if depth == "shallow":
            convs = _plain(channels, (16, 32), ((3, 2, 1), (3, 2, 1)) if small else ((8, 4, 0), (4, 2, 0)))
        else:
            convs = nn.Sequential(
                _Section(channels, 16, PixelConv2d), _Section(16, 32), _Section(32, 32), nn.ReLU(inplace=True)
            )
        super().__init__(convs, h, w, fc, layer_norm)
        self.small = small


def _flat(convs: nn.Module, h: int, w: int) -> int:
    """Return the number of outputs of ``convs`` for an image, by arithmetic: a trial on the meta device would import
    sympy (2 s)."""
    channels, sides = 0, [h, w]
    for layer in convs.modules():
        if not isinstance(layer, (nn.Conv2d, nn.MaxPool2d)):
            continue
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        geometry: tuple[Any, ...] = (layer.kernel_size, layer.stride, layer.padding)
        kernel, stride, pad = (v[0] if isinstance(v, tuple) else v for v in geometry)
        sides = [(n + 2 * pad - kernel) // stride + 1 for n in sides]
    return channels * sides[0] * sides[1]


def _plain(channels: int, widths: Sequence[int], kernels: Sequence[tuple[int, int, int]]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs, (kernel, stride, pad) in zip((channels, *widths[:-1]), widths, kernels, strict=True):
        conv = nn.Conv2d if layers else PixelConv2d
        layers += [conv(inputs, outputs, kernel, stride, pad), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class _Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv1(F.relu(self.conv0(F.relu(x))))
        return x + y


class _Section(nn.Sequential):
    def __init__(self, inputs: int, channels: int, conv: type[nn.Conv2d] = nn.Conv2d):
        super().__init__(
            conv(inputs, channels, 3, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1),
            _Residual(channels),
            _Residual(channels),
        )
