"""The loss of an n-step actor-critic."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal import fast
from shoal.fast import actor_critic as compiled
from shoal.ops import _check
from shoal.ops.returns import lambda_returns
from shoal.ops.value import discrete_policy

__all__ = ["actor_critic_loss", "discrete_actor_critic_loss"]


def actor_critic_loss(
    log_prob: Tensor, entropy: Tensor, value: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor,
    valid: Tensor, *, value_cost: float, entropy_cost: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``sum_t -log pi(a_t|s_t) (G_t - V(s_t)) + c_v (G_t - V(s_t))^2 / 2 - c_e H(s_t)`` over the valid steps of
    segments; no gradient flows through the advantage, nor through the returns ``G`` (``lambda_returns``, lambda = 1).

    Args: log_prob of the action taken, entropy: float ``[T, B]``; value: ``[T + 1, B]``; reward, discount, next_value:
    float ``[T, B]``; cut, valid: bool ``[T, B]``; the conventions are those of ``lambda_returns``.
    Returns: the loss, and ``[3]`` (detached): policy loss, value loss (half the squared error) and entropy, means over
    the valid steps (0 if there are none).
    Source: Mnih et al. (2016), section 4 and algorithm S3.
    """
    returns = lambda_returns(reward, discount, next_value, cut, 1.0)
    _check.same_shape("actor_critic_loss", returns=returns, log_prob=log_prob, entropy=entropy, valid=valid)
    mask = valid.float()
    error = returns - value[:-1]
    policy_loss = -(error.detach() * log_prob * mask).sum()
    value_loss = 0.5 * (error.square() * mask).sum()
    entropies = (entropy * mask).sum()
    loss = policy_loss + value_cost * value_loss - entropy_cost * entropies
    sums = torch.stack((policy_loss, value_loss, entropies)).detach()
    return loss, sums / mask.sum().clamp(min=1.0)


def discrete_actor_critic_loss(
    outputs: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, valid: Tensor,
    *, value_cost: float, entropy_cost: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``actor_critic_loss`` of a policy of ``A`` discrete actions.

    Args: outputs: float ``[(T + 1) B, A + 1]``, logits and, in the last column, the value; action: int64 ``[T, B]``;
    the others as ``actor_critic_loss`` has them.
    Returns: as ``actor_critic_loss``; the loss is differentiable by ``outputs`` alone.
    Raises: IndexError for an action that is none.
    """
    _check.time_major(
        "discrete_actor_critic_loss", cut, action=action, reward=reward, discount=discount, next_value=next_value,
        valid=valid,
    )  # fmt: skip
    length, batch = action.shape
    _check.shape("discrete_actor_critic_loss", "outputs", outputs, ((length + 1) * batch, outputs.shape[-1]))
    if fast.ENABLED and outputs.device.type == "cpu":
        rest = (action, reward, discount, next_value, cut, valid, value_cost, entropy_cost)
        return compiled.actor_critic_loss(outputs, *rest)
    logits = outputs[: length * batch, :-1]
    log_prob, entropy = discrete_policy("discrete_actor_critic_loss", logits, action.flatten())
    return actor_critic_loss(
        log_prob.view(length, batch), entropy.view(length, batch),
        outputs[:, -1].view(length + 1, batch), reward, discount, next_value, cut, valid, value_cost=value_cost,
        entropy_cost=entropy_cost,
    )  # fmt: skip
