"""Networks of a user's own, for tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from shoal.api import Observation

Observations = Mapping[str, Observation]


class Layers(nn.Module):
    """A linear layer and a relu, then ``rest``."""

    def __init__(self, observations: Observations, *rest: nn.Module, features: int = 16) -> None:
        super().__init__()
        self.features = features
        self.first = nn.Linear(sum(int(np.prod(leaf.shape)) for leaf in observations.values()), features)
        self.rest = nn.Sequential(*rest)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        rows = torch.cat([leaf.flatten(1).float() for leaf in obs.values()], 1)
        out: Tensor = self.rest(torch.relu(self.first(rows)))
        return out


def dropout(observations: Observations) -> nn.Module:
    return Layers(observations, nn.Dropout(0.5))


def batch_norm(observations: Observations) -> nn.Module:
    return Layers(observations, nn.BatchNorm1d(16))


def tied(observations: Observations) -> nn.Module:
    """The same layer twice."""
    layer = nn.Linear(16, 16)
    return Layers(observations, layer, nn.Tanh(), layer)


def fails(observations: Observations) -> nn.Module:
    raise KeyError("x")
