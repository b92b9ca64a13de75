"""Running statistics of observations and rewards, kept in float64 buffers that are saved with the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from shoal.api import UsageError


class RunningNorm(nn.Module):
    """``forward`` normalises with frozen statistics; only ``update`` and ``merge`` change them.

    So a rollout and the training on it see the same numbers: update between iterations. ``floor``: the least variance
    that is divided by.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: Sequence[int] = (), clip: float = 10.0, epsilon: float = 1e-8, floor: float = 0.0):
        super().__init__()
        self.shape, self.clip, self.epsilon, self.floor = tuple(shape), clip, epsilon, floor
        self.register_buffer("mean", torch.zeros(self.shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(self.shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., *shape] -> float32 of the same shape, within +-clip; the identity before any update."""
        return ((x - self.mean) * self.scale()).clamp(-self.clip, self.clip).float()

    def scale(self) -> Tensor:
        """Return the factor that deviations from the mean are multiplied by."""
        return (self.var.clamp(min=self.floor) + self.epsilon).rsqrt()

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Take in x [..., *shape]; ``mask`` (bool [...]), where given, says which rows count. Data that are not
        finite change nothing: the learner skips them too."""
        rows = x.reshape(-1, *self.shape) if mask is None else x[mask]
        rows = rows.double()
        if len(rows):
            self.merge(rows.mean(0), rows.var(0, correction=0), float(len(rows)))

    @torch.no_grad()
    def merge(self, mean: Tensor, var: Tensor, count: Tensor | float) -> None:
        """Join with the (population) statistics of other data: the parallel-variance formula. Statistics that are not
        finite change nothing."""
        finite = torch.isfinite(mean).all() & torch.isfinite(var).all()  # a tensor: no wait for the GPU
        mean, var, count = torch.where(finite, mean, self.mean), torch.where(finite, var, self.var), finite * count
        total = self.count + count
        share = count / total.clamp(min=1.0)  # nothing joined with nothing is nothing
        delta = mean - self.mean
        self.var.mul_(1 - share).add_(var * share).add_(delta.square() * (share * (1 - share)))
        self.mean.add_(delta * share)
        self.count.copy_(total)


def running_norms(names: Iterable[str], make: Callable[[str], RunningNorm]) -> nn.ModuleDict:
    """A RunningNorm for each of these observations. UsageError for a name that a network cannot give to a part of
    it."""
    names = list(names)
    if dotted := [name for name in names if "." in name]:
        raise UsageError(f"normalise_obs expects observations without a dot in their names, found '{dotted[0]}'")
    return nn.ModuleDict({name: make(name) for name in names})


class RewardScaler(nn.Module):
    """Divides rewards by the standard deviation of the discounted return, and clips; no mean is subtracted.

    The return is R <- gamma R + r per column, carried from call to call, and starts again after a cut.
    """

    def __init__(self, gamma: float, clip: float = 10.0):
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.stats = RunningNorm(())
        self.carried: Tensor | None = None  # [B], of the columns fed last; no part of the policy

    @torch.no_grad()
    def forward(self, reward: Tensor, cut: Tensor, mask: Tensor | None = None) -> Tensor:
        """reward [T, B], cut bool [T, B] (step t ended the episode) -> scaled float32 [T, B], statistics updated
        first. ``mask`` (bool [T, B]): which steps count."""
        self.stats.update(self.returns(reward, cut), mask)
        return self.scale(reward)

    @torch.no_grad()
    def returns(self, reward: Tensor, cut: Tensor) -> Tensor:
        """The discounted returns [T, B] (float64) of which the statistics are; moves on what is carried."""
        running = self.carried
        if running is None or running.shape != reward.shape[1:]:
            running = torch.zeros(reward.shape[1:], dtype=torch.float64, device=reward.device)
        returns = torch.empty(reward.shape, dtype=torch.float64, device=reward.device)
        for t in range(len(reward)):
            running = running * self.gamma + reward[t]
            returns[t] = running
            running = running.masked_fill(cut[t], 0.0)
        self.carried = running.nan_to_num(0.0, 0.0, 0.0)
        return returns

    def scale(self, reward: Tensor) -> Tensor:
        """Divide and clip with the statistics as they are."""
        std = (self.stats.var + self.stats.epsilon).sqrt()
        return (reward / std).clamp(-self.clip, self.clip).float()
