"""The gradient of one worker's segment, for parameters that live elsewhere: what asynchronous workers add."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.api import Batch, Field, Spec, State, Stateful, Tensors, Update
from shoal.learning.algorithm import Algorithm
from shoal.learning.differentiate import differentiate
from shoal.learning.gradient_step import require_no_buffers, skipped
from shoal.nets.named_tensors import NamedTensors
from shoal.nets.normaliser import running_of
from shoal.ops import clip, global_norm
from shoal.settings.schedule import Linear, at


class SegmentLearner:
    """Differentiates ``algorithm``'s loss of a segment by a private copy of the parameters.

    max_norm: global-norm clip of each gradient, which may be a schedule; None: none.
    """

    def __init__(self, algorithm: Algorithm, max_norm: float | None) -> None:
        self.algorithm, self.max_norm = algorithm, max_norm
        self.names = dict(algorithm.nets.named_parameters())
        self._live = NamedTensors(algorithm.nets)
        # what moves the running statistics, of a network that has some
        self._seen: Callable[[Tensors], Tensors] = getattr(algorithm.nets, "seen", lambda items: {})
        self.skipped = 0  # in a row
        self._fraction, self._scheduled = 0.0, dict[str, float]()

    def at(self, learning_rate: float, fraction: float) -> float:
        """This share of the run is done: give schedules their values of now, and say what the learning rate is."""
        self._fraction, self._scheduled = fraction, self.algorithm.at(fraction)
        if isinstance(self.max_norm, Linear):
            self._scheduled["max_grad_norm"] = self.max_norm.at(fraction)
        return at(learning_rate, fraction)

    def params(self) -> Tensors:
        """Return the parameters, and the running statistics beside them."""
        return {name: tensor.detach() for name, tensor in shared_tensors(self.algorithm.nets).items()}

    def load(self, params: Tensors) -> None:
        """Learn by these, which may change in place before the next call and no sooner."""
        self._live.adopt(params)
        self._live.load(params)

    def gradient(self, items: Tensors) -> tuple[Tensors | None, Update]:
        """Return the gradient by parameter, with the segment's moments by running statistic, and what is reported; None
        where the gradient is not finite. Ten of these in a row raise Diverged."""
        for p in self.names.values():
            p.grad = None
        loss, joined, update = self.differentiate(items)
        grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.names.items()}
        norm = global_norm([joined] if joined is not None else list(grads.values()))
        metrics = {**update.metrics, "loss": loss, "grad_norm": norm}
        self.skipped = skipped(self.skipped, loss, norm, "segments")
        if self.skipped:
            return None, Update({"skipped_updates": 1.0})
        if self.max_norm is not None:
            whole: list[Tensor] = [joined] if joined is not None else list(grads.values())
            clip(whole, norm, at(self.max_norm, self._fraction))
        grads |= self._seen(items)
        return grads, Update({**metrics, **self._scheduled, "skipped_updates": 0.0})

    def differentiate(self, items: Tensors) -> tuple[float, Tensor | None, Update]:
        """Give every parameter its ``grad``; see ``learning.differentiate``. Returns the loss's value."""
        loss, joined, update = differentiate(self.algorithm, self.algorithm.prepare(Batch(items)))
        return loss.item(), joined, update

    def state_dict(self) -> State:
        """Return what the algorithm keeps from segment to segment; the parameters are the channel's."""
        return {"algorithm": self.algorithm.state_dict() if isinstance(self.algorithm, Stateful) else {}}

    def load_state_dict(self, state: State) -> None:
        if isinstance(self.algorithm, Stateful):
            self.algorithm.load_state_dict(state["algorithm"])


def interrupted(last: Tensors, first: Tensor) -> Tensor:
    """Return where environments have begun anew between two segments, as when a run is resumed: nothing may pass there.

    last: a segment's last step, [B] each; first: bool [B], whether the next segment begins with an episode's first
    observation. Returns bool [B].
    """
    ended = last["terminated"] | last["truncated"] if "final_value" in last else ~last["valid"]
    return first & ~ended


def shared_tensors(nets: torch.nn.Module) -> Tensors:
    """Return what workers share of ``nets``, by name: parameters, which gradients move, and the running statistics of
    observations, which the moments of every segment move."""
    named, running = dict(nets.named_parameters()), tuple(running_of(nets))
    return named | {name: b for name, b in nets.named_buffers() if name.startswith(running)}


def parameters_spec(nets: torch.nn.Module) -> Spec:
    """The fields of a ``shared`` channel for ``shared_tensors(nets)``. UsageError where it has further buffers, which
    nothing moves."""
    shared = shared_tensors(nets)
    require_no_buffers(nets, "workers share parameters that gradients move", shared)
    kinds = {name: str(b.dtype).removeprefix("torch.") for name, b in nets.named_buffers()}
    return {name: Field(tuple(t.shape), kinds.get(name, "float32"), axis=0) for name, t in shared.items()}
