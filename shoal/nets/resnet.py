"""A residual network of 50 layers with group normalisation and half the original's width.

He et al. 2016, "Deep residual learning"; Wu and He 2018, "Group normalization"; width, pooling and the last convolution
as in Wijmans et al. 2020 (DD-PPO, appendix), for depth or colour images of 256 x 256 pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.nets.torsos import MLP

WIDTH, BLOCKS, EXPANSION = 32, (3, 4, 6, 3), 4
LEFT = 2048  # approximate number of inputs of the fully connected layer


class ResNet50(nn.Module):
    """Average pooling of 2 x 2 pixels; a 7x7/2 convolution and a max-pool; 16 bottleneck blocks; a 3x3 convolution to
    about 2,048 numbers; ``fc`` units (0: none). Images are uint8 [N, C, H, W], or floats that are already scaled."""

    def __init__(self, channels: int, h: int, w: int, fc: int = 512):
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(channels, WIDTH, 7, stride=2, padding=3, bias=False), _norm(WIDTH), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]  # fmt: skip
        inputs = WIDTH
        for stage, blocks in enumerate(BLOCKS):
            for block in range(blocks):
                width = WIDTH << stage
                layers.append(Bottleneck(inputs, width, stride=2 if stage and not block else 1))
                inputs = width * EXPANSION
        sides = [_halved(-(-side // 2), len(BLOCKS) + 1) for side in (h, w)]
        compressed = max(1, round(LEFT / (sides[0] * sides[1])))
        layers += [nn.Conv2d(inputs, compressed, 3, padding=1, bias=False), nn.GroupNorm(1, compressed), nn.ReLU()]
        self.convs = nn.Sequential(*layers)
        flat = compressed * sides[0] * sides[1]
        self.fc: nn.Module = MLP((flat, fc), "relu") if fc else nn.Identity()
        self.features = fc or flat

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.convs(_halved_image(x)).flatten(1))
        return y


class Bottleneck(nn.Module):
    """Bottleneck block: 1x1, 3x3 and 1x1 convolutions, added to the input. If shapes differ, a 1x1 convolution adapts
    the input. channels: of the first two; the last has four times as many."""

    def __init__(self, inputs: int, channels: int, stride: int):
        super().__init__()
        outputs = channels * EXPANSION
        self.residual = nn.Sequential(
            _conv(inputs, channels, 1), _norm(channels), nn.ReLU(inplace=True),
            _conv(channels, channels, 3, stride), _norm(channels), nn.ReLU(inplace=True),
            _conv(channels, outputs, 1), _norm(outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(_conv(inputs, outputs, 1, stride), _norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(WIDTH // 2, channels)


def _halved_image(x: Tensor) -> Tensor:
    """Return means of 2 x 2 pixels, scaled to [0, 1] if they are bytes."""
    scaled = x.float() * (1 / 255) if x.dtype == torch.uint8 else x
    return F.avg_pool2d(scaled, 2, ceil_mode=True)


def _halved(side: int, times: int) -> int:
    for _ in range(times):
        side = -(-side // 2)
    return side
