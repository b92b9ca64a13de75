"""Q-learning from replayed transitions: the network, the loss and the epsilon-greedy agent of the DQN family.

Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016
(prioritised replay), Horgan et al. 2018 (Ape-X: the same loss, priorities made by the actors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from shoal.api import MASK, Act, Arrays, Batch, Tensors, Update, observations
from shoal.learning.agent import NetworkAgent
from shoal.learning.off_policy import OffPolicy, OffPolicyConfig
from shoal.nets.q_network import QNetwork
from shoal.ops import draw_allowed, select, td_loss
from shoal.settings.ranges import Fraction, Positive
from shoal.settings.schedule import Scheduled
from shoal.types import State


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(OffPolicyConfig):
    """The learning rule of the DQN family."""

    double: bool = True
    """Select the next action by the online network (double Q-learning)."""
    dueling: bool = False
    """Separate value and advantage streams."""
    td_clip: Scheduled[Positive] | None = 1.0
    """Clip of the TD error's gradient (Huber loss); none: squared error."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the loss over the batch (DeepMind's code of DQN sums)."""
    eval_epsilon: Fraction = 0.05
    """Probability of a random action in evaluations that are not greedy (Mnih et al. 2015)."""


def random_actions(obs: Arrays, actions: int, generator: np.random.Generator) -> np.ndarray:
    """One of the ``actions`` for each observation [B, ...], uniformly among those that are allowed: int64 [B]."""
    if MASK in obs:
        return draw_allowed(obs[MASK], generator)
    return generator.integers(actions, size=len(next(iter(obs.values()))))


class QLearning(OffPolicy):
    """The loss. ``beta`` is the exponent of the importance weights, constant or a schedule (None: no weights)."""

    cfg: QLearningConfig
    adds_up = True

    def __init__(self, cfg: QLearningConfig, nets: QNetwork, beta: float | None = None) -> None:
        super().__init__(nets, cfg.target_period, beta, cfg.reduction)
        self.cfg = cfg

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        """The squared or Huber loss of the TD errors; outputs: the values [B, A]."""
        items = batch.items
        with torch.no_grad():
            next_obs = observations(items, "next/")
            next_q = self.target(next_obs)
            selector = self.nets(next_obs) if self.cfg.double else next_q
        loss, error = td_loss(
            outputs, items["action"], items["reward"], items["discount"], next_q, selector, items["weight"],
            clip=self.cfg.td_clip,
        )  # fmt: skip
        metrics = {}
        if self.reports():
            q = select(outputs.detach(), items["action"])
            metrics = {"q_mean": q.sum() * self.scalars[0], "td_error": error.sum() * self.scalars[0]}
        return loss, Update(metrics, error if self.cfg.prioritised else None)


Epsilon = float | np.ndarray


class QAgent(NetworkAgent[QNetwork, np.random.Generator]):
    """Epsilon-greedy. ``epsilon``: one exploration rate or one per environment, or what maps the number of actions this
    agent has chosen (for all its environments together; ``taken`` of them in earlier lives) to it. With
    ``with_values`` it also returns ``q_taken`` and ``q_max``, from which a replay computes the initial priority with
    no further pass."""

    def __init__(
        self, nets: QNetwork, epsilon: Epsilon | Callable[[int], Epsilon], seed: int, with_values: bool = False,
        taken: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(nets, np.random.default_rng(seed))
        self.with_values = with_values
        self.epsilon: Callable[[int], Epsilon] = epsilon if callable(epsilon) else lambda steps: epsilon
        self.steps = taken

    @torch.no_grad()
    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        values = self.values({k: torch.from_numpy(v) for k, v in obs.items()}, greedy).numpy()
        action = values.argmax(-1)
        envs = len(action)
        if not greedy:
            explore = self.rng.random(envs) < self.epsilon(self.steps)
            action = np.where(explore, random_actions(obs, values.shape[-1], self.rng), action)
            self.steps += envs
        extras = {}
        if self.with_values:
            extras = {"q_taken": values[np.arange(envs), action], "q_max": values.max(-1)}
        return Act(action, state, extras)

    def values(self, obs: Tensors, greedy: bool) -> Tensor:
        """The action values [B, A] that it chooses by."""
        return cast(Tensor, self.nets(obs))

    def state_dict(self) -> State:
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.steps = state["steps"]
