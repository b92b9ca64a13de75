"""Importance weights, the priority of a sequence, and exploration schedules."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal import fast
from shoal.fast import sampling as compiled
from shoal.ops import check

__all__ = ["epsilon_ladder", "importance_weights", "linear", "sequence_priority"]


def importance_weights(probs: Tensor, size: int, beta: float, normalise: bool = True) -> Tensor:
    """``w_i = (size * P(i))^-beta``, by default divided by the largest of the batch.

    Args: probs: float ``[B]``, positive, the probability with which each item was drawn; size: items in the
    replay when it was drawn (not its capacity); beta: not negative; normalise: divide by the batch maximum.
    Returns: ``[B]``.
    Source: Schaul et al. (2016), Prioritized Experience Replay, section 3.4; maximum over the minibatch: its authors.
    Unnormalised with beta = 1: D4PG (Barth-Maron et al. 2018), algorithm 1.
    """
    if size < 1:
        raise ValueError(f"importance_weights: expected size >= 1, found {size}")
    check.in_range("importance_weights", "beta", beta, 0.0, float("inf"))
    if normalise:  # the size cancels
        if fast.ENABLED and probs.device.type == "cpu" and not probs.requires_grad:
            return compiled.normalised_weights(probs, beta)
        return (probs.min() / probs).pow(beta).detach()
    return (size * probs).pow(-beta).detach()


@torch.no_grad()
def sequence_priority(td_errors: Tensor, eta: float = 0.9, mask: Tensor | None = None) -> Tensor:
    """``eta * max_t |delta_t| + (1 - eta) * mean_t |delta_t|`` over the real steps of each sequence.

    Args: td_errors: float ``[T, B]``; eta: in [0, 1]; mask: bool ``[T, B]``, False rows do not count.
    Returns: ``[B]``, 0 for a sequence without any real step.
    Source: Kapturowski et al. (2019), R2D2, section 2.3.
    """
    check.in_range("sequence_priority", "eta", eta, 0.0, 1.0)
    size = td_errors.abs()
    if mask is None:
        return eta * size.amax(0) + (1.0 - eta) * size.mean(0)
    check.same_shape("sequence_priority", td_errors=td_errors, mask=mask)
    size = torch.where(mask, size, torch.zeros_like(size))
    return eta * size.amax(0) + (1.0 - eta) * size.sum(0) / mask.sum(0).clamp(min=1)


def epsilon_ladder(index: int, n: int, base: float = 0.4, alpha: float = 7.0) -> float:
    """Exploration rate of actor ``index`` of ``n``: ``base^(1 + alpha * index / (n - 1))``; ``base`` if n = 1.

    Source: Horgan et al. (2018), Ape-X, Atari experiments (constant for the whole run).
    """
    if not 0 <= index < n:
        raise ValueError(f"epsilon_ladder: expected 0 <= index < n, found index {index} and n {n}")
    return float(base ** (1.0 + alpha * index / (n - 1))) if n > 1 else base


def linear(start: float, end: float, fraction: float) -> float:
    """``start`` at fraction 0, ``end`` at fraction 1, straight in between, constant outside.

    Source: Mnih et al. (2015), Methods (annealed epsilon); Schaul et al. (2016), section 3.4 (annealed beta).
    """
    if fraction >= 1.0:
        return end
    return start + (end - start) * max(fraction, 0.0)
