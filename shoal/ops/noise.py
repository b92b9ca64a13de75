"""Factorised Gaussian noise of noisy networks. The caller draws the normals: these functions are pure."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["factorised_noise", "scale_noise"]


def scale_noise(x: Tensor) -> Tensor:
    """``f(x) = sgn(x) sqrt(|x|)``.

    Args: x: float, any shape. Returns: the shape of ``x``.
    Source: Fortunato et al. (2018), Noisy Networks for Exploration, section 3 (b), factorised Gaussian noise.
    """
    return x.sign() * x.abs().sqrt()


def factorised_noise(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Noise of one linear layer from p + q normals: weight ``f(out_j) f(in_i)`` and bias ``f(out_j)``.

    Args: inputs: float ``[p]``; outputs: float ``[q]``, independent standard normals.
    Returns: weight noise ``[q, p]`` (as ``torch.nn.Linear.weight``) and bias noise ``[q]``.
    Source: Fortunato et al. (2018), Noisy Networks for Exploration, section 3 (b), factorised Gaussian noise.
    """
    if inputs.ndim != 1 or outputs.ndim != 1:
        raise ValueError(
            "factorised_noise: expected inputs of shape [p] and outputs of shape [q], "
            f"found {tuple(inputs.shape)} and {tuple(outputs.shape)}"
        )
    bias = scale_noise(outputs)
    return torch.outer(bias, scale_noise(inputs)), bias
