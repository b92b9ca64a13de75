"""Compiled loss and gradient of an n-step actor-critic with discrete actions
(``systems.a3c.discrete_actor_critic_loss`` on a CPU)."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from shoal.fast.precomputed import compiled_loss
from shoal.jit import jit_late


def actor_critic_loss(outputs: Tensor, *rest: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return loss and metrics as ``systems.a3c.discrete_actor_critic_loss``, which has checked the arguments, all by
    position."""
    return compiled_loss(_by_columns, outputs, rest, 3)


@jit_late
def _by_columns(
    outputs: np.ndarray, actions: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, next_values: np.ndarray,
    cut: np.ndarray, valid: np.ndarray, value_cost: float, entropy_cost: float, gradient: np.ndarray, found: np.ndarray,
) -> float:  # fmt: skip
    length, batch = actions.shape
    count = outputs.shape[1] - 1
    loss, steps = 0.0, 0
    gradient[length * batch :] = 0
    for b in range(batch):
        passed = 0 * rewards[0, b]  # the return from the next step on, in the rewards' precision
        for t in range(length - 1, -1, -1):
            row, action = t * batch + b, actions[t, b]
            if action < 0 or action >= count:
                raise IndexError("discrete_actor_critic_loss: expected actions from 0 to A - 1, found another")
            after = next_values[t, b] if cut[t, b] or t == length - 1 else passed
            passed = rewards[t, b]
            if discounts[t, b] != 0:  # with discount 0 the later return does not count, even if it is infinite or nan
                passed += discounts[t, b] * after
            if not valid[t, b]:
                gradient[row] = 0
                continue
            logits, error = outputs[row, :count], passed - outputs[row, count]
            top = logits[0]
            for a in range(1, count):
                top = max(top, logits[a])
            total = entropy = top - top  # 0 in the logits' precision
            for a in range(count):
                gradient[row, a] = math.exp(logits[a] - top)
                total += gradient[row, a]
            log_total = math.log(total)
            for a in range(count):
                gradient[row, a] /= total  # holds the probability for now
                if gradient[row, a] > 0:
                    entropy -= gradient[row, a] * (logits[a] - top - log_total)
            policy_loss = -error * (logits[action] - top - log_total)
            half = 0.5 * error * error
            for a in range(count):
                chance = gradient[row, a]
                by_logit = -error * ((a == action) - chance)
                if entropy_cost != 0 and chance > 0:
                    by_logit += entropy_cost * chance * (logits[a] - top - log_total + entropy)
                gradient[row, a] = by_logit
            gradient[row, count] = -value_cost * error
            loss += policy_loss + value_cost * half - entropy_cost * entropy
            found[0] += policy_loss
            found[1] += half
            found[2] += entropy
            steps += 1
    found /= max(steps, 1)
    return loss
