"""Actions that are not allowed: what they are worth, and a draw from the others."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.api import MASK, Arrays

__all__ = ["draw_allowed", "forbid", "random_actions"]


def forbid(values: Tensor, allowed: Tensor | None) -> Tensor:
    """``values`` where ``allowed``, else minus infinity: a value that is never the largest, or a logit whose
    probability is exactly 0; no gradient passes there.

    Args: values: float ``[..., A]``, of actions, or of all parts of an action in a row; allowed: bool ``[..., A]``,
    None: all are. Returns: ``[..., A]``.
    Source: Huang & Ontañón (2022), A Closer Look at Invalid Action Masking in Policy Gradient Algorithms, section 3.1.
    """
    return values if allowed is None else values.masked_fill(~allowed, -torch.inf)


def draw_allowed(allowed: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One of each row's allowed actions, uniformly.

    Args: allowed: bool ``[N, A]``, at least one in each row. Returns: int64 ``[N]``.
    """
    keys = generator.random(allowed.shape)
    out: np.ndarray = np.where(allowed, keys, -1.0).argmax(-1)
    return out


def random_actions(obs: Arrays, actions: int, generator: np.random.Generator) -> np.ndarray:
    """One of the ``actions`` for each observation [B, ...], uniformly among those that are allowed: int64 [B]."""
    if MASK in obs:
        return draw_allowed(obs[MASK], generator)
    return generator.integers(actions, size=len(next(iter(obs.values()))))
