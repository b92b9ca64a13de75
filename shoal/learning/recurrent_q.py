"""Recurrent Q-learning from replayed sequences: the network, the loss and the agent of R2D2.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.api import Act, Arrays, Batch, Tensors, Update, observations
from shoal.learning.agent import NetworkAgent
from shoal.learning.off_policy import OffPolicy
from shoal.learning.q_learning import QLearningConfig, random_actions
from shoal.nets.recurrent_q_network import RecurrentQNetwork
from shoal.ops import select, sequence_td_loss, signed_hyperbolic_inverse
from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, OnlyWith, Positive, Repeats
from shoal.settings.schedule import Scheduled


@dataclass(frozen=True, kw_only=True)
class RecurrentQConfig(QLearningConfig):
    """The learning rule of R2D2."""

    at_start: ClassVar[tuple[str, ...]] = ("rescale",)
    only_with: ClassVar[OnlyWith] = {"core_size": ("core", "lstm", "gru"), "priority_mix": ("prioritised",)}

    gamma: Fraction = 0.997
    n_step: Repeats = 5
    """Steps of reward before the bootstrap (agent steps)."""
    dueling: bool = True
    """Separate value and advantage streams of 512 units."""
    prioritised: bool = True
    """Sample in proportion to priorities; false: uniformly."""
    td_clip: Scheduled[Positive] | None = None
    """Clip of the TD error's gradient (Huber loss); none: squared error, as in the paper."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the loss over sequences; over a sequence's steps it is summed."""
    core: Literal["lstm", "gru", "none"] = "lstm"
    """Recurrent core after the torso; none: a feed-forward network."""
    core_size: Count = 128
    """Units of the core."""
    burn_in: Natural = 40
    """Steps of a sequence before those it is learned from, which only bring the recurrent state up to date."""
    start_state: Literal["stored", "zero"] = "stored"
    """Recurrent state at a sequence's start: the actor's, or zero."""
    rescale: NonNegative | None = 1e-3
    """Epsilon of the value rescaling h(x) = sgn(x)(sqrt(|x| + 1) - 1) + epsilon x; none: no rescaling."""
    priority_mix: Fraction = 0.9
    """Weight η of a sequence's largest TD error in its priority; the rest is their mean's."""


class RecurrentQLearning(OffPolicy):
    """The loss on sequences. ``beta`` is the exponent of the importance weights of prioritised replay, constant or a
    schedule."""

    cfg: RecurrentQConfig

    def __init__(self, cfg: RecurrentQConfig, nets: RecurrentQNetwork, beta: float) -> None:
        super().__init__(nets, cfg.target_period, beta if cfg.prioritised else None, cfg.reduction)
        self.cfg = cfg

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """The squared or Huber loss of the TD errors, summed over a sequence's steps, weighted by importance; outputs:
        the values [m + 1, B, A] of the m steps that are learned from and of the observation after them."""
        cfg, begin = self.cfg, self.cfg.burn_in
        action, reward, terminated = (batch.items[k][begin:-1] for k in ("action", "reward", "terminated"))
        valid, discounts = batch.items["valid"][begin:], cfg.gamma * (~terminated).float()
        with torch.no_grad():
            target_q = self.target(batch.items)
        loss, error, priorities = sequence_td_loss(
            outputs, target_q, action, reward, discounts, valid, batch.items["weight"],
            double=cfg.double, n=cfg.n_step, eps=cfg.rescale, clip=cfg.td_clip, eta=cfg.priority_mix,
        )  # fmt: skip
        metrics: Tensors = {}
        if self.reports():
            real, q = valid[:-1], select(outputs.detach()[:-1], action)
            returns = q if cfg.rescale is None else signed_hyperbolic_inverse(q, cfg.rescale)
            steps = real.sum()
            metrics = {"q_mean": torch.where(real, returns, 0.0).sum() / steps, "td_error": error.sum() / steps}
            metrics |= self.staleness(outputs.detach(), batch.items)
        return loss, Update(metrics, priorities if cfg.prioritised else None)

    @torch.no_grad()
    def staleness(self, values: Tensor, items: Tensors) -> Tensors:
        """Delta Q: how far the stored states are from those that the network now comes to, at the first and at the last
        step that is learned from, as the distance of the values that follow from them over the sequence's largest
        value (section 3). Empty where the replay keeps no states to compare with."""
        begin, out = self.cfg.burn_in, {}
        last = len(values) - 2
        valid = items["valid"][begin:]
        largest = values.amax(-1).masked_fill(~_shown(valid), -torch.inf).amax(0).abs().clamp(min=1e-6)
        for name, row in (("first", 0), ("last", last)):
            state = {k: items[f"probe/{name}/{k}"] for k in self.nets.core.keys if f"probe/{name}/{k}" in items}
            if not state:
                continue
            obs = {k: v[begin + row] for k, v in observations(items).items()}
            q, _ = self.nets.step(obs, items["first"][begin + row], state)
            moved = (values[row] - q).nan_to_num(0.0)  # of actions that are forbidden there is no value
            distance = torch.linalg.vector_norm(moved, dim=-1) / largest
            if (real := valid[row]).any():
                out[f"delta_q_{name}"] = distance[real].mean()
        return out


def _shown(valid: Tensor) -> Tensor:
    """Rows of the steps, and of the observation after the last: valid [T, B]."""
    return valid | torch.cat((valid[:1], valid[:-1]))


class RecurrentQAgent(NetworkAgent[RecurrentQNetwork, np.random.Generator]):
    """Epsilon-greedy with a recurrent state. ``epsilon``: the exploration rate of each environment, or one for all.
    Stores ``q_taken`` and ``q_max``, from which the replay computes the initial priority with no further pass."""

    def __init__(self, nets: RecurrentQNetwork, epsilon: float | np.ndarray, seed: int) -> None:
        super().__init__(nets, np.random.default_rng(seed))
        self.epsilon = epsilon

    def initial_state(self, envs: int) -> Tensors:
        return self.nets.initial_state(envs)

    @torch.inference_mode()
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        tensors = {k: torch.from_numpy(v) for k, v in obs.items()}
        q, state = self.nets.step(tensors, torch.from_numpy(first), state)
        values = q.numpy()
        action = values.argmax(-1)
        envs = len(action)
        if not greedy:
            explore = self.rng.random(envs) < self.epsilon
            action = np.where(explore, random_actions(obs, values.shape[-1], self.rng), action)
        extras = {"q_taken": values[np.arange(envs), action], "q_max": values.max(-1)}
        return Act(action, state, extras)
