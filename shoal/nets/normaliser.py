"""Running statistics of observations and rewards, in float64 buffers that are saved with the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from shoal.api import Tensors, UsageError
from shoal.ops import MOMENTS, masked_moments, merge_moments, moments


class RunningNorm(nn.Module):
    """Normalises by running statistics. ``forward`` leaves them unchanged; only ``update`` and ``merge`` change them.

    A rollout and the training on it thus use the same statistics, if they are updated between iterations. floor: least
    variance to divide by.
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
        """Return x [..., *shape] normalised, float32, within +-clip; x itself before any update."""
        return ((x - self.mean) * self.scale()).clamp(-self.clip, self.clip).float()

    def scale(self) -> Tensor:
        """Return the factor that deviations from the mean are multiplied by."""
        return (self.var.clamp(min=self.floor) + self.epsilon).rsqrt()

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Merge the rows of x [..., *shape] into the statistics, or those where ``mask`` (bool [...]) is True. Rows
        that are not finite are ignored, because the learner skips them too."""
        if mask is not None and x.device.type != "cpu":
            self.merge(*masked_moments(x.reshape(-1, *self.shape), mask.reshape(-1)))
            return
        rows = x.reshape(-1, *self.shape) if mask is None else x[mask]
        if len(rows):
            self.merge(*moments(rows))

    def merge(self, mean: Tensor, var: Tensor, count: Tensor | float) -> None:
        """Merge the mean and (population) variance of other data by the parallel-variance formula. Statistics that are
        not finite are ignored."""
        merge_moments(self.mean, self.var, self.count, mean, var, count)


def running_norms(names: Iterable[str], make: Callable[[str], RunningNorm]) -> nn.ModuleDict:
    """Return a RunningNorm for each of these observations. Raises UsageError for a name with a dot, which PyTorch's
    modules cannot have."""
    names = list(names)
    if dotted := [name for name in names if "." in name]:
        raise UsageError(f"normalise_obs expects observations without a dot in their names, found '{dotted[0]}'")
    return nn.ModuleDict({name: make(name) for name in names})


def running_of(nets: nn.Module) -> list[str]:
    """Return the prefixes, such as ``norms.obs.``, of the names that running statistics have in ``nets``."""
    return [f"{name}." for name, module in nets.named_modules() if isinstance(module, RunningNorm)]


def normalised(norms: nn.ModuleDict, obs: Tensors) -> Tensors:
    """Return the observations, normalised where ``norms`` (see ``running_norms``) has their name."""
    return {k: norms[k](v) if k in norms else v for k, v in obs.items()} if len(norms) else obs


def seen(norms: nn.ModuleDict, items: Tensors) -> Tensors:
    """Return the moments of a segment's observations that were acted on, by the names of the statistics in a network
    with these ``norms``. items: observations [T + 1, B, ...] and bool ``valid`` [T, B]."""
    rows = {f"norms.{name}": items[name][:-1][items["valid"]] for name in norms}
    return {k: v for name, given in rows.items() for k, v in by_name(name, given).items()}


def by_name(norm: str, rows: Tensor) -> Tensors:
    """Return the moments of rows [N, ...] by the names of the running statistics ``norm``."""
    return {f"{norm}.{part}": value for part, value in zip(MOMENTS, moments(rows), strict=True)}


class RewardScaler(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return, and clips them. No mean is
    subtracted.

    The return of each column is R <- gamma R + r. It is carried from call to call and restarts after a cut.
    """

    def __init__(self, gamma: float, clip: float = 10.0):
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.stats = RunningNorm(())
        self.carried: Tensor | None = None  # [B], of the columns of the last call; not part of the policy

    @torch.no_grad()
    def forward(self, reward: Tensor, cut: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the rewards [T, B] scaled, float32, after updating the statistics. cut: bool [T, B], step t ended the
        episode. mask: bool [T, B], which steps count."""
        self.stats.update(self.returns(reward, cut), mask)
        return self.scale(reward)

    @torch.no_grad()
    def returns(self, reward: Tensor, cut: Tensor) -> Tensor:
        """Return the discounted returns [T, B] (float64) and carry the last ones to the next call."""
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
        """Return rewards divided and clipped by the current statistics."""
        std = (self.stats.var + self.stats.epsilon).sqrt()
        return (reward / std).clamp(-self.clip, self.clip).float()
