"""A policy and a value function on one network, and the agent that acts with it (IMPALA, PPO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from shoal import fast
from shoal.api import Act, Arrays, Tensors
from shoal.fast.small_batch import MAX_ROWS
from shoal.learning.agent import NetworkAgent
from shoal.learning.optimiser import OptimiserConfig
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.batched_agent import BatchedAgent, Draws
from shoal.nets.recurrent import Kind
from shoal.nets.torsos import Activation
from shoal.settings.ranges import Count, Fraction, Layers, NonNegative, OnlyWith
from shoal.settings.schedule import Scheduled, linear


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(OptimiserConfig):
    """Settings of an actor-critic: its network and the weights of its losses."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("activation",)
    only_with: ClassVar[OnlyWith] = {
        "core_size": ("core", "lstm", "gru"), "core_layers": ("core", "lstm", "gru"), "activation": ("hidden",),
    }  # fmt: skip

    learning_rate: float = linear(1e-3, 0.0)
    gamma: Fraction = 0.99
    """Discount per agent step."""
    value_cost: Scheduled[NonNegative] = 0.5
    """Weight of the value loss."""
    entropy_cost: Scheduled[float] = 0.01
    """Weight of the entropy bonus."""
    activation: Activation = "tanh"
    """Activation of the MLP."""
    core: Kind = "none"
    """Recurrent core after the torso."""
    core_size: Count = 128
    """Units of each layer of the recurrent core."""
    core_layers: Layers = 1
    """Layers of the recurrent core, each fed by the one before."""
    normalise_obs: bool = False
    """Normalise vector observations by running statistics."""


class ActorCriticAgent(NetworkAgent[Any, torch.Generator], BatchedAgent):
    """Agent that samples actions from the policy. Beside each action it stores those of ``policy`` (parameters of the
    behaviour policy, [E, P]), ``log_prob`` and ``value`` [E] that ``extras`` names."""

    samples: ClassVar[bool] = True

    def __init__(self, nets: Any, seed: int, extras: Sequence[str] = ()) -> None:  # ActorCritic, or with its ``step``
        self.extras = extras
        super().__init__(nets, torch.Generator().manual_seed(seed))

    def _hold(self, nets: Any) -> None:
        super()._hold(nets)
        few = isinstance(nets, ActorCritic) and self.on_host and "log_prob" not in self.extras
        self._few = nets.small_batch() if few else None

    def initial_state(self, envs: int) -> Tensors:
        return cast(Tensors, self.nets.initial_state(envs))

    def draw(self, obs: Arrays, first: np.ndarray) -> Draws:
        return tuple(self.nets.dist.draw((len(first),), self.rng))

    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        if self._few is None or not drawn or not 0 < len(first) <= MAX_ROWS or not fast.ENABLED:
            return self._respond(obs, first, state, drawn)
        action, policy, value = self._few.act(obs["obs"], np.asarray(drawn[0]))
        return Act(action, state, {"value": value, "policy": policy} if self.extras else {"value": value})

    @torch.inference_mode()
    def _respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: Draws) -> Act:
        policy, value, state = self.nets.step(self.tensors(obs), self.tensor(first), self.placed(state))
        dist = self.nets.dist
        action = dist.chosen(policy, [self.tensor(d) for d in drawn]) if drawn else dist.mode(policy)
        told = {"value": value} | ({"policy": policy} if "policy" in self.extras else {})
        if "log_prob" in self.extras:
            told["log_prob"] = dist.log_prob(policy, action)
        return Act(self.array(action), state, {name: self.array(tensor) for name, tensor in told.items()})


def boundaries(items: Tensors, value: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return discounts, next values and cuts of the traces, each [T, B], with the ends of episodes taken into account.

    value [T + 1, B]. The discount is 0 only at termination. At a truncation the next value is that of the true
    last observation: the next row, or ``final_value`` where the environment resets within the step. The trace is
    cut wherever an episode ended, at rows whose action was ignored, and before them: what follows such a row may be of
    another episode.
    """
    terminated, truncated = items["terminated"], items["truncated"]
    discounts = gamma * (~terminated).float()
    next_values = value[1:]
    if "final_value" in items:
        next_values = torch.where(truncated, items["final_value"], next_values)
    ignored = ~items["valid"]
    cut = terminated | truncated | ignored
    cut[:-1] |= ignored[1:]
    return discounts, next_values, cut
