"""Mixtures of Gaussians as distributions of the return, and the mean of a categorical one: the critics of D4PG.

A mixture of K components is three tensors ``[B, K]``: the logits of the weights, the means and the deviations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.ops import check

__all__ = ["categorical_mean", "mixture_cross_entropy", "mixture_log_prob", "mixture_mean", "mixture_sample"]


def categorical_mean(logits: Tensor, atoms: Tensor) -> Tensor:
    """``sum_i z_i softmax(logits)_i``; its gradient by the logits is ``p * (z - mean)``.

    Args: logits: float ``[..., N]``; atoms: float ``[N]``. Returns: ``[...]``.
    Source: D4PG (Barth-Maron et al. 2018), section 3, the expectation of ``Z_w`` in the actor's update.
    """
    check.shape("categorical_mean", "atoms", atoms, tuple(logits.shape[-1:]))
    return torch.softmax(logits, -1) @ atoms


def mixture_mean(logits: Tensor, means: Tensor) -> Tensor:
    """``sum_k w_k mu_k`` with ``w = softmax(logits)``.

    Args: logits, means: float ``[..., K]``. Returns: ``[...]``.
    Source: D4PG (Barth-Maron et al. 2018), appendix A, "Mixture of Gaussians".
    """
    check.same_shape("mixture_mean", logits=logits, means=means)
    return (torch.softmax(logits, -1) * means).sum(-1)


def mixture_log_prob(y: Tensor, logits: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    """``log sum_k w_k N(y; mu_k, sigma_k^2)`` with ``w = softmax(logits)``, in nats.

    Args: y: float ``[B, S]``; logits, means, deviations (positive): float ``[B, K]``. Returns: ``[B, S]``.
    Source: D4PG (Barth-Maron et al. 2018), appendix A, "Mixture of Gaussians".
    """
    check.same_shape("mixture_log_prob", logits=logits, means=means, deviations=deviations)
    check.values("mixture_log_prob", "y", y, logits[..., 0])
    distance = (y.unsqueeze(-1) - means.unsqueeze(-2)) / deviations.unsqueeze(-2)  # [B, S, K]
    weights = torch.log_softmax(logits, -1) - deviations.log() - 0.5 * math.log(2.0 * math.pi)
    return torch.logsumexp(weights.unsqueeze(-2) - 0.5 * distance.square(), -1)


def mixture_cross_entropy(samples: Tensor, logits: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    """``-mean_s log p(y_s)``: the cross-entropy to the mixture, estimated from samples of the target distribution.

    Args: samples: float ``[B, S]``, here ``r + d z_s`` with ``z_s`` from the target network's mixture (no gradient
    flows into them); logits, means, deviations: float ``[B, K]``. Returns: ``[B]``.
    Source: D4PG (Barth-Maron et al. 2018), appendix A, "Mixture of Gaussians".
    """
    return -mixture_log_prob(samples.detach(), logits, means, deviations).mean(-1)


@torch.no_grad()
def mixture_sample(uniform: Tensor, normal: Tensor, logits: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    """Samples of a mixture from given noise: a component by inversion of ``uniform``, then ``mu + sigma * normal``.

    Args: uniform: float ``[B, S]`` in [0, 1); normal: float ``[B, S]``; logits, means, deviations: float ``[B, K]``.
    Returns: ``[B, S]``.
    """
    check.same_shape("mixture_sample", uniform=uniform, normal=normal)
    check.same_shape("mixture_sample", logits=logits, means=means, deviations=deviations)
    check.values("mixture_sample", "uniform", uniform, logits[..., 0])
    edges = torch.softmax(logits, -1).cumsum(-1)[..., :-1]  # without the last, which rounding may leave below 1
    component = (uniform.unsqueeze(-1) >= edges.unsqueeze(-2)).sum(-1)  # [B, S]
    return torch.addcmul(means.gather(-1, component), deviations.gather(-1, component), normal)
