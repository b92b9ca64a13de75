"""Rules by which gradients move parameters that several workers share (``api.Rule``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from shoal.api import Spec, Tensors
from shoal.fast import rmsprop
from shoal.ops.moments import MOMENTS, merge_moments

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

    running: prefixes of names whose ``mean``, ``var`` and ``count`` are running statistics, such as ``norms.obs.``:
    what is added to these are the moments of further data, whatever the learning rate.

    Source: Mnih et al. 2016, section 4 and supplementary section 8 ("Shared RMSProp"); momentum is not used.
    """

    decay: float = 0.99
    eps: float = 0.1
    running: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"SharedRMSProp: expected decay in [0, 1), found {self.decay}")
        if self.eps <= 0.0:
            raise ValueError(f"SharedRMSProp: expected eps > 0, found {self.eps}")

    def statistics(self, params: Spec) -> Spec:
        return {_AVERAGE + name: replace(field) for name, field in params.items() if self._moves(name)}

    def _moves(self, name: str) -> bool:
        return not name.startswith(self.running)

    def apply(self, params: Tensors, statistics: Tensors, gradient: Tensors, lr: float) -> None:
        for prefix in self.running:
            names = [prefix + part for part in MOMENTS]
            merge_moments(*(params[name] for name in names), *(gradient[name] for name in names))
        by_gradient = [name for name in params if self._moves(name)]
        averages = [statistics[_AVERAGE + name] for name in by_gradient]
        steps, moved = [gradient[name] for name in by_gradient], [params[name] for name in by_gradient]
        if rmsprop.moves(moved):
            rmsprop.descend(moved, averages, steps, lr, self.decay, self.eps)
            return
        torch._foreach_mul_(averages, self.decay)
        torch._foreach_addcmul_(averages, steps, steps, value=1.0 - self.decay)
        roots = torch._foreach_add(averages, self.eps)
        torch._foreach_sqrt_(roots)
        torch._foreach_addcdiv_(moved, steps, roots, value=-lr)
