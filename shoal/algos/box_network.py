"""What networks of observations and of bounded actions share: the box, what reads observations, and a critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from shoal import fast
from shoal.api import EnvSpec, Tensors
from shoal.fast.perceptron import Perceptron
from shoal.nets import MLP, Encoder, autocast
from shoal.nets.encoder import resolve_torso
from shoal.nets.precision import Precision, resolve
from shoal.nets.torsos import ACTIVATIONS, Activation


class BoxNetwork(nn.Module):
    """Actions inside are in [-1, 1], whatever the environment's box; ``to_box`` and ``from_box`` scale them.

    Images (and a network of the user's own) are read by one encoder (``shared``); vectors go on as they are.
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    half_width: Tensor
    divisor: Tensor

    def __init__(
        self, env: EnvSpec, torso: str, hidden: Sequence[int], activation: Activation, precision: Precision, device: str
    ) -> None:  # fmt: skip
        super().__init__()
        # by NumPy: torch would import its compilers to compute on the device meta, on which shapes are found
        low, high = np.array(env.action.low, np.float32), np.array(env.action.high, np.float32)
        half = (high - low) / 2
        box = {"low": low, "high": high, "middle": low + half, "half_width": half}
        for name, side in {**box, "divisor": np.where(half > 0, half, np.float32(1))}.items():
            self.register_buffer(name, torch.tensor(side), persistent=False)
        self.actions = len(env.action.low)
        self.encoder = _encoder(env, torso, hidden, activation)
        self.shared = self.encoder.own is not None or any(True for _ in self.encoder.parameters())
        self.precision, self.device = resolve(precision, device, self.encoder), device

    def leave_out_fixed(self, critic: Critic) -> None:
        """Let a new critic not depend on actions along sides of length 0. It never would learn to: all that it sees of
        them is 0."""
        fixed = (self.half_width == 0).nonzero()[:, 0] if self.half_width.device.type != "meta" else ()
        if len(fixed):
            with torch.no_grad():
                cast(nn.Linear, critic.rest[0]).weight[:, -self.actions :][:, fixed] = 0.0

    def features(self, obs: Tensors) -> Tensor:
        """Observations ``[B, ...]`` to what all that follows sees ``[B, F]``."""
        if not self.shared:
            return self.encoder.vector(obs)
        with autocast(self.precision, self.device):
            return cast(Tensor, self.encoder(obs))

    def to_box(self, actions: Tensor) -> Tensor:
        """From [-1, 1] to the environment's units, inside its bounds after rounding too."""
        scaled = self.middle + self.half_width * actions
        return torch.minimum(torch.maximum(scaled, self.low), self.high)

    def from_box(self, actions: Tensor) -> Tensor:
        """The inverse of ``to_box``; 0 along a side of length 0."""
        return (actions - self.middle) / self.divisor


class Critic(nn.Module):
    """Features ``[B, F]`` and actions ``[B, A]`` to ``[B, outputs]``."""

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
    images = any(o.kind == "image" for o in env.observations.values())
    resolve_torso(torso)
    plain = torso in ("mlp", "none") or (not images and ":" not in torso)
    return Encoder(env.observations, "none" if plain else torso, hidden[:1], activation)


def perceptron(layers: nn.Sequential, activation: Activation) -> Perceptron | None:
    """The same function of ``layers`` (linear, with (layer norm and) the activation between them) outside of autograd;
    None if speed is turned off."""
    if not fast.ENABLED:
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    norms = [layer for layer in layers if isinstance(layer, nn.LayerNorm)]
    return Perceptron(linear[:-1], ACTIVATIONS[activation], linear[-1:], norms)
