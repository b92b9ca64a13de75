"""Multi-step returns and advantages, time-major ``[T, B]`` (any further axes are treated alike).

Conventions shared by all functions of this file:

* ``discounts[t] = gamma * (1 - terminated[t])``: zero only where the episode truly ended.
* ``next_values[t]`` is the value of the true successor observation of step ``t``; after a truncation that is
  the value of the episode's *final* observation, not of the next episode's first one.
* ``cut[t]`` (bool) is True where nothing may pass from row ``t + 1`` back to row ``t``: the episode ended
  there (terminated or truncated), or one of the two rows is not a real step. The last row is always cut. What is not
  finite does not pass a cut either, nor does a next value whose discount is zero.

Results are targets: no gradient flows through them. Half-precision inputs are computed in float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.ops import check

__all__ = ["VTrace", "gae", "lambda_returns", "n_step_returns", "vtrace"]


class VTrace(NamedTuple):
    """Value targets and policy-gradient advantages, each ``[T, B]``."""

    vs: Tensor
    pg_advantages: Tensor


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _reverse_scan(b: Tensor, a: Tensor) -> Tensor:
    """Solve ``x[t] = b[t] + a[t] * x[t + 1]`` (``x[T] = 0``) for ``[T, ...]`` tensors. Where ``a[t]`` is 0 nothing
    passes, be it infinite or no number.

    Recursive doubling (Hillis and Steele 1986): after round k, row t holds the sum over a window of 2**k rows,
    so T = 128 takes 7 rounds of whole-array operations instead of 128 rounds of row operations, on any device.
    """
    x, length, span = b.clone(), b.shape[0], 1
    while span < length:
        x[:-span] += _passed(a[: length - span], x[span:])  # the product is a temporary: reads come before writes
        if 2 * span < length:
            a = _passed(a[: length - 2 * span], a[span : length - span])  # products over twice the window
        span *= 2
    return x


def _passed(factor: Tensor, x: Tensor) -> Tensor:
    """``factor * x``, and 0 where the factor is 0, whatever x is."""
    return (factor * x).masked_fill_(factor == 0.0, 0.0)


def _last_row_too(cut: Tensor) -> Tensor:
    cut = cut.clone()
    cut[-1] = True
    return cut


@torch.no_grad()
def n_step_returns(rewards: Tensor, discounts: Tensor, next_values: Tensor, cut: Tensor, n: int) -> Tensor:
    """Return n-step bootstrapped returns; near a cut or the last row the window is shorter.

    ``G[t] = r[t] + d[t] * (G'[t + 1] if not cut[t] else next_values[t])``, at most ``n`` rewards per return.

    Args: rewards, discounts, next_values: float ``[T, B]``; cut: bool ``[T, B]``; n: steps, at least 1.
    Returns: ``[T, B]``.
    Source: Sutton and Barto (2018), eq. 7.1; ``n >= T``: A3C (Mnih et al. 2016), algorithm S3.
    """
    check.time_major("n_step_returns", cut, rewards=rewards, discounts=discounts, next_values=next_values)
    if n < 1:
        raise ValueError(f"n_step_returns: expected n >= 1, found {n}")
    if n >= rewards.shape[0]:
        return lambda_returns(rewards, discounts, next_values, cut, 1.0)
    rewards, discounts, next_values = _full(rewards), _full(discounts), _full(next_values)
    returns = rewards + _passed(discounts, next_values)
    for _ in range(n - 1):
        successor = torch.where(cut[:-1], next_values[:-1], returns[1:])
        returns = torch.cat((rewards[:-1] + _passed(discounts[:-1], successor), returns[-1:]))
    return returns


@torch.no_grad()
def lambda_returns(rewards: Tensor, discounts: Tensor, next_values: Tensor, cut: Tensor, lam: float) -> Tensor:
    """Return TD(lambda) returns: ``G[t] = r[t] + d[t] * ((1 - lam) * next_values[t] + lam * G[t + 1])``.

    Where ``cut[t]``, and at the last row, ``G[t] = r[t] + d[t] * next_values[t]``.

    Args: rewards, discounts, next_values: float ``[T, B]``; cut: bool ``[T, B]``; lam: in [0, 1].
    Returns: ``[T, B]``.
    Source: Sutton and Barto (2018), section 12.1 and eq. 12.18 (recursive form).
    """
    check.time_major("lambda_returns", cut, rewards=rewards, discounts=discounts, next_values=next_values)
    check.in_range("lambda_returns", "lam", lam, 0.0, 1.0)
    rewards, discounts, next_values = _full(rewards), _full(discounts), _full(next_values)
    keep = lam * (~_last_row_too(cut)).to(discounts.dtype)
    return _reverse_scan(rewards + _passed(discounts * (1.0 - keep), next_values), discounts * keep)


@torch.no_grad()
def gae(rewards: Tensor, discounts: Tensor, values: Tensor, next_values: Tensor, cut: Tensor, lam: float) -> Tensor:
    """Return generalised advantage estimates; ``gae(...) + values`` are the value targets.

    ``delta[t] = r[t] + d[t] * next_values[t] - values[t]``; ``A[t] = delta[t] + d[t] * lam * ~cut[t] * A[t + 1]``.

    Args: rewards, discounts, values, next_values: float ``[T, B]``; cut: bool ``[T, B]``; lam: in [0, 1].
    Returns: advantages ``[T, B]``.
    Source: Schulman et al. (2016), High-Dimensional Continuous Control Using GAE, eq. 16.
    """
    check.time_major("gae", cut, rewards=rewards, discounts=discounts, values=values, next_values=next_values)
    check.in_range("gae", "lam", lam, 0.0, 1.0)
    rewards, discounts, values, next_values = _full(rewards), _full(discounts), _full(values), _full(next_values)
    deltas = rewards + _passed(discounts, next_values) - values
    return _reverse_scan(deltas, discounts * (lam * (~cut).to(discounts.dtype)))


def _clipped_exp(log_x: Tensor, bar: float) -> Tensor:
    """``min(bar, exp(log_x))``, clamped in log space so that a huge ratio never overflows."""
    return torch.exp(log_x.clamp(max=math.log(bar) if bar > 0.0 else -math.inf))


@torch.no_grad()
def vtrace(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    next_values: Tensor,
    cut: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    lam: float = 1.0,
) -> VTrace:
    """Return V-trace value targets and policy-gradient advantages.

    With ``rho = min(rho_bar, pi / mu)`` and ``c = lam * min(c_bar, pi / mu)``:
    ``delta[s] = rho[s] * (r[s] + d[s] * next_values[s] - values[s])``;
    ``vs[s] - values[s] = delta[s] + d[s] * c[s] * ~cut[s] * (vs[s + 1] - values[s + 1])``;
    ``pg[s] = min(pg_rho_bar, pi / mu) * (r[s] + d[s] * v' - values[s])`` where ``v'`` is ``vs[s + 1]``, or
    ``next_values[s]`` where ``cut[s]`` and at the last row.

    Args: log_rhos: ``log pi(a|x) - log mu(a|x)``, float ``[T, B]`` (joint over action dimensions); rewards,
    discounts, values, next_values: float ``[T, B]``; cut: bool ``[T, B]``; the bars: at least 0 (``math.inf``
    does not clip; the paper assumes ``rho_bar >= c_bar``); lam: in [0, 1].
    Returns: ``VTrace(vs, pg_advantages)``, each ``[T, B]``.
    Source: Espeholt et al. (2018), IMPALA, section 4.1 eq. 1 and remark 1, section 4.2; lam: remark 2.
    """
    check.time_major(
        "vtrace",
        cut,
        log_rhos=log_rhos,
        rewards=rewards,
        discounts=discounts,
        values=values,
        next_values=next_values,
    )
    check.in_range("vtrace", "lam", lam, 0.0, 1.0)
    for name, bar in (("rho_bar", rho_bar), ("c_bar", c_bar), ("pg_rho_bar", pg_rho_bar)):
        check.in_range("vtrace", name, bar, 0.0, math.inf)
    log_rhos, rewards, discounts = _full(log_rhos), _full(rewards), _full(discounts)
    values, next_values = _full(values), _full(next_values)
    deltas = _clipped_exp(log_rhos, rho_bar) * (rewards + _passed(discounts, next_values) - values)
    traces = _passed(lam * (~cut).to(discounts.dtype), _clipped_exp(log_rhos, c_bar))
    vs = values + _reverse_scan(deltas, _passed(traces, discounts))
    successor = next_values.to(vs.dtype, copy=True)
    successor[:-1] = torch.where(cut[:-1], successor[:-1], vs[1:])
    advantages = _clipped_exp(log_rhos, pg_rho_bar) * (rewards + _passed(discounts, successor) - values)
    return VTrace(vs, advantages)
