"""The optimiser of a learner, as its configuration asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from shoal.ops import SGD, AdaGrad, Adam, RMSProp
from shoal.ops.optimiser import Optimiser
from shoal.settings.ranges import Decay, Fraction, NonNegative, OnlyWith, Positive
from shoal.settings.schedule import Scheduled


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """Settings of a learner's optimiser and gradient clipping."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("optimiser", "rmsprop_centred")
    only_with: ClassVar[OnlyWith] = {
        "optimiser_eps": ("optimiser", "adam", "rmsprop", "adagrad"), "rmsprop_decay": ("optimiser", "rmsprop"),
        "rmsprop_centred": ("optimiser", "rmsprop"), "momentum": ("optimiser", "sgd"),
        "weight_decay": ("optimiser", "sgd"),
    }  # fmt: skip

    learning_rate: Scheduled[NonNegative] = 1e-3
    """Learning rate."""
    optimiser: Literal["adam", "rmsprop", "adagrad", "sgd"] = "adam"
    """Optimiser; rmsprop has its epsilon inside the square root (PyTorch's has it outside); sgd has `momentum`."""
    optimiser_eps: Positive = 1e-5
    """Epsilon of the optimiser."""
    rmsprop_decay: Decay = 0.99
    """Decay of RMSProp's running averages."""
    rmsprop_centred: bool = False
    """Subtract the squared mean gradient in RMSProp."""
    momentum: Fraction = 0.9
    """Factor of sgd's running sum of gradients."""
    weight_decay: NonNegative = 0.0
    """Weight decay of sgd: factor on the parameters that is added to their gradient (the gradient of an L2 cost)."""
    max_grad_norm: Scheduled[Positive] | None = 0.5
    """Largest global norm of the gradient; none: no clipping."""
    gradient: Literal["auto", "eager", "graph", "compile"] = "auto"
    """How a gradient is computed: eager, operation by operation; graph, by a CUDA graph, which launches all operations
    at once; compile, torso by torch.compile; auto: graph for a small perceptron on a GPU, else eager."""


def make_optimiser(cfg: OptimiserConfig, nets: nn.Module) -> Optimiser:
    """Return the optimiser of ``nets`` that ``cfg`` asks for."""
    if cfg.optimiser == "adam":
        return Adam(nets.parameters(), cfg.learning_rate, eps=cfg.optimiser_eps)
    if cfg.optimiser == "adagrad":
        return AdaGrad(nets.parameters(), cfg.learning_rate, eps=cfg.optimiser_eps)
    if cfg.optimiser == "sgd":
        return SGD(nets.parameters(), cfg.learning_rate, cfg.momentum, cfg.weight_decay)
    return RMSProp(
        nets.parameters(), cfg.learning_rate, cfg.rmsprop_decay, cfg.optimiser_eps, centred=cfg.rmsprop_centred
    )
