"""Compiled loss and gradient of proximal policy optimisation with discrete actions
(``systems.recurrent_ppo.discrete_ppo_loss`` on a CPU)."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from shoal.fast.precomputed import compiled_loss
from shoal.jit import jit_late


def ppo_loss(outputs: Tensor, *rest: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return loss and metrics as ``systems.recurrent_ppo.discrete_ppo_loss``, which has checked the arguments, all by
    position."""
    return compiled_loss(_by_rows, outputs, rest, 6)


@jit_late
def _by_rows(
    outputs: np.ndarray, actions: np.ndarray, old_log_probs: np.ndarray, old_values: np.ndarray, advantages: np.ndarray,
    targets: np.ndarray, weights: np.ndarray, clip: float, value_cost: float, entropy_cost: float, clip_value: bool,
    gradient: np.ndarray, metrics: np.ndarray,
) -> float:  # fmt: skip
    rows, count = outputs.shape[0], outputs.shape[1] - 1
    logits, values = outputs[:, :count], outputs[:, count]
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
            gradient[i, a] /= total  # holds the probability for now
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
        metrics[0] += weight * policy_loss
        metrics[1] += weight * half
        metrics[2] += weight * entropy
        metrics[3] += weight * (ratio - 1 - log_ratio)
        metrics[4] += weight * (abs(ratio - 1) > clip)
        metrics[5] = max(metrics[5], abs(ratio - 1))
    return loss
