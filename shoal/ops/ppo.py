"""The loss of proximal policy optimisation."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal import fast
from shoal.fast import ppo as compiled
from shoal.ops import _check
from shoal.ops.value import discrete_policy

__all__ = ["discrete_ppo_loss", "ppo_loss"]


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
        metrics = torch.stack((policy_loss, 0.5 * error, entropy, kl, (off > clip).float())).mv(weight)
    largest = off.max() if off.numel() else off.new_zeros(())  # a member's part of a small minibatch may be empty
    return loss.dot(weight), torch.cat((metrics, largest.view(1)))


def discrete_ppo_loss(
    outputs: Tensor, action: Tensor, old_log_prob: Tensor, old_value: Tensor, advantage: Tensor,
    target: Tensor, weight: Tensor, *, clip: float, value_cost: float, entropy_cost: float, clip_value: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``ppo_loss`` of a policy of ``A`` discrete actions.

    Args: outputs: float ``[N, A + 1]``, logits and, in the last column, the value; action: int64 ``[N]``; the others as
    ``ppo_loss`` has them, float ``[N]``.
    Returns: as ``ppo_loss``; the loss is differentiable by ``outputs`` alone.
    Raises: IndexError for an action that is none.
    """
    _check.same_shape(
        "discrete_ppo_loss", action=action, old_log_prob=old_log_prob, old_value=old_value, advantage=advantage,
        target=target, weight=weight,
    )  # fmt: skip
    _check.values("discrete_ppo_loss", "outputs", outputs, action)
    if fast.ENABLED and outputs.device.type == "cpu":
        rest = (action, old_log_prob, old_value, advantage, target, weight, clip, value_cost, entropy_cost, clip_value)
        return compiled.ppo_loss(outputs, *rest)
    log_prob, entropy = discrete_policy("discrete_ppo_loss", outputs[:, :-1], action)
    return ppo_loss(
        log_prob, entropy, outputs[:, -1], old_log_prob, old_value, advantage, target, weight, clip=clip,
        value_cost=value_cost, entropy_cost=entropy_cost, clip_value=clip_value,
    )  # fmt: skip
