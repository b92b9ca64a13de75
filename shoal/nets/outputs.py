"""Outputs of a network, detached from its graph. A loss is differentiated with respect to the outputs, and the network
propagates that gradient to its parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from shoal.fast.perceptron import Backward


class Outputs(NamedTuple):
    """Outputs of a network. values: as the loss reads them; leaf: the same values in one tensor, with respect to which
    the loss is differentiated."""

    values: Any
    leaf: Tensor
    backward: Backward


def detached(values: Tensor) -> tuple[Tensor, Backward]:
    """Return ``values`` detached from the graph, and a function that propagates a gradient to their graph."""

    def backward(gradient: Tensor) -> None:
        # values.backward(gradient) would import torch's symbolic shapes to check the gradient's shape
        (values * gradient).sum().backward()  # type: ignore[no-untyped-call]

    return values.detach(), backward
