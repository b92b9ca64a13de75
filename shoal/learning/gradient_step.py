"""One step of gradient descent on an algorithm's loss: clip, skip what is not finite, descend."""

from __future__ import annotations

import math
from collections.abc import Callable, Container

import torch
from torch import Tensor, nn

from shoal import transfer
from shoal.api import Batch, Diverged, Update, UsageError
from shoal.learning.algorithm import Algorithm
from shoal.learning.differentiate import differentiate
from shoal.ops import clip, global_norm
from shoal.ops.optimiser import set_learning_rate
from shoal.settings.schedule import Linear, at

MAX_SKIPPED = 10  # non-finite updates in a row before the learner gives up


class GradientStep:
    """Global-norm clip and optimiser step. A step whose loss or gradient is not finite is skipped; after ten updates
    in a row, of ``steps`` each, it raises Diverged. The optimiser's learning rate and ``max_norm`` may be schedules;
    see ``at``. ``beat`` is called at each step: an update of many may take longer than a process may be silent.
    ``meanwhile`` is called while a device that is not the CPU works out the gradient, before the host waits for it."""

    def __init__(self, optimiser: torch.optim.Optimizer, max_norm: float | None, steps: int = 1) -> None:
        self.optimiser = optimiser
        # one of torch's, given a schedule, has it in its groups until now
        self._rate: float = getattr(optimiser, "learning_rate", optimiser.param_groups[0]["lr"])
        self._max_norm = math.inf if max_norm is None else max_norm
        self.max_norm = at(self._max_norm, 0.0)
        if isinstance(self._rate, Linear):
            set_learning_rate(optimiser, self._rate.at(0.0))
        self.patience = MAX_SKIPPED * steps
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.skipped = 0  # in a row
        self.beat: Callable[[], object] = lambda: None
        self.meanwhile: Callable[[], object] | None = None

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
        loss, joined, update = differentiate(algorithm, batch)
        grads = [p.grad for p in self.parameters if p.grad is not None] if joined is None else [joined]
        value, norm, update = outcome(loss, grads, update, self.meanwhile)
        return self.descend(value, grads, norm), value, update

    def descend(self, value: float, grads: list[Tensor], norm: float) -> float | None:
        """A step along the gradient of a loss of that value: ``grads`` are what every parameter's ``grad`` holds, and
        ``norm`` is theirs together. Returns it, as it is before clipping; None for a step that was skipped."""
        if not self.accepts(value, norm):
            return None
        clip(grads, norm, self.max_norm)
        self.optimiser.step()
        return norm

    def accepts(self, loss: float, norm: float) -> bool:
        """Return whether a step of such a loss and such a gradient is to be taken."""
        self.beat()
        self.skipped = skipped(self.skipped, loss, norm, "updates", self.patience)
        return not self.skipped


def finite(loss: float, norm: float) -> bool:
    """Return whether a step along a gradient of that norm makes sense."""
    return math.isfinite(loss) and math.isfinite(norm)


def skipped(before: int, loss: float, norm: float, unit: str, patience: int = MAX_SKIPPED) -> int:
    """Return how many gradients in a row are not to be followed, as their loss or norm is not finite, of which
    ``before`` were known: 0 for one that is. Raises Diverged for ``patience`` of them; ``unit``: what is counted, in
    the plural."""
    if finite(loss, norm):
        return 0
    if before + 1 >= patience:
        wrong = "gradient" if math.isfinite(loss) else "loss"
        facts = {"loss": loss, "grad_norm": norm, "skipped_in_a_row": before + 1}
        raise Diverged(f"the {wrong} was not finite in {MAX_SKIPPED} {unit} in a row", facts)
    return before + 1


def require_no_buffers(nets: nn.Module, why: str, known: Container[str] = ()) -> None:
    """UsageError where ``nets`` has buffers that belong to its state, which no gradient moves, but for the ``known``
    ones."""
    parameters = {name for name, _ in nets.named_parameters(remove_duplicate=False)}
    if buffers := [name for name in nets.state_dict() if name not in parameters and name not in known]:
        raise UsageError(f"{why}, and the network has the buffer '{buffers[0]}'")


def outcome(
    loss: Tensor, grads: list[Tensor], update: Update, meanwhile: Callable[[], object] | None = None
) -> tuple[float, float, Update]:
    """Return the loss, the norm of ``grads`` together, and the update. On a device that is not the CPU, the host waits
    for it here and nowhere else: metrics and priorities come with them, so that nobody asks the device for them."""
    if loss.device.type == "cpu":
        return loss.item(), global_norm(grads), update
    norms = [torch.linalg.vector_norm(grads[0])] if len(grads) == 1 else torch._foreach_norm(grads)
    (value, *sizes), update, _ = transfer.received(loss, norms, update, (), meanwhile)
    return value, math.hypot(*sizes), update
