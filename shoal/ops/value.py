"""Value-learning targets and losses: Q-targets, dueling, value rescaling, distributional projections.

Targets (``double_q_target``, ``categorical_projection``) carry no gradient; losses are
per element, never reduced over the batch: multiply by importance weights, then reduce.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.ops import check
from shoal.ops.moments import masked_mean

__all__ = [
    "categorical_cross_entropy",
    "categorical_kl",
    "categorical_outside",
    "categorical_projection",
    "double_q_target",
    "dueling",
    "explained_variance",
    "huber",
    "quantile_huber",
    "select",
    "signed_hyperbolic",
    "signed_hyperbolic_inverse",
]


def select(q: Tensor, actions: Tensor) -> Tensor:
    """``q[..., actions]``: the value of one action per row.

    Args: q: float ``[..., A]``; actions: integer ``[...]``. Returns: ``[...]``.
    """
    check.shape("select", "actions", actions, q.shape[:-1])
    return q.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)


def explained_variance(error: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """``1 - var(error) / var(target)`` of what ``mask`` counts: 1 for perfect values, 0 for a constant.

    Args: error: targets less values, target: float ``[...]``; mask: bool ``[...]``. Returns: ``[]``, nan where the
    targets are all the same, or none counts.
    """
    if error.device.type != "cpu":
        error, target = error - masked_mean(error, mask), target - masked_mean(target, mask)
        return 1.0 - masked_mean(error.square(), mask) / masked_mean(target.square(), mask)
    error, target = error[mask], target[mask]
    return 1.0 - (error - error.mean()).square().mean() / (target - target.mean()).square().mean()


def discrete_policy(op: str, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """``log softmax(logits)[actions]``, and the entropy ``-sum_a p_a log p_a``, where 0 log 0 = 0: logits may be -inf.

    Args: op: whose arguments these are, for the message; logits: float ``[N, A]``; actions: int64 ``[N]``.
    Returns: two of ``[N]``. Raises: IndexError for an action that is none.
    """
    on_cpu = logits.device.type == "cpu"  # a GPU raises an error of its own, without a wait
    if on_cpu and not bool(((actions >= 0) & (actions < logits.shape[-1])).all()):
        raise IndexError(f"{op}: expected actions from 0 to A - 1, found another")
    logs = logits.log_softmax(-1)
    return select(logs, actions), -(logs.exp() * logs.clamp(min=-1e30)).sum(-1)


@torch.no_grad()
def double_q_target(rewards: Tensor, discounts: Tensor, next_q: Tensor, selector_q: Tensor) -> Tensor:
    """``r + d * next_q[argmax_a selector_q[a]]``: online network selects, target network evaluates.

    Args: rewards, discounts: float ``[...]``; next_q (target network), selector_q (online network):
    float ``[..., A]``. Returns: ``[...]``.
    Source: van Hasselt et al. (2016), Deep RL with Double Q-learning, eq. 4 and section "Double DQN".
    """
    check.same_shape("double_q_target", rewards=rewards, discounts=discounts)
    check.same_shape("double_q_target", next_q=next_q, selector_q=selector_q)
    check.values("double_q_target", "next_q", next_q, rewards)
    return rewards + discounts * select(next_q, selector_q.argmax(-1))


def huber(delta: Tensor, kappa: float = 1.0) -> Tensor:
    """``delta^2 / 2`` where ``|delta| <= kappa``, else ``kappa * (|delta| - kappa / 2)``.

    Its derivative is ``clip(delta, -kappa, kappa)``: DQN's error clipping. Multiply importance weights into
    the result; ``huber(w * delta)`` is something else.

    Args: delta: float, any shape; kappa: positive, infinite for half the square everywhere. Returns: the shape of
    ``delta``.
    Source: Huber (1964); Mnih et al. (2015), Methods, "Training algorithm" (error clipping).
    """
    if kappa <= 0.0:
        raise ValueError(f"huber: expected kappa > 0, found {kappa}")
    return F.huber_loss(delta, delta.new_zeros(()).expand_as(delta), reduction="none", delta=kappa)


def dueling(value: Tensor, advantage: Tensor, dim: int = -1) -> Tensor:
    """``V + A - mean_a A`` along ``dim``, the axis of actions.

    Args: value: float, the shape of ``advantage`` with size 1 along ``dim`` (``[..., 1]``, or ``[..., 1, N]``
    with ``dim=-2`` for N atoms); advantage: float ``[..., A]``. Returns: the shape of ``advantage``.
    Source: Wang et al. (2016), Dueling Network Architectures, eq. 9.
    """
    expected = list(advantage.shape)
    expected[dim] = 1
    check.shape("dueling", "value", value, tuple(expected))
    return advantage + (value - advantage.mean(dim, keepdim=True))


def signed_hyperbolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Value rescaling ``h(x) = sgn(x) (sqrt(|x| + 1) - 1) + eps x``.

    Computed as ``x / (sqrt(|x| + 1) + 1) + eps x``: equal, but without cancellation near 0.

    Args: x: float, any shape; eps: not negative. Returns: the shape of ``x``.
    Source: Pohlen et al. (2018), Observe and Look Further (transformed Bellman operator); R2D2 (Kapturowski et al.
    2019), section 2.3.
    """
    return x / (torch.sqrt(x.abs() + 1.0) + 1.0) + eps * x


def signed_hyperbolic_inverse(x: Tensor, eps: float = 1e-3) -> Tensor:
    """``h^-1(x) = sgn(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)``.

    Computed in an equal form without cancellation, so float32 is accurate to a few units in the last place
    (the printed form is off by 1e-4 at 1 to 100) and eps = 0 works.

    Args: x: float, any shape; eps: not negative. Returns: the shape of ``x``.
    Source: Pohlen et al. (2018), appendix; R2D2 (Kapturowski et al. 2019), section 2.3.
    """
    size = x.abs()
    root = torch.sqrt(1.0 + 4.0 * eps * (size + 1.0 + eps))
    y = 2.0 * (size + 1.0 + eps) / (1.0 + root)  # the printed fraction
    y_minus_1_over_size = (2.0 - 4.0 * eps / (1.0 + 2.0 * eps + root)) / (1.0 + root)
    return x * y_minus_1_over_size * (y + 1.0)


def check_atoms(op: str, atoms: Tensor, rewards: Tensor, name: str, described: Tensor) -> None:
    """Raises ValueError unless there are 2 atoms or more and the tensor of that name has a number for each of them."""
    if atoms.ndim != 1 or atoms.shape[0] < 2:
        raise ValueError(f"{op}: expected atoms of shape (N >= 2,), found {tuple(atoms.shape)}")
    check.shape(op, name, described, (*rewards.shape, atoms.shape[0]))


@torch.no_grad()
def categorical_projection(rewards: Tensor, discounts: Tensor, probs: Tensor, atoms: Tensor) -> Tensor:
    """Project the distribution of ``r + d * Z`` back onto the atoms of ``Z``.

    Each atom's image is clipped to the support and its mass shared between the two nearest atoms in proportion
    to closeness. The lower neighbour is at most atom N - 2, so an image exactly on an atom keeps all its mass
    (the trap of the printed algorithm, where l = u loses it).

    Args: rewards, discounts: float ``[B]``; probs: float ``[B, N]``, next-state probabilities of the chosen
    action; atoms: float ``[N]``, evenly spaced and increasing, N >= 2. Returns: ``[B, N]``, rows summing to
    the row sums of ``probs``.
    Source: Bellemare et al. (2017), A Distributional Perspective on RL, eq. 7 and algorithm 1.
    """
    check.same_shape("categorical_projection", rewards=rewards, discounts=discounts)
    check_atoms("categorical_projection", atoms, rewards, "probs", probs)
    last = atoms.shape[0] - 1
    low, high = atoms[0], atoms[-1]
    image = rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * atoms  # [B, N]
    position = (image.clamp(low, high) - low) * (last / (high - low))
    lower = position.floor().clamp(0, last - 1)
    upper_share = (position - lower).clamp(0.0, 1.0)
    index = lower.nan_to_num(0.0).long()  # a reward that is no number reaches no index: its shares are none
    out = torch.zeros_like(probs)
    out.scatter_add_(-1, index, probs * (1.0 - upper_share))
    return out.scatter_add_(-1, index + 1, probs * upper_share)


def categorical_outside(
    rewards: Tensor, discounts: Tensor, probs: Tensor, atoms: Tensor, rounding: float = 0.0
) -> Tensor:
    """Probability of ``r + d * Z`` beyond the first and the last atom, which its projection clips, ``[B]``.

    Args: as of ``categorical_projection``; rounding: share of the range by which an image must lie beyond.
    """
    check_atoms("categorical_outside", atoms, rewards, "probs", probs)
    image, margin = rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * atoms, rounding * (atoms[-1] - atoms[0])
    return (probs * ((image < atoms[0] - margin) | (image > atoms[-1] + margin))).sum(-1)


def categorical_cross_entropy(target_probs: Tensor, logits: Tensor) -> Tensor:
    """``-sum_i m_i log softmax(logits)_i``; its gradient by the logits is ``p - m``.

    Args: target_probs, logits: float ``[..., N]``. Returns: ``[...]``.
    Source: Bellemare et al. (2017), algorithm 1.
    """
    check.same_shape("categorical_cross_entropy", logits=logits, target_probs=target_probs)
    return -(target_probs * torch.log_softmax(logits, -1)).sum(-1)


def categorical_kl(target_probs: Tensor, logits: Tensor) -> Tensor:
    """``sum_i m_i (log m_i - log softmax(logits)_i)``: the cross-entropy less the target's own entropy, so it
    vanishes at a perfect fit (Rainbow's priority).

    Args: target_probs, logits: float ``[..., N]``. Returns: ``[...]``.
    Source: Hessel et al. (2018), Rainbow, section "The Integrated Agent".
    """
    return categorical_cross_entropy(target_probs, logits) + torch.xlogy(target_probs, target_probs).sum(-1)


def quantile_huber(quantiles: Tensor, targets: Tensor, kappa: float = 1.0, taus: Tensor | None = None) -> Tensor:
    """Quantile-regression loss: summed over the predicted quantiles, averaged over the target samples.

    ``sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij, kappa) / kappa`` with ``u_ij = targets_j - quantiles_i``;
    kappa = 0 is its limit, ``|tau_i - 1{u_ij < 0}| |u_ij|``.

    Args: quantiles: float ``[B, N]``; targets: float ``[B, M]`` (no gradient flows into them); kappa: not
    negative; taus: float ``[N]`` or ``[B, N]``, default the midpoints ``(i + 1/2) / N``. Returns: ``[B]``.
    Source: Dabney et al. (2018), QR-DQN, eqs. 9 and 10; divided by kappa as in IQN (Dabney et al. 2018b).
    """
    check.values("quantile_huber", "targets", targets, quantiles[..., 0])
    if kappa < 0.0:
        raise ValueError(f"quantile_huber: expected kappa >= 0, found {kappa}")
    count = quantiles.shape[-1]
    if taus is None:
        taus = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    elif tuple(taus.shape) not in ((count,), tuple(quantiles.shape)):
        raise ValueError(
            f"quantile_huber: expected taus of shape {(count,)} or {tuple(quantiles.shape)}, found {tuple(taus.shape)}"
        )
    u = targets.detach().unsqueeze(-2) - quantiles.unsqueeze(-1)  # [B, N, M]
    size = huber(u, kappa) / kappa if kappa > 0.0 else u.abs()
    weight = (taus.unsqueeze(-1) - (u.detach() < 0.0).to(u.dtype)).abs()
    return (weight * size).mean(-1).sum(-1)
