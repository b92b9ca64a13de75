"""The loss of proximal policy optimisation: of any policy by torch's operations, of discrete actions by hand.

By hand, it is one compiled function: of a minibatch of 4,096 steps, some forty small operations of torch with their
gradients take 0.8 ms and this takes 0.2 to 0.3 (docs/performance.md).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.jit import jit_late
from shoal.ops import _check

__all__ = ["DiscretePPOLoss", "discrete_ppo_loss", "ppo_loss"]


def ppo_loss(
    log_prob: Tensor, entropy: Tensor, value: Tensor, old_log_prob: Tensor, old_value: Tensor, advantage: Tensor,
    target: Tensor, weight: Tensor, *, clip: float, value_cost: float, entropy_cost: float, clip_value: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``sum_i w_i (-min(rho A, clip(rho, 1 - eps, 1 + eps) A) + c_v (V - target)^2 / 2 - c_e H)``.

    Args: of the policy that learns, log-probability of the action taken, entropy and value; of the one that acted,
    log-probability and value; advantage, target, weight: float ``[N]`` all; clip: epsilon; clip_value: of the value's
    error and that of the value at most ``clip`` from the old one, the larger.
    Returns: the loss, and ``[6]`` (detached): policy loss, value loss (half the squared error), entropy, KL (the
    estimator ``rho - 1 - log rho``) and clipped fraction, as weighted sums, and the largest ``|rho - 1|``.
    Source: Schulman et al. (2017), eq. 7 and 9; the value's clip: Huang et al. (2022), detail 9.
    """
    _check.same_shape(
        "ppo_loss", log_prob=log_prob, entropy=entropy, value=value, old_log_prob=old_log_prob, old_value=old_value,
        advantage=advantage, target=target, weight=weight,
    )  # fmt: skip
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    error = (value - target).square()
    if clip_value:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    loss = policy_loss + 0.5 * value_cost * error
    if entropy_cost:
        loss = loss - entropy_cost * entropy
    with torch.no_grad():
        off = (ratio - 1).abs()
        kl = ratio - 1 - log_ratio
        told = torch.stack((policy_loss, 0.5 * error, entropy, kl, (off > clip).float())).mv(weight)
    return loss.dot(weight), torch.cat((told, off.max().view(1)))


class DiscretePPOLoss(NamedTuple):
    """``gradient``: of the loss by the logits and, in the last column, the value ``[N, A + 1]``; ``found`` ``[6]``."""

    loss: float
    gradient: Tensor
    found: Tensor


@torch.no_grad()
def discrete_ppo_loss(
    logits: Tensor, action: Tensor, value: Tensor, old_log_prob: Tensor, old_value: Tensor, advantage: Tensor,
    target: Tensor, weight: Tensor, *, clip: float, value_cost: float, entropy_cost: float, clip_value: bool = False,
) -> DiscretePPOLoss:  # fmt: skip
    """``ppo_loss`` of a policy of ``A`` discrete actions, on a CPU, with its gradient.

    Args: logits: float ``[N, A]``; action: int64 ``[N]``; the others as ``ppo_loss`` has them, float ``[N]``.
    Raises: IndexError for an action that is none.
    """
    _check.same_shape(
        "discrete_ppo_loss", action=action, value=value, old_log_prob=old_log_prob, old_value=old_value,
        advantage=advantage, target=target, weight=weight,
    )  # fmt: skip
    _check.values("discrete_ppo_loss", "logits", logits, action)
    gradient, found = logits.new_empty((len(logits), logits.shape[1] + 1)), torch.zeros(6, dtype=torch.float64)
    loss = _by_rows(
        logits.numpy(), action.numpy(), value.numpy(), old_log_prob.numpy(), old_value.numpy(), advantage.numpy(),
        target.numpy(), weight.numpy(), clip, value_cost, entropy_cost, clip_value, gradient.numpy(), found.numpy(),
    )  # fmt: skip
    return DiscretePPOLoss(loss, gradient, found.float())


@jit_late
def _by_rows(
    logits: Any, actions: Any, values: Any, old_log_probs: Any, old_values: Any, advantages: Any, targets: Any,
    weights: Any, clip: float, value_cost: float, entropy_cost: float, clip_value: bool, gradient: Any, found: Any,
) -> float:  # fmt: skip
    rows, count = logits.shape
    loss = 0.0
    for i in range(rows):
        action, weight, advantage = actions[i], weights[i], advantages[i]
        if action < 0 or action >= count:
            raise IndexError("discrete_ppo_loss: expected actions from 0 to A - 1, found another")
        top = logits[i, 0]
        for a in range(1, count):
            top = max(top, logits[i, a])
        total = entropy = top - top  # 0 in the logits' precision
        for a in range(count):
            gradient[i, a] = math.exp(logits[i, a] - top)
            total += gradient[i, a]
        log_total = math.log(total)
        for a in range(count):
            gradient[i, a] /= total  # the probability, for now
            if gradient[i, a] > 0:
                entropy -= gradient[i, a] * (logits[i, a] - top - log_total)
        log_ratio = logits[i, action] - top - log_total - old_log_probs[i]
        ratio = math.exp(log_ratio)
        policy_loss, slope = -ratio * advantage, -ratio * advantage
        if (advantage > 0 and ratio > 1 + clip) or (advantage < 0 and ratio < 1 - clip):
            policy_loss, slope = -min(max(ratio, 1 - clip), 1 + clip) * advantage, 0 * slope
        error = values[i] - targets[i]
        value_slope = error
        if clip_value:
            moved = values[i] - old_values[i]
            bounded = old_values[i] + min(max(moved, -clip), clip) - targets[i]
            if abs(moved) > clip and bounded * bounded > error * error:
                error, value_slope = bounded, 0 * bounded
        for a in range(count):
            chance = gradient[i, a]
            by_logit = slope * ((a == action) - chance)
            if entropy_cost != 0 and chance > 0:
                by_logit += entropy_cost * chance * (logits[i, a] - top - log_total + entropy)
            gradient[i, a] = weight * by_logit
        gradient[i, count] = weight * value_cost * value_slope
        half = 0.5 * error * error
        loss += weight * (policy_loss + value_cost * half - entropy_cost * entropy)
        found[0] += weight * policy_loss
        found[1] += weight * half
        found[2] += weight * entropy
        found[3] += weight * (ratio - 1 - log_ratio)
        found[4] += weight * (abs(ratio - 1) > clip)
        found[5] = max(found[5], abs(ratio - 1))
    return loss
