"""Factorised Gaussian noise of noisy networks. The caller draws the normals: the function is pure."""

from __future__ import annotations

from torch import Tensor

__all__ = ["scale_noise"]


def scale_noise(x: Tensor) -> Tensor:
    """``f(x) = sgn(x) sqrt(|x|)``; with a normal for each input and output of a linear layer, its weight's noise is
    ``f(out_j) f(in_i)`` and its bias's ``f(out_j)``.

    Args: x: float, any shape. Returns: the shape of ``x``.
    Source: Fortunato et al. (2018), Noisy Networks for Exploration, section 3 (b), factorised Gaussian noise.
    """
    return x.sign() * x.abs().sqrt()
