"""Heads: features [..., F] -> policy parameters, values and Q-values. Always float32."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from shoal import fast
from shoal.api import Action
from shoal.fast.rounded import may_round
from shoal.nets.distributions import ActionDistribution
from shoal.nets.init import POLICY_GAIN, VALUE_GAIN, orthogonal
from shoal.nets.precision import full
from shoal.ops import dueling


class PolicyHead(nn.Module):
    """Policy head: features [..., F] -> parameters [..., P] of ``.dist``. For continuous actions, the log standard
    deviation is a parameter that does not depend on the state, starts at 0 and is repeated in each row."""

    def __init__(self, features: int, action: Action, gain: float = POLICY_GAIN):
        super().__init__()
        self.dist = ActionDistribution(action)
        dimensions = len(action.low)
        self.linear = orthogonal(nn.Linear(features, self.dist.logits + dimensions), gain)
        self.log_std = nn.Parameter(torch.zeros(dimensions)) if dimensions else None

    def forward(self, x: Tensor) -> Tensor:
        with full(x.device):
            return self.with_deviation(self.linear(x.float()))

    def with_deviation(self, y: Tensor) -> Tensor:
        return y if self.log_std is None else torch.cat((y, self.log_std.expand(*y.shape[:-1], -1)), -1)


class ValueHead(nn.Module):
    """Value head: features [..., F] -> values [...]."""

    def __init__(self, features: int, gain: float = VALUE_GAIN):
        super().__init__()
        self.linear = orthogonal(nn.Linear(features, 1), gain)

    def forward(self, x: Tensor) -> Tensor:
        with full(x.device):
            return cast(Tensor, self.linear(x.float())).squeeze(-1)


def policy_and_value(policy: PolicyHead, value: ValueHead, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return policy parameters and values of the same features by one matrix product. The result is stored output by
    output, which is how losses read it."""
    if not fast.ENABLED:
        return policy(x), value(x)
    with full(x.device):
        rows = x.float().flatten(0, -2)
        weight = torch.cat((policy.linear.weight, value.linear.weight))
        bias = torch.cat((policy.linear.bias, value.linear.bias))
        y = torch.addmm(bias[:, None], weight, rows.t()).view(len(bias), *x.shape[:-1])
        return policy.with_deviation(y[:-1].movedim(0, -1)), y[-1]


class QHead(nn.Module):
    """Linear Q-value head: features [..., F] -> Q-values [..., actions]."""

    def __init__(self, features: int, actions: int):
        super().__init__()
        self.linear = nn.Linear(features, actions)

    @property
    def streams(self) -> list[list[nn.Linear]]:
        """Return its layers."""
        return [[self.linear]]

    def forward(self, x: Tensor) -> Tensor:
        with full(x.device):
            return cast(Tensor, self.linear(x.float()))


class DuelingQHead(nn.Module):
    """Dueling head: Q = V + A - mean A, with a hidden layer of 512 units per stream (Wang et al. 2016). The gradient of
    the two streams into the shared torso is scaled by 1/sqrt(2).

    behind_torso: computed in the torso's precision, as if it were its last layer; False behind a recurrent core.
    """

    def __init__(self, features: int, actions: int, hidden: int = 512, behind_torso: bool = True):
        super().__init__()
        self.value = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.advantage = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, actions))
        for layer in (self.value[0], self.advantage[0]) if behind_torso else ():
            may_round(layer)

    @property
    def streams(self) -> list[list[nn.Linear]]:
        """Return the layers of the advantage stream and of the value stream, which have a relu between them."""
        return [cast(list[nn.Linear], [stream[0], stream[2]]) for stream in (self.advantage, self.value)]

    def forward(self, x: Tensor) -> Tensor:
        x = scale_gradient(x, 1 / math.sqrt(2))
        value, advantage = self.value[:-1](x), self.advantage[:-1](x)
        with full(x.device):
            return dueling(self.value[-1](value.float()), self.advantage[-1](advantage.float()))


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.scale, None  # type: ignore[attr-defined]


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Return ``x``, with a gradient that is multiplied by ``scale``."""
    if not x.requires_grad:
        return x  # no gradient when acting; exporters cannot follow a custom function
    return cast(Tensor, _ScaleGradient.apply(x, scale))  # type: ignore[no-untyped-call]
