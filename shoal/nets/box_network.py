"""Base class of networks for bounded continuous actions, and a critic network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from shoal import fast
from shoal.api import EnvSpec, Tensors
from shoal.fast.perceptron import Perceptron
from shoal.nets import MLP, Encoder, autocast
from shoal.nets.encoder import convolved, resolve_torso
from shoal.nets.precision import Precision, resolve
from shoal.nets.torsos import ACTIVATIONS, Activation


class BoxNetwork(nn.Module):
    """Base class of networks for actions in a box, scaled to [-1, 1]. Dimensions with equal bounds have action 0.

    One encoder (``shared``) reads images, or all observations if it is the user's network. Vectors are passed on
    unchanged.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, env: EnvSpec, torso: str, hidden: Sequence[int], activation: Activation, precision: Precision, device: str
    ) -> None:  # fmt: skip
        super().__init__()
        for name in ("low", "high"):
            self.register_buffer(name, torch.tensor(getattr(env.action, name)), persistent=False)
        self.actions = len(env.action.low)
        self.encoder = _encoder(env, torso, hidden, activation)
        self.shared = self.encoder.own is not None or any(True for _ in self.encoder.parameters())
        self.precision, self.device = resolve(precision, device, self.encoder), device

    def leave_out_fixed(self, critic: Critic) -> None:
        """Set to 0 a new critic's weights for action dimensions with equal bounds. Their value is always 0, so that the
        critic would never learn to ignore them."""
        fixed = (self.high == self.low).nonzero()[:, 0] if self.high.device.type != "meta" else ()
        if len(fixed):
            with torch.no_grad():
                cast(nn.Linear, critic.rest[0]).weight[:, -self.actions :][:, fixed] = 0.0

    def features(self, obs: Tensors) -> Tensor:
        """Encode observations ``[B, ...]`` as features ``[B, F]``."""
        if not self.shared:
            return self.encoder.vector(obs)
        with autocast(self.precision, self.device):
            return cast(Tensor, self.encoder(obs))

    def clip(self, actions: Tensor) -> Tensor:
        """Clip actions ``[..., A]`` to the box."""
        return torch.minimum(torch.maximum(actions, self.low), self.high)


class Critic(nn.Module):
    """A network from features ``[B, F]`` and actions ``[B, A]`` to outputs ``[B, outputs]``."""

    def __init__(
        self, features: int, actions: int, hidden: Sequence[int], outputs: int, activation: Activation,
        late_action: bool, layer_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        before, after = hidden[:late_action], hidden[late_action:]
        self.first = MLP((features, *before), activation, layer_norm) if before else nn.Identity()
        joined = ((features, *before)[-1] + actions, *after)
        self.rest = nn.Sequential(*MLP(joined, activation, layer_norm), nn.Linear(joined[-1], outputs))

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        y: Tensor = self.rest(torch.cat((self.first(features), actions), -1))
        return y


def _encoder(env: EnvSpec, torso: str, hidden: Sequence[int], activation: Activation) -> Encoder:
    images = any(convolved(o, torso) for o in env.observations.values())
    resolve_torso(torso)
    plain = torso in ("mlp", "none") or (not images and ":" not in torso)
    return Encoder(env.observations, "none" if plain else torso, hidden[:1], activation)


def perceptron(layers: nn.Sequential, activation: Activation) -> Perceptron | None:
    """Return a compiled version of ``layers`` (linear layers with the activation, and possibly layer norms, between
    them) that computes outside autograd, or None if compiled code is turned off."""
    if not fast.ENABLED:
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    norms = [layer for layer in layers if isinstance(layer, nn.LayerNorm)]
    return Perceptron(linear[:-1], ACTIVATIONS[activation], linear[-1:], norms)
