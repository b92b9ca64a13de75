"""PopArt: values are learned on a scale that adapts to the returns, whatever the size of rewards.

Van Hasselt et al. 2016, "Learning values across many orders of magnitude"; with actor-critics Hessel et al. 2019,
"Multi-task Deep Reinforcement Learning with PopArt".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.ops import masked_mean

SPREAD = (1e-4, 1e6)  # least and largest standard deviation of the returns (Hessel et al. 2019, appendix)
STEP = 3e-4  # step size of the running moments (the same)


class PopArt(nn.Module):
    """Adaptive rescaling of a linear head: an output ``n`` means the value ``spread * n + mean``. ``update`` adapts
    both to the running moments of the returns, and changes the head so that no value changes.

    The moments are plain averages until the weight of one update has decreased to ``step``.
    """

    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, step: float = STEP) -> None:
        super().__init__()
        self.step = step
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("square", torch.ones((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))  # number of updates

    def spread(self) -> Tensor:
        """Return the standard deviation of the returns; 1 before any update."""
        return _spread(self.mean, self.square)

    def value(self, said: Tensor) -> Tensor:
        """Return the head's output as a value in the unit of rewards, float32 of the same shape."""
        return said * self.spread().float() + self.mean.float()

    @torch.no_grad()
    def spread_with(self, returns: Tensor, mask: Tensor) -> Tensor:
        """Return the ``spread`` after an ``update`` with these returns, which is the unit of the loss from the first
        batch on."""
        return _spread(*self._moments(returns, mask))

    @torch.no_grad()
    def update(self, head: nn.Linear, returns: Tensor, mask: Tensor) -> None:
        """Update the moments with the returns [...] where ``mask`` (bool [...]) is True. Returns that are not finite
        are ignored, because the learner skips them too."""
        mean, spread = self.mean.clone(), self.spread()
        now_mean, now_square = self._moments(returns, mask)
        self.mean.copy_(now_mean)
        self.square.copy_(now_square)
        self.count.add_(1.0)
        now = self.spread()
        head.weight.mul_((spread / now).float())
        head.bias.copy_(((spread * head.bias.double() + mean - self.mean) / now).float())

    def _moments(self, returns: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and mean square after an update with these returns."""
        share = torch.clamp(1.0 / (self.count + 1.0), min=self.step)
        if returns.device.type != "cpu":
            counted = torch.where(mask, returns, 0.0).double()
            taken = mask.any() & torch.isfinite(counted).all()
            found = zip((self.mean, self.square), (counted, counted.square()), strict=True)
            mean, square = (torch.where(taken, old.lerp(masked_mean(new, mask), share), old) for old, new in found)
            return mean, square
        rows = returns[mask].double()
        if not len(rows) or not bool(torch.isfinite(rows).all()):
            return self.mean, self.square
        return self.mean.lerp(rows.mean(), share), self.square.lerp(rows.square().mean(), share)


def _spread(mean: Tensor, square: Tensor) -> Tensor:
    return (square - mean.square()).clamp(min=SPREAD[0] ** 2).sqrt().clamp(max=SPREAD[1])
