"""Weights kept in bfloat16, where autocast would round them at every forward pass."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from shoal import fast

M = TypeVar("M", bound=nn.Module)


def may_round(layer: nn.Module) -> None:
    """Mark a layer that runs under autocast and does little more than multiply by its weights and add its biases."""
    layer.may_round = True  # type: ignore[assignment]


def unrounded(nets: M) -> M:
    """``nets``, changed: its marked layers are in float32 again."""
    for layer in nets.modules():
        if getattr(layer, "may_round", False):
            layer.float()
    return nets


def rounded(nets: M) -> M:
    """``nets``, changed: if its ``precision`` is bf16, the weights of marked layers (of image torsos, of a head's
    hidden layers) are in bfloat16. Values and gradients stay what autocast made of them, bit for bit; a noisy layer's
    differ by a rounding, as its noise is in bfloat16 too."""
    if fast.ENABLED and getattr(nets, "precision", None) == "bf16":
        for layer in nets.modules():
            if getattr(layer, "may_round", False):
                layer.bfloat16()
    return nets
