"""Action values of observations, predicted directly (DQN) or as distributions of returns (C51, QR-DQN, Rainbow)."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from shoal.api import MASK, EnvSpec, Tensors, observations
from shoal.nets.encoder import Encoder, convolved
from shoal.nets.heads import DuelingQHead, QHead
from shoal.nets.noisy import ReturnHead
from shoal.nets.normaliser import RunningNorm, normalised, running_norms, seen
from shoal.nets.outputs import Outputs, detached
from shoal.nets.precision import Precision, autocast, resolve
from shoal.ops import forbid

NOISE = "noise/"  # prefix in a batch's items: one vector of noise for all rows


class QNetwork(nn.Module):
    """Network from observations ``[B, ...]`` to action values ``[B, A]``, which are minus infinity where ``MASK``
    forbids the action.

    streams: units of each dueling stream. normalise_obs: normalise vector observations by running statistics, which are
    buffers of this module.
    """

    def __init__(
        self, env: EnvSpec, *, torso: str = "auto", hidden: tuple[int, ...] = (64, 64), dueling: bool = False,
        precision: Precision = "auto", device: str = "cpu", streams: int = 512,
        normalise_obs: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        vectors = [k for k, o in env.observations.items() if o.kind == "vector"] if normalise_obs else []
        self.norms = running_norms(vectors, lambda k: RunningNorm(env.observations[k].shape))
        actions = self.actions = env.action.sizes[0]
        self.encoder = Encoder(env.observations, torso, hidden, "relu", fc=not dueling)
        features = self.encoder.features
        head = DuelingQHead(features, actions, streams) if dueling else QHead(features, actions)
        self.head: nn.Module = head
        self.precision = resolve(precision, device, self.encoder)
        self.device = device
        self.perceptron = self.encoder.perceptron(head.linear) if isinstance(head, QHead) else None

    def forward(self, obs: Tensors) -> Tensor:
        return forbid(self._values(obs), obs.get(MASK))

    def _values(self, obs: Tensors) -> Tensor:
        obs = normalised(self.norms, obs)
        if self.perceptron is not None and not torch.is_grad_enabled():
            return self.perceptron.forward(self.encoder.vector(obs)).out
        if self.precision == "fp32":
            return cast(Tensor, self.head(self.encoder(obs)))
        with autocast(self.precision, self.device):
            return cast(Tensor, self.head(self.encoder(obs)))

    def seen(self, items: Tensors) -> Tensors:
        """Return the moments of a segment's observations, [T + 1, B, ...], by the names of the running statistics to
        update."""
        return seen(self.norms, items)

    def outputs(self, items: Tensors) -> Outputs:
        """Return the action values [B, A] of a batch's observations, for the loss."""
        obs = observations(items)
        if self.perceptron is not None:
            values, backward = self.perceptron.differentiable(self.encoder.vector(normalised(self.norms, obs)))
            values = forbid(values, obs.get(MASK))
        else:
            values, backward = detached(self(obs))
        values.requires_grad_()
        return Outputs(values, values, backward)


class Description(Protocol):
    """Protocol of the interpretation of ``atoms`` numbers as a return."""

    atoms: int

    def mean(self, described: Tensor) -> Tensor:
        """Return the expected return [...] of numbers [..., atoms]."""


class ReturnNetwork(QNetwork):
    """Network from observations ``[B, ...]`` to distributions of each action's return ``[B, A, atoms]``, and so to
    values ``[B, A]``.

    sigma: initial noise of the layers after the torso (all linear layers of the Atari network), None: plain layers;
    streams: units of their hidden layers. A head on vectors without dueling has no hidden layer.
    """

    head: ReturnHead

    def __init__(
        self, env: EnvSpec, returns: Description, *, torso: str = "auto", hidden: tuple[int, ...] = (64, 64),
        dueling: bool = False, sigma: float | None = None, streams: int = 512, precision: Precision = "auto",
        device: str = "cpu",
    ) -> None:  # fmt: skip
        nn.Module.__init__(self)  # skips QNetwork's constructor, whose head has one number for each action
        images = any(o.kind == "image" or convolved(o, torso) for o in env.observations.values())
        own = dueling or (sigma is not None and images)  # the head replaces the torso's fully connected layer
        self.returns, self.actions = returns, env.action.sizes[0]
        self.encoder = Encoder(env.observations, torso, hidden, "relu", fc=not own)
        self.head = ReturnHead(
            self.encoder.features, env.action.sizes[0], returns.atoms, dueling=dueling, hidden=streams if own else 0,
            sigma=sigma,
        )  # fmt: skip
        self.precision = resolve(precision, device, self.encoder)
        self.device = device
        self.by_hand = self.head.streams(self.encoder) if self.precision == "fp32" else None

    def describe(self, obs: Tensors, noise: Tensor | None = None) -> Tensor:
        """Return the distributions [B, A, atoms]. noise: of the head; None: the mean weights."""
        if self.by_hand is not None and not torch.is_grad_enabled():
            return self.by_hand.forward(self.encoder.vector(obs), self.head.parts(noise))[0]
        if self.precision == "fp32":
            return self.head(self.encoder(obs), noise)  # type: ignore[no-any-return]
        with autocast(self.precision, self.device):
            return self.head(self.encoder(obs), noise)  # type: ignore[no-any-return]

    def forward(self, obs: Tensors, noise: Tensor | None = None) -> Tensor:
        return forbid(self.returns.mean(self.describe(obs, noise)), obs.get(MASK))

    def outputs(self, items: Tensors) -> Outputs:
        """Return the distributions of returns [B, A, atoms] of a batch's observations, for the loss."""
        obs, noise = observations(items), items.get(NOISE + "online")
        if self.by_hand is None:
            values, backward = detached(self.describe(obs, noise))
        else:
            values, backward = self.by_hand.differentiable(self.encoder.vector(obs), self.head.parts(noise))
        values.requires_grad_()
        return Outputs(values, values, backward)
