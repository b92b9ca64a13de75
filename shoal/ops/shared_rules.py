"""Rules by which gradients move parameters that several workers share (``api.Rule``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from shoal.api import Spec, Tensors
from shoal.fast import rmsprop

__all__ = ["Replace", "SharedRMSProp"]

_AVERAGE = "square_average/"


@dataclass(frozen=True)
class Replace:
    """What is added takes the place of what was there; the learning rate means nothing.

    Source: the shared target network of asynchronous Q-learning, ``theta^- = theta`` (Mnih et al. 2016, algorithm 1).
    """

    def statistics(self, params: Spec) -> Spec:
        return {}

    def apply(self, params: Tensors, statistics: Tensors, gradient: Tensors, lr: float) -> None:
        for name, tensor in params.items():
            tensor.copy_(gradient[name])


@dataclass(frozen=True)
class SharedRMSProp:
    """RMSProp whose average of squares is shared: ``g = decay g + (1 - decay) d^2``, ``theta = theta - lr d / sqrt(g +
    eps)``, element by element, with epsilon inside the root.

    Source: Mnih et al. 2016, section 4 and supplementary section 8 ("Shared RMSProp"); momentum is not used.
    """

    decay: float = 0.99
    eps: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"SharedRMSProp: expected decay in [0, 1), found {self.decay}")
        if self.eps <= 0.0:
            raise ValueError(f"SharedRMSProp: expected eps > 0, found {self.eps}")

    def statistics(self, params: Spec) -> Spec:
        return {_AVERAGE + name: replace(field) for name, field in params.items()}

    def apply(self, params: Tensors, statistics: Tensors, gradient: Tensors, lr: float) -> None:
        averages = [statistics[_AVERAGE + name] for name in params]
        steps, moved = [gradient[name] for name in params], list(params.values())
        if rmsprop.moves(moved):
            rmsprop.descend(moved, averages, steps, lr, self.decay, self.eps)
            return
        torch._foreach_mul_(averages, self.decay)
        torch._foreach_addcmul_(averages, steps, steps, value=1.0 - self.decay)
        roots = torch._foreach_add(averages, self.eps)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(moved, steps, roots, value=-lr)
