"""Orthogonal initialisation: gain sqrt(2) for hidden layers, 0.01 for the last layer of a policy, 1 for that of a
value."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import nn

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0

M = TypeVar("M", bound=nn.Module)


def orthogonal(module: M, gain: float = HIDDEN_GAIN) -> M:
    """Make every weight matrix in ``module`` orthogonal and every bias zero, in place, and return ``module``.

    Linear and convolution layers use ``gain``; each gate of a recurrent layer uses gain 1.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.RNNBase):
            with torch.no_grad():
                for name, p in layer.named_parameters():
                    if name.startswith("bias"):
                        p.zero_()
                    else:
                        for gate in torch.split(p, layer.hidden_size):
                            nn.init.orthogonal_(gate, 1.0)
    return module
