"""The cross-entropy method: the best point of a box by sampling, keeping the best and sampling around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Best", "cem"]


class Best(NamedTuple):
    """The best points found ``[B, A]``, and their scores ``[B]``."""

    points: Tensor
    scores: Tensor


@torch.no_grad()
def cem(score: Callable[[Tensor], Tensor], noise: Tensor, elites: int, floor: float = 0.0) -> Best:
    """Maximise ``score`` over ``[-1, 1]^A`` for ``B`` problems at once. Of each problem ``N`` points are drawn from a
    Gaussian, at first of mean 0 and deviation 1; the next Gaussian has the mean and the deviation (Bessel's) of the
    ``elites`` best. Points outside of the box are moved to its border. What is returned is the best of all that were
    drawn, so more iterations never make it worse.

    Args: score: points ``[B or 1, N, A]`` -> ``[B, N]``; noise: standard normal ``[iterations, B or 1, N, A]``, 1: the
    same for every problem; elites: from 2 to N; floor: smallest deviation after the first iteration.
    Raises: ValueError for a noise of another rank, or such a number of elites.
    Source: Rubinstein and Kroese (2004); QT-Opt (Kalashnikov et al. 2018), section 4.2.
    """
    if noise.ndim != 4 or not len(noise):
        raise ValueError(f"cem: expected noise of shape [iterations, B, N, A], found {tuple(noise.shape)}")
    if not 2 <= elites <= noise.shape[2]:
        raise ValueError(f"cem: expected from 2 to {noise.shape[2]} elites, found {elites}")
    chosen, best = _elites(score, noise[0].clamp(-1.0, 1.0), elites)
    for drawn in noise[1:]:
        deviation, mean = torch.std_mean(chosen, 1, keepdim=True)
        points = torch.addcmul(mean, deviation.clamp_(min=floor), drawn).clamp_(-1.0, 1.0)
        chosen, found = _elites(score, points, elites)
        best = _better(best, found)
    return best


def _elites(score: Callable[[Tensor], Tensor], points: Tensor, elites: int) -> tuple[Tensor, Best]:
    """The best of ``points``, so many of each problem ``[B, elites, A]``, and the very best."""
    scores, places = score(points).topk(elites, -1)
    index = places.unsqueeze(-1).expand(-1, -1, points.shape[-1])
    chosen = points.expand(index.shape[0], -1, -1).gather(1, index)
    return chosen, Best(chosen[:, 0], scores[:, 0])


def _better(one: Best, other: Best) -> Best:
    """Of each problem the better of two; the first where they are alike."""
    wins = other.scores > one.scores
    return Best(torch.where(wins[:, None], other.points, one.points), torch.where(wins, other.scores, one.scores))
