"""The network of QT-Opt: the value of an action in a box, which the cross-entropy method maximises; there is no policy.

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
    """How the cross-entropy method looks for the best action: so many samples in so many iterations, of which the
    elites make the next Gaussian, whose deviation (in half sides of the box) is at least ``floor``."""

    samples: int = 64
    elites: int = 6
    iterations: int = 2
    floor: float = 0.0


class CEMNetwork(BoxNetwork):
    """``Q(s, a)``, as a logit where returns lie in [0, 1] (``bounded``), else as it is.

    The action joins at the first layer, whose part of the observation is worked out once for all actions that are tried
    (``encode``). ``noise``: of the search for the best action where nothing is left to chance.
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
        nn.init.uniform_(last.weight, -3e-3, 3e-3)  # at first all actions are worth about the same
        nn.init.uniform_(last.bias, -3e-3, 3e-3)
        self.leave_out_fixed(self.critic)
        self.perceptron = None if self.shared else perceptron(self.critic.rest, activation)
        shape = (search.iterations, 1, search.samples, self.actions)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")
        self.register_buffer("noise", noise, persistent=False)

    def encode(self, obs: Tensors) -> Tensor:
        """Observations ``[B, ...]`` to what the first layer makes of them ``[B, H]``: before the action joins."""
        features, layer = self.features(obs), cast(nn.Linear, self.critic.rest[0])
        with full(features.device):
            return F.linear(features, layer.weight[:, : features.shape[-1]], layer.bias)

    def judge(self, encoded: Tensor, actions: Tensor) -> Tensor:
        """Values (or logits) ``[B, N]`` of actions ``[B or 1, N, A]`` in [-1, 1]."""
        first, *others = self.critic.rest
        x = F.linear(actions, cast(nn.Linear, first).weight[:, -self.actions :]) + encoded.unsqueeze(1)
        for layer in others:
            x = layer.forward(x)
        return x.squeeze(-1)

    def best(self, encoded: Tensor, noise: Tensor | None = None) -> Best:
        """The best actions ``[B, A]`` in [-1, 1] that the search finds, and their values (or logits) ``[B]``."""
        drawn = self.noise if noise is None else noise
        return cem(partial(self.judge, encoded), drawn, self.search.elites, self.search.floor)

    def draw(self, rows: int, generator: torch.Generator) -> Tensor:
        """The noise of so many searches, by a generator of the CPU."""
        shape = (self.search.iterations, rows, *self.noise.shape[2:])
        return transfer.send(torch.randn(shape, generator=generator, device="cpu"), self.noise.device)

    def value(self, outputs: Tensor) -> Tensor:
        """Return the output of ``judge`` as a return."""
        return outputs.sigmoid() if self.bounded else outputs

    def forward(self, obs: Tensors) -> Tensor:
        """The best action ``[B, A]``."""
        return self.clip(self.best(self.encode(obs)).points)

    def outputs(self, items: Tensors) -> Outputs:
        """Values (or logits) ``[B]`` of a batch's actions, to learn from."""
        features = self.features(observations(items))
        actions = items["action"]
        if self.perceptron is not None:
            values, backward = self.perceptron.differentiable(torch.cat((features, actions), -1))
        else:
            with full(features.device):
                values, backward = detached(self.critic(features, actions))
        leaf = values.requires_grad_()
        return Outputs(leaf.squeeze(-1), leaf, backward)
