"""Moments of data that come in parts: mean, population variance and count."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["MOMENTS", "masked_mean", "masked_moments", "masked_normalised", "merge_moments", "moments"]

MOMENTS = ("mean", "var", "count")  # the names of what ``moments`` returns, wherever they are kept


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean [] of what ``mask`` (bool [...]) counts of x [...]; nan where it counts nothing. It is worked out
    without knowing how many those are, so that nobody waits for a GPU."""
    return torch.where(mask, x, 0.0).sum() / mask.sum()


def masked_moments(rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``moments(rows[mask])`` of rows [N, ...] and mask bool [N], likewise without a wait for a GPU."""
    counts = mask.view(-1, *[1] * (rows.ndim - 1))
    rows, count = torch.where(counts, rows.double(), 0.0), mask.sum().double()
    mean = rows.sum(0) / count.clamp(min=1.0)
    return mean, torch.where(counts, (rows - mean).square(), 0.0).sum(0) / count.clamp(min=1.0), count


def masked_normalised(x: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Return ``(x - mean) / (std + epsilon)`` of x [...] with the mean and the standard deviation of what ``mask``
    (bool [...]) counts; on a GPU, where nobody waits for it, 0 elsewhere. Zeros where it counts nothing."""
    if x.device.type != "cpu":
        mean, var, _ = masked_moments(x.reshape(-1), mask.reshape(-1))
        return torch.where(mask, ((x - mean) / (var.sqrt() + epsilon)).to(x.dtype), 0.0)
    if not mask.any():
        return torch.zeros_like(x)
    std, mean = torch.std_mean(x[mask], correction=0)
    return (x - mean) / (std + epsilon)


def moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and population variance [...] of rows [N, ...] and their count [], in float64; zeros of no rows."""
    rows = rows.double()
    count = rows.new_tensor(float(len(rows)))
    if not len(rows):
        zeros = rows.new_zeros(rows.shape[1:])
        return zeros, zeros, count
    return rows.mean(0), rows.var(0, correction=0), count


@torch.no_grad()
def merge_moments(
    mean: Tensor, var: Tensor, count: Tensor, new_mean: Tensor, new_var: Tensor, new_count: Tensor | float
) -> None:
    """Take further moments into ``mean``, ``var`` [...] and ``count`` [], in place. Those that are not finite change
    nothing.

    Source: Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    finite = torch.isfinite(new_mean).all() & torch.isfinite(new_var).all()  # a tensor: no wait for the GPU
    new_mean, new_var = torch.where(finite, new_mean, mean), torch.where(finite, new_var, var)
    new_count = finite * new_count
    total = count + new_count
    share = new_count / total.clamp(min=1.0)  # nothing joined with nothing is nothing
    delta = new_mean - mean
    var.mul_(1 - share).add_(new_var * share).add_(delta.square() * (share * (1 - share)))
    mean.add_(delta * share)
    count.copy_(total)
