"""Evolution strategies: what returns weigh, and the sum of the noise that earned them."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.fast.noise import add_slices
from shoal.ops import check

__all__ = ["ars_weights", "centred_ranks", "es_weights", "weighted_noise"]


@torch.no_grad()
def centred_ranks(returns: Tensor) -> Tensor:
    """``u = rank / (N - 1) - 1/2`` in [-1/2, 1/2], where ``rank`` counts from 0 over all N returns together.

    Equal returns share the mean of their ranks, so that returns that are all equal weigh nothing (the authors' code
    gives them distinct ranks by position). Any strictly increasing transform of the returns leaves the ranks as they
    are.

    Args: returns: float, any shape, at least 2 elements. Returns: float32 of the same shape, with the sum 0.
    Source: Salimans et al. (2017), section 2.1 (fitness shaping); the authors' ``es.compute_centered_ranks``.
    """
    flat = returns.flatten()
    if len(flat) < 2:
        raise ValueError(f"centred_ranks: expected at least 2 returns, found {len(flat)}")
    _, which, counts = torch.unique(flat, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double() - 1  # rank of the last of each group of equals
    ranks = (last - (counts - 1) / 2)[which]
    centred: Tensor = ranks / (len(flat) - 1) - 0.5
    return centred.float().reshape(returns.shape)


@torch.no_grad()
def es_weights(returns: Tensor) -> Tensor:
    """Weight of each pair's noise in the ascent direction ``g = sum_i w_i eps_i``: ``w_i = (u_i+ - u_i-) / (2 n)``,
    where ``u`` are the centred ranks over both halves. There is no 1 / sigma: the step size absorbs it.

    Args: returns: float ``[n, 2]`` of ``theta + sigma eps_i`` and ``theta - sigma eps_i``. Returns: float32 ``[n]``.
    Source: Salimans et al. (2017), algorithm 1; the authors' ``es.run_master``.
    """
    _pairs("es_weights", returns)
    shaped = centred_ranks(returns)
    return (shaped[:, 0] - shaped[:, 1]) / shaped.numel()


@torch.no_grad()
def ars_weights(returns: Tensor, top: int) -> Tensor:
    """Weight of each pair's noise in augmented random search: ``(r_k+ - r_k-) / (b sigma_R)`` for the ``b`` pairs with
    the largest ``max(r_k+, r_k-)`` (ties: the first), 0 for the others; ``sigma_R`` is the (population) standard
    deviation of the 2 b returns kept. All 0 if that is 0.

    Args: returns: float ``[n, 2]``; top: b, from 1 to n. Returns: float32 ``[n]``.
    Source: Mania et al. (2018), algorithm 2 (V1-t, V2-t; with ``top = n`` V1, V2).
    """
    _pairs("ars_weights", returns)
    check.in_range("ars_weights", "top", top, 1, len(returns))
    best = torch.argsort(returns.amax(1), descending=True, stable=True)[:top]
    kept = returns[best].double()
    spread = kept.std(correction=0)
    out = torch.zeros(len(returns), dtype=torch.float64, device=returns.device)
    if spread > 0:
        out[best] = (kept[:, 0] - kept[:, 1]) / (top * spread)
    return out.float()


@torch.no_grad()
def weighted_noise(table: Tensor, indices: Tensor, weights: Tensor, size: int) -> Tensor:
    """``sum_i weights_i table[indices_i : indices_i + size]``, added in the order of the pairs; no slice is copied.

    Args: table: float ``[N]``; indices: int64 ``[n]``, from 0 to N - size; weights: float ``[n]``; size: of a slice.
    All on the CPU. Returns: ``[size]`` of the table's dtype.
    Source: Salimans et al. (2017), section 3 (a block of noise that workers share; they send indices).
    """
    check.same_shape("weighted_noise", indices=indices, weights=weights)
    last = len(table) - size
    if (wrong := indices[(indices < 0) | (indices > last)]).numel():
        raise ValueError(f"weighted_noise: expected indices in [0, {last}], found {int(wrong[0])}")
    out = torch.zeros(size, dtype=table.dtype)
    add_slices(table.numpy(), indices.numpy(), weights.to(table.dtype).numpy(), out.numpy())
    return out


def _pairs(where: str, returns: Tensor) -> None:
    if returns.ndim != 2 or returns.shape[1] != 2 or not len(returns):
        raise ValueError(f"{where}: expected returns of shape [n, 2], found {tuple(returns.shape)}")
