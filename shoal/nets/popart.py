"""PopArt: values are learned on a scale of their own, which follows the returns, whatever the size of rewards.

Van Hasselt et al. 2016, "Learning values across many orders of magnitude"; with actor-critics Hessel et al. 2019,
"Multi-task Deep Reinforcement Learning with PopArt".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SPREAD = (1e-4, 1e6)  # of the returns, least and largest (Hessel et al. 2019, appendix)
STEP = 3e-4  # of the running moments (the same)


class PopArt(nn.Module):
    """What a linear head says, ``n``, means the value ``spread * n + mean``. ``update`` moves both to the running
    moments of the returns and changes the head so that no value changes.

    The moments are plain averages until the share of one update has fallen to ``step``.
    """

    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, step: float = STEP) -> None:
        super().__init__()
        self.step = step
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("square", torch.ones((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))  # of updates

    def spread(self) -> Tensor:
        """The standard deviation of the returns; 1 before any update."""
        return (self.square - self.mean.square()).clamp(min=SPREAD[0] ** 2).sqrt().clamp(max=SPREAD[1])

    def value(self, said: Tensor) -> Tensor:
        """What the head said, in the unit of rewards; float32 of the same shape."""
        return said * self.spread().float() + self.mean.float()

    @torch.no_grad()
    def update(self, head: nn.Linear, returns: Tensor, mask: Tensor) -> None:
        """Take in the returns [...] that the ``mask`` (bool [...]) counts. Returns that are not finite change nothing:
        the learner skips them too."""
        rows = returns[mask].double()
        if not len(rows) or not bool(torch.isfinite(rows).all()):
            return
        mean, spread = self.mean.clone(), self.spread()
        share = torch.clamp(1.0 / (self.count + 1.0), min=self.step)
        self.mean.lerp_(rows.mean(), share)
        self.square.lerp_(rows.square().mean(), share)
        self.count.add_(1.0)
        now = self.spread()
        head.weight.mul_((spread / now).float())
        head.bias.copy_(((spread * head.bias.double() + mean - self.mean) / now).float())
