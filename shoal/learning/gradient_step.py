"""One step of gradient descent on an algorithm's loss: clip, skip what is not finite, descend."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from shoal.api import Batch, Diverged, Update, UsageError
from shoal.learning.algorithm import Algorithm, differentiate
from shoal.ops import SGD, AdaGrad, Adam, RMSProp
from shoal.ops.optimiser import Optimiser
from shoal.settings.ranges import Decay, Fraction, NonNegative, OnlyWith, Positive
from shoal.settings.schedule import Linear, Scheduled, at
from shoal.types import State

MAX_SKIPPED = 10  # non-finite updates in a row before the learner gives up


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """How a learner descends."""

    at_start: ClassVar[tuple[str, ...]] = ("optimiser", "rmsprop_centred")
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
    """Factor of RMSProp's running averages."""
    rmsprop_centred: bool = False
    """Subtract the squared mean gradient in RMSProp."""
    momentum: Fraction = 0.9
    """Factor of sgd's running sum of gradients."""
    weight_decay: NonNegative = 0.0
    """Share of the parameters that sgd adds to their gradient (the gradient of an L2 cost)."""
    max_grad_norm: Scheduled[Positive] | None = 0.5
    """Largest global norm of the gradient; none: no clipping."""


def make_optimiser(cfg: OptimiserConfig, nets: nn.Module) -> Optimiser:
    """The optimiser of ``nets`` that ``cfg`` asks for."""
    if cfg.optimiser == "adam":
        return Adam(nets.parameters(), cfg.learning_rate, eps=cfg.optimiser_eps)
    if cfg.optimiser == "adagrad":
        return AdaGrad(nets.parameters(), cfg.learning_rate, eps=cfg.optimiser_eps)
    if cfg.optimiser == "sgd":
        return SGD(nets.parameters(), cfg.learning_rate, cfg.momentum, cfg.weight_decay)
    return RMSProp(
        nets.parameters(), cfg.learning_rate, cfg.rmsprop_decay, cfg.optimiser_eps, centred=cfg.rmsprop_centred
    )


class GradientStep:
    """Global-norm clip and optimiser step. A step whose loss or gradient is not finite is skipped; after ten updates
    in a row, of ``steps`` each, it raises Diverged. The optimiser's learning rate and ``max_norm`` may be schedules;
    see ``at``. ``beat`` is called at each step: an update of many may take longer than a process may be silent."""

    def __init__(self, optimiser: torch.optim.Optimizer, max_norm: float | None, steps: int = 1) -> None:
        self.optimiser = optimiser
        self._rate: float = optimiser.param_groups[0]["lr"]
        self._max_norm = math.inf if max_norm is None else max_norm
        self.max_norm = at(self._max_norm, 0.0)
        if isinstance(self._rate, Linear):
            set_learning_rate(optimiser, self._rate.at(0.0))
        self.patience = MAX_SKIPPED * steps
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.skipped = 0  # in a row
        self.beat: Callable[[], object] = lambda: None

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate or the clip is a schedule."""
        return isinstance(self._rate, Linear) or isinstance(self._max_norm, Linear)

    def at(self, fraction: float) -> dict[str, float]:
        """This share of the run is done: learning rate and clip are those of now. Returns the clip if it changes."""
        if isinstance(self._rate, Linear):
            set_learning_rate(self.optimiser, self._rate.at(fraction))
        self.max_norm = at(self._max_norm, fraction)
        return {"max_grad_norm": self.max_norm} if isinstance(self._max_norm, Linear) else {}

    def minimise(self, algorithm: Algorithm, batch: Batch) -> tuple[float | None, float, Update]:
        """One step on the algorithm's loss of ``batch``: the gradient's norm before clipping (None: skipped), the loss,
        and the metrics."""
        self.optimiser.zero_grad(set_to_none=True)
        value, joined, update = differentiate(algorithm, batch)
        return self.descend(value, joined), value, update

    def descend(self, value: float, joined: Tensor | None = None) -> float | None:
        """A step along the gradient of a loss of that value: what every parameter's ``grad`` holds, ``joined`` as one
        vector if they lie so. Returns its norm before clipping, None for a step that was skipped."""
        grads = [p.grad for p in self.parameters if p.grad is not None] if joined is None else [joined]
        norm = global_norm(grads)
        if not self.accepts(value, norm):
            return None
        clip(grads, norm, self.max_norm)
        self.optimiser.step()
        return norm

    def accepts(self, loss: float, norm: float) -> bool:
        """Whether a step of such a loss and such a gradient is to be taken."""
        self.beat()
        self.skipped = skipped(self.skipped, loss, norm, "updates", self.patience)
        return not self.skipped


def finite(loss: float, norm: float) -> bool:
    """Whether a step along a gradient of that norm makes sense."""
    return math.isfinite(loss) and math.isfinite(norm)


def skipped(before: int, loss: float, norm: float, unit: str, patience: int = MAX_SKIPPED) -> int:
    """How many gradients in a row are not to be followed, as their loss or norm is not finite, of which ``before``
    were known: 0 for one that is. Raises Diverged for ``patience`` of them; ``unit``: what is counted, in the
    plural."""
    if finite(loss, norm):
        return 0
    if before + 1 >= patience:
        wrong = "gradient" if math.isfinite(loss) else "loss"
        facts = {"loss": loss, "grad_norm": norm, "skipped_in_a_row": before + 1}
        raise Diverged(f"the {wrong} was not finite in {MAX_SKIPPED} {unit} in a row", facts)
    return before + 1


def require_no_buffers(nets: nn.Module, why: str) -> None:
    """UsageError where ``nets`` has buffers, which no gradient moves."""
    if buffers := [name for name, _ in nets.named_buffers()]:
        raise UsageError(f"{why}, and the network has the buffer '{buffers[0]}'")


def global_norm(grads: list[Tensor]) -> float:
    """L2 norm of all ``grads`` together."""
    if len(grads) == 1:
        return float(torch.linalg.vector_norm(grads[0]))
    return math.hypot(*torch.stack(torch._foreach_norm(grads)).tolist())


def excess(norm: float, max_norm: float) -> float:
    """What a gradient of that norm is divided by so as to have at most ``max_norm``: 1 if it has no more."""
    return (norm + 1e-6) / max_norm if norm > max_norm else 1.0


def clip(grads: list[Tensor], norm: float, max_norm: float) -> None:
    """Scale gradients of global norm ``norm`` down to ``max_norm``, as torch's ``clip_grad_norm_`` does."""
    if (divisor := excess(norm, max_norm)) != 1.0:
        torch._foreach_mul_(grads, 1.0 / divisor)


def load_optimiser(optimiser: torch.optim.Optimizer, state: State) -> None:
    """Take the averages of a saved optimiser, but not its settings: those are the configuration's."""
    own = [{k: v for k, v in group.items() if k != "params"} for group in optimiser.param_groups]
    optimiser.load_state_dict(state)
    for group, settings in zip(optimiser.param_groups, own, strict=True):
        group.update(settings)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate
