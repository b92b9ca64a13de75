"""Learning through a parameter server: learners make gradients, shards of the server move the parameters.

Dean et al. 2012, "Large Scale Distributed Deep Networks" (Downpour SGD); Nair et al. 2015, "Massively Parallel Methods
for Deep Reinforcement Learning" (Gorila). A gradient is one vector of those of all parameters (``api.places``). A shard
owns an interval of it, whatever tensors that cuts, since its optimiser works element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal import transfer
from shoal.api import (
    PART,
    Batch,
    Field,
    Spec,
    State,
    Stateful,
    Tensors,
    Update,
    places,
    spec_size,
    views,
)
from shoal.learning.algorithm import Algorithm
from shoal.learning.differentiate import differentiate, to_device
from shoal.learning.gradient_step import require_no_buffers, skipped
from shoal.learning.optimiser import OptimiserConfig, make_optimiser
from shoal.ops import clip, global_norm
from shoal.ops.optimiser import load_optimiser
from shoal.settings.schedule import at

GRADIENT = "gradient"  # the field of a message to the server


class OutlierFilter:
    """Finds losses far above their running mean: ``|x| > m + deviations * sqrt(s - m^2)`` (Nair et al. 2015, section 4,
    without numbers).

    ``m`` and ``s`` are means of ``|x|`` and ``x^2``, over all losses until there are ``1 / (1 - decay)`` of them and
    with factor ``decay`` from then on. A loss is judged before it is counted. One that is rejected counts as the
    threshold it passed, so that a single one hardly moves the mean, and a new regime is let in after some tens.
    warmup: losses before the first is rejected.
    """

    FLOOR = 1e-3  # of the deviation, as a share of the mean: a constant loss must not shut out every other

    def __init__(self, deviations: float, decay: float = 0.99, warmup: int = 100) -> None:
        self.deviations, self.decay, self.warmup = deviations, decay, warmup
        self.mean, self.square, self.seen = 0.0, 0.0, 0

    @property
    def threshold(self) -> float:
        deviation = math.sqrt(max(self.square - self.mean**2, 0.0))
        return self.mean + self.deviations * max(deviation, self.FLOOR * self.mean, 1e-8)

    def accepts(self, loss: float) -> bool:
        """Return whether to learn from a batch of this loss, which is counted."""
        size, threshold = abs(loss), self.threshold
        outlier = self.seen >= self.warmup and size > threshold
        counted = threshold if outlier else size
        kept = min(self.decay, self.seen / (self.seen + 1))
        self.mean = kept * self.mean + (1 - kept) * counted
        self.square = kept * self.square + (1 - kept) * counted**2
        self.seen += 1
        return not outlier

    def state_dict(self) -> State:
        return {"mean": self.mean, "square": self.square, "seen": self.seen}

    def load_state_dict(self, state: State) -> None:
        self.mean, self.square, self.seen = state["mean"], state["square"], state["seen"]


class RemoteLearner:
    """Adds up gradients of ``algorithm``'s loss at the server's parameters, for the server; it moves nothing itself.

    max_norm: global-norm clip of each gradient; None: none. outliers: rejects batches by their loss; None: none.
    progress: share of the run that is done after so many of the server's steps, by which settings that are schedules
    take their values; None: there are none. total: the sum since ``reset`` [N], float32, in this process's memory.
    weights: the parameters as one vector [N], in which the network lies where ``device`` is the CPU; who writes another
    version there calls ``loaded``.
    """

    def __init__(
        self, algorithm: Algorithm, *, max_norm: float | None = None, outliers: OutlierFilter | None = None,
        progress: Callable[[int], float] | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.algorithm, self.outliers, self.progress = algorithm, outliers, progress
        self._limit = math.inf if max_norm is None else max_norm
        self.max_norm = at(self._limit, 0.0)
        self.device = torch.device(device)
        self._parameters: list[nn.Parameter] = list(algorithm.nets.parameters())
        self._spec = spec = {name: Field(tuple(p.shape)) for name, p in algorithm.nets.named_parameters()}
        self.total, self.weights = torch.zeros(spec_size(spec)), torch.zeros(spec_size(spec))
        self._places = list(views(self.total, spec).values())
        self._own = self.weights.to(self.device)  # on the CPU the same
        for p, place in zip(self._parameters, views(self._own, spec).values(), strict=True):
            p.data = place.copy_(p.detach())
        self._show()
        self._empty, self._skipped = True, 0  # skipped in a row
        self._steps = 0  # of the server, that its parameters had
        self._scheduled: dict[str, float] = {}  # values of settings that are schedules

    def params(self) -> Tensors:
        return self.algorithm.params()

    def _show(self) -> None:
        """The network has other parameters: ``weights`` are these."""
        if self._own is not self.weights:
            self.weights.copy_(self._own)

    def loaded(self, steps: int) -> None:
        """``weights`` are the server's parameters now, after so many of its gradient steps."""
        if self._own is not self.weights:
            self._own.copy_(transfer.send(self.weights, self.device))
        self.algorithm.follow(steps)
        self._schedule(steps)

    def _schedule(self, steps: int) -> None:
        """Give schedules their values after so many of the server's steps."""
        self._steps = steps
        if self.progress is not None:
            fraction = self.progress(steps)
            self.max_norm = at(self._limit, fraction)
            self._scheduled = self.algorithm.at(fraction)

    def add(self, batch: Batch) -> Update:
        """Add the gradient of a batch, unless its loss is an outlier, or it is not finite; ten of the latter in a row
        raise Diverged."""
        batch = self.algorithm.prepare(to_device(batch, self.device))
        for p in self._parameters:
            p.grad = None
        loss, joined, update = differentiate(self.algorithm, batch)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        whole = [joined] if joined is not None else grads
        if self.device.type == "cpu":
            value, norm = loss.item(), global_norm(whole)
        else:  # to the host with the numbers, by one wait
            flat = torch.cat([g.reshape(-1) for g in grads])
            (value, norm), update, whole = transfer.received(loss, [torch.linalg.vector_norm(flat)], update, [flat])
            grads = list(views(whole[0], self._spec).values())
        self._skipped = skipped(self._skipped, value, norm, "batches")
        if self._skipped:
            return Update({"skipped_updates": 1.0})
        metrics = {"loss": value, "grad_norm": norm, "skipped_updates": 0.0, **self._scheduled, **update.metrics}
        if self.outliers is not None:
            accepted = self.outliers.accepts(value)
            metrics["outlier_gradients"] = 0.0 if accepted else 1.0
            if not accepted:
                return Update(metrics, update.priorities)
        clip(whole, norm, self.max_norm)
        combine = torch._foreach_copy_ if self._empty else torch._foreach_add_
        combine(self._places, grads)
        self._empty = False
        return Update(metrics, update.priorities)

    @property
    def empty(self) -> bool:
        """Whether no gradient was added since ``reset``."""
        return self._empty

    def reset(self) -> None:
        """The sum begins anew."""
        self._empty = True

    def state_dict(self) -> State:
        out: State = {
            "total": None if self._empty else self.total.clone(),
            "skipped": self._skipped,
            "steps": self._steps,
        }
        out["nets"] = self.algorithm.nets.state_dict()
        if isinstance(self.algorithm, Stateful):
            out["algorithm"] = self.algorithm.state_dict()
        if self.outliers is not None:
            out["outliers"] = self.outliers.state_dict()
        return out

    def load_state_dict(self, state: State) -> None:
        self._empty, self._skipped = state["total"] is None, state["skipped"]
        self._schedule(state["steps"])
        if state["total"] is not None:
            self.total.copy_(state["total"])
        self.algorithm.nets.load_state_dict(state["nets"])
        self._show()
        if isinstance(self.algorithm, Stateful):
            self.algorithm.load_state_dict(state["algorithm"])
        if self.outliers is not None and "outliers" in state:  # else it was off, and begins to look now
            self.outliers.load_state_dict(state["outliers"])


class Shard:
    """The interval from ``begin`` to ``end`` of the parameters, with its part of the optimiser: what a server's process
    owns. spec: of all parameters. progress: share of the run that is done after so many steps; None: the learning rate
    is constant.
    """

    def __init__(
        self, cfg: OptimiserConfig, spec: Spec, begin: int, end: int, progress: Callable[[int], float] | None = None
    ) -> None:
        self._part = torch.zeros(end - begin)  # after a step in memory that readers see; the next leaves it as it is
        within = [(max(first, begin) - begin, min(last, end) - begin) for first, last in places(spec).values()]
        self._pieces = [(first, last) for first, last in within if first < last]  # of each tensor, what lies in it
        parameters = [nn.Parameter(piece, requires_grad=False) for piece in self._cut(self._part)]
        self._optimiser = make_optimiser(cfg, nn.ParameterList(parameters))
        self._rate, self._progress = cfg.learning_rate, progress

    def params(self) -> Tensors:
        """Return what is published: the interval, as the field ``part``."""
        return {PART: self._part}

    def offer(self, part: Tensor) -> None:
        """Begin with these parameters."""
        self._part.copy_(part)

    def descend(self, gradient: Tensor, steps: int, into: Tensor) -> float:
        """One step along a gradient of the interval, after ``steps`` others, and from ``into`` the next one: where the
        interval lies from now on, so that the step itself is what publishes it. Returns the learning rate."""
        rate: float = at(self._rate, 0.0 if self._progress is None else self._progress(steps))
        self._optimiser.descend(self._cut(gradient), rate, into=self._cut(into))
        self._part = into
        return rate

    def _cut(self, part: Tensor) -> list[Tensor]:
        return [part[begin:end] for begin, end in self._pieces]

    def state_dict(self) -> State:
        return {"part": self._part.clone(), "optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.offer(state["part"])
        load_optimiser(self._optimiser, state["optimiser"])


def gradient_spec(nets: nn.Module) -> Spec:
    """The fields of a message to the server: one vector [N] of float32. UsageError where ``nets`` has buffers, which no
    gradient moves."""
    require_no_buffers(nets, "a parameter server learns by gradients alone")
    spec = {name: Field(tuple(p.shape)) for name, p in nets.named_parameters()}
    return {GRADIENT: Field((spec_size(spec),), axis=0)}
