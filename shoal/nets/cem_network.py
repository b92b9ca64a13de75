"""The network of QT-Opt: action values of a box that the cross-entropy method maximises, in place of a policy.

Kalashnikov et al. 2018, "QT-Opt: Scalable Deep Reinforcement Learning for Vision-Based Robotic Manipulation".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal import transfer
from shoal.api import EnvSpec, Tensors, observations
from shoal.nets.box_network import BoxNetwork, Critic, perceptron
from shoal.nets.outputs import Outputs, detached
from shoal.nets.precision import Precision, full
from shoal.nets.torsos import Activation
from shoal.ops import Best, cem


class Search(NamedTuple):
    """Settings of the cross-entropy method: in each of several iterations, samples are drawn from a Gaussian, and the
    elites among them determine the next Gaussian. Its standard deviation (in half sides of the box) is at least
    ``floor``."""

    samples: int = 64
    elites: int = 6
    iterations: int = 2
    floor: float = 0.0


class CEMNetwork(BoxNetwork):
    """``Q(s, a)``: a logit if returns lie in [0, 1] (``bounded``), else a value.

    The action enters at the first layer. That layer's product with the observation is computed once for all candidate
    actions (``encode``). noise: fixed random numbers of a deterministic search.
    """

    noise: Tensor

    def __init__(
        self, env: EnvSpec, search: Search, *, bounded: bool = False, torso: str = "auto",
        hidden: Sequence[int] = (256, 256), activation: Activation = "relu", precision: Precision = "auto",
        device: str = "cpu",
    ) -> None:  # fmt: skip
        super().__init__(env, torso, hidden, activation, precision, device)
        self.search, self.bounded = search, bounded
        self.critic = Critic(self.encoder.features, self.actions, hidden, 1, activation, late_action=False)
        last = cast(nn.Linear, self.critic.rest[-1])
        nn.init.uniform_(last.weight, -3e-3, 3e-3)  # small, so that all actions have similar values at first
        nn.init.uniform_(last.bias, -3e-3, 3e-3)
        self.leave_out_fixed(self.critic)
        self.perceptron = None if self.shared else perceptron(self.critic.rest, activation)
        shape = (search.iterations, 1, search.samples, self.actions)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")
        self.register_buffer("noise", noise, persistent=False)

    def encode(self, obs: Tensors) -> Tensor:
        """Return the first layer's product ``[B, H]`` with observations ``[B, ...]``, before actions are added."""
        features, layer = self.features(obs), cast(nn.Linear, self.critic.rest[0])
        with full(features.device):
            return F.linear(features, layer.weight[:, : features.shape[-1]], layer.bias)

    def critic_outputs(self, encoded: Tensor, actions: Tensor) -> Tensor:
        """Return values (or logits) ``[B, N]`` of actions ``[B or 1, N, A]`` in [-1, 1]."""
        first, *others = self.critic.rest
        x = F.linear(actions, cast(nn.Linear, first).weight[:, -self.actions :]) + encoded.unsqueeze(1)
        for layer in others:
            x = layer.forward(x)
        return x.squeeze(-1)

    def best(self, encoded: Tensor, noise: Tensor | None = None) -> Best:
        """Return the best actions ``[B, A]`` in [-1, 1] that the search finds, and their values (or logits) ``[B]``."""
        drawn = self.noise if noise is None else noise
        return cem(partial(self.critic_outputs, encoded), drawn, self.search.elites, self.search.floor)

    def draw(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers of ``rows`` searches, drawn by a CPU generator."""
        shape = (self.search.iterations, rows, *self.noise.shape[2:])
        return transfer.send(torch.randn(shape, generator=generator, device="cpu"), self.noise.device)

    def value(self, outputs: Tensor) -> Tensor:
        """Return outputs of ``critic_outputs`` as returns."""
        return outputs.sigmoid() if self.bounded else outputs

    def forward(self, obs: Tensors) -> Tensor:
        """Return the best action ``[B, A]`` for each observation."""
        return self.clip(self.best(self.encode(obs)).points)

    def outputs(self, items: Tensors) -> Outputs:
        """Return the values (or logits) ``[B]`` of a batch's actions, for the loss."""
        features = self.features(observations(items))
        actions = items["action"]
        if self.perceptron is not None:
            values, backward = self.perceptron.differentiable(torch.cat((features, actions), -1))
        else:
            with full(features.device):
                values, backward = detached(self.critic(features, actions))
        leaf = values.requires_grad_()
        return Outputs(leaf.squeeze(-1), leaf, backward)
