"""What a critic's outputs say of the return: its mean only, a categorical distribution, or a mixture of Gaussians.

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", section 3 and appendix A.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.api import Tensors
from shoal.nets.dpg_network import Returns
from shoal.ops import (
    categorical_cross_entropy,
    categorical_mean,
    categorical_outside,
    categorical_projection,
    mixture_cross_entropy,
    mixture_mean,
    mixture_sample,
)

RARE = -20.0  # smallest difference of a logit of a new critic from its largest
NARROW = 0.03  # deviation of a new mixture, relative to half the range
FLOOR = 1e-4  # of a component's deviation, relative to half the range: its likelihood stays bounded


def nearest_zero(low: float, high: float) -> float:
    """The return in a range from which a new critic begins."""
    return min(max(0.0, low), high)


class Expected(Returns):
    """The mean alone: half the squared error (DDPG; Ape-X DPG, Horgan et al. 2018, section 3)."""

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, items: Tensors, after: Tensor) -> Tensor:
        target = torch.addcmul(items["reward"], items["discount"], self.mean(after))
        return 0.5 * (self.mean(outputs) - target).square()


class Categorical(Returns):
    """Logits of ``atoms`` evenly spaced returns from ``low`` to ``high``; cross-entropy to the projected target."""

    atoms: Tensor

    def __init__(self, low: float, high: float, atoms: int) -> None:
        super().__init__()
        self.size, self._range = atoms, (low, high)  # of a new critic: one that is loaded brings its own
        self.register_buffer("atoms", torch.linspace(low, high, atoms))

    def start(self, last: nn.Linear) -> None:
        """Every return of the range is as likely as another; where its middle is below 0, those around 0 are: a critic
        that expects too little of what was not tried yet keeps the policy away from it."""
        super().start(last)
        low, high = self._range
        if low + high >= 0.0:
            return
        two = 2 * (high - low) / (self.size - 1)  # atoms
        with torch.no_grad():
            away = (self.atoms - nearest_zero(low, high)) / two
            last.bias.add_((-0.5 * away.square()).clamp(min=RARE))

    def mean(self, outputs: Tensor) -> Tensor:
        return categorical_mean(outputs, self.atoms)

    def loss(self, outputs: Tensor, items: Tensors, after: Tensor) -> Tensor:
        target = categorical_projection(items["reward"], items["discount"], torch.softmax(after, -1), self.atoms)
        return categorical_cross_entropy(target, outputs)

    def edge_mass(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, -1)[..., [0, -1]]

    def clipped_mass(self, items: Tensors, after: Tensor) -> Tensor:
        given = items["reward"], items["discount"], torch.softmax(after, -1), self.atoms
        return categorical_outside(*given, rounding=1e-4)  # a range may be exactly what is possible


class Mixture(Returns):
    """Weights, means and deviations of ``components`` Gaussians, in units of half the range from ``low`` to ``high``
    around its middle; cross-entropy to ``samples`` of the target."""

    scale: Tensor

    def __init__(self, low: float, high: float, components: int, samples: int) -> None:
        super().__init__()
        self.size, self.samples, self._range = 3 * components, samples, (low, high)
        self.register_buffer("scale", torch.tensor([(high + low) / 2, (high - low) / 2]))

    def start(self, last: nn.Linear) -> None:
        """Around 0, and narrow: a wide target is known by its samples alone, whose noise would hide what actions differ
        by, and becomes narrower only by the discount with each copy of the target network."""
        super().start(last)
        low, high = self._range
        middle, half = (high + low) / 2, (high - low) / 2
        zero = (nearest_zero(low, high) - middle) / half if half else 0.0
        with torch.no_grad():
            _, means, widths = last.bias.chunk(3)
            means += zero + (torch.linspace(-NARROW, NARROW, len(means)) if len(means) > 1 else 0.0)
            widths += math.log(math.expm1(NARROW))

    def parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, means and deviations ``[B, K]``, in units of the return."""
        logits, means, widths = outputs.chunk(3, -1)
        return logits, self.scale[0] + self.scale[1] * means, self.scale[1] * (F.softplus(widths) + FLOOR)

    def mean(self, outputs: Tensor) -> Tensor:
        logits, means, _ = self.parts(outputs)
        return mixture_mean(logits, means)

    def loss(self, outputs: Tensor, items: Tensors, after: Tensor) -> Tensor:
        z = mixture_sample(items["noise/uniform"], items["noise/normal"], *self.parts(after))
        samples = torch.addcmul(items["reward"][:, None], items["discount"][:, None], z)
        return mixture_cross_entropy(samples, *self.parts(outputs))

    def noise(self, rows: int, rng: torch.Generator) -> Tensors:
        shape = (rows, self.samples)
        return {"noise/uniform": torch.rand(shape, generator=rng), "noise/normal": torch.randn(shape, generator=rng)}
