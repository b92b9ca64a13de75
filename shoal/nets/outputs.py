"""What a network says of a batch, cut off from it: a loss is differentiated by the outputs alone, and the network takes
that gradient back to its parameters in its own way."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from shoal.fast.perceptron import Backward


class Outputs(NamedTuple):
    """Outputs of a network. values: as the loss reads them; leaf: the same values as one tensor, with respect to which
    the loss is differentiated."""

    values: Any
    leaf: Tensor
    backward: Backward


def detached(values: Tensor) -> tuple[Tensor, Backward]:
    """``values`` outside of autograd, and ``values.backward``."""

    def backward(gradient: Tensor) -> None:
        # not values.backward(gradient): to check the gradient's shape, torch would import its symbolic shapes
        (values * gradient).sum().backward()  # type: ignore[no-untyped-call]

    return values.detach(), backward
