"""Weights that are kept in bfloat16, so that autocast need not round them in every forward pass."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from shoal import fast

M = TypeVar("M", bound=nn.Module)


def may_round(layer: nn.Module) -> None:
    """Mark a layer whose weights may be kept in bfloat16: it runs under autocast and does little more than multiply by
    its weights and add its biases."""
    layer.may_round = True  # type: ignore[assignment]


def unrounded(nets: M) -> M:
    """Convert the marked layers of ``nets`` back to float32 in place, and return ``nets``."""
    for layer in nets.modules():
        if getattr(layer, "may_round", False):
            layer.float()
    return nets


def rounded(nets: M) -> M:
    """Convert the weights of marked layers (of image torsos, of a head's hidden layers) to bfloat16 in place, if the
    ``precision`` of ``nets`` is bf16, and return ``nets``. Values and gradients are bit for bit those of autocast,
    except that a noisy layer's noise is rounded to bfloat16 as well."""
    if fast.ENABLED and getattr(nets, "precision", None) == "bf16":
        for layer in nets.modules():
            if getattr(layer, "may_round", False):
                layer.bfloat16()
    return nets
