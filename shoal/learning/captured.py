"""The gradient of a small network on a GPU as one CUDA graph: asked for one by one, its operations take the host longer
than they take the GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.api import Batch, Tensors, Update
from shoal.transfer import PROBS, Streams

log = logging.getLogger(__name__)
WARM_UPS = 2  # gradients of a kind that are made operation by operation before one is captured
MAX_KINDS = 8  # beyond which batches or numbers are taken to differ each time
TOLERANCE = 1e-2  # of its norm, by which a graph's first gradient may differ: sums have no fixed order on a GPU

Found = tuple[Tensor, Tensor | None, Update]
Eager = Callable[[Any, Batch], Found]  # see ``differentiate.eagerly``


class GradientGraphs:
    """Differentiates as ``eager`` does, by a graph for each kind of batch: items of the same shapes, and the same
    ``Algorithm.numbers``. A graph is trusted once it has given the gradient of a batch that ``eager`` gives as well.
    Where that fails, or cannot be captured, or kinds are too many, all is left to ``eager``, and a warning says why.

    What is returned, and each parameter's ``grad``, is valid until the next call.
    """

    def __init__(self, streams: Streams, eager: Eager) -> None:
        self._streams, self._eager = streams, eager
        self._kinds: dict[Hashable, int | _Graph] = {}  # how many were seen, until one is captured
        self.refused = ""  # why all is left to ``eager``

    def __call__(self, algorithm: Any, batch: Batch) -> Found:
        if self.refused:
            return self._eager(algorithm, batch)
        kind = _kind(algorithm, batch)
        known = self._kinds.get(kind, 0)
        if isinstance(known, _Graph):
            return known(batch) if known.trusted else self._compared(known, algorithm, batch)
        found = self._eager(algorithm, batch)
        self._kinds[kind] = known + 1
        if len(self._kinds) > MAX_KINDS:
            self._refuse("the shapes of the batches, or numbers that the loss reads, differ each time")
        elif known + 1 == WARM_UPS:
            self._capture(kind, algorithm, batch)
        return found

    def _capture(self, kind: Hashable, algorithm: Any, batch: Batch) -> None:
        """Capture the gradient of such a batch. The parameters keep the ``grad`` that they have."""
        parameters = list(algorithm.nets.parameters())
        before = [p.grad for p in parameters]
        static = {name: tensor.clone() for name, tensor in _tensors(batch).items()}
        for p in parameters:
            p.grad = None
        try:
            found, replay = self._streams.capture(lambda: self._eager(algorithm, _batch(static)))
            grads = [(p, p.grad) for p in parameters if p.grad is not None]
            self._kinds[kind] = _Graph(static, replay, found, grads)
        except RuntimeError as error:  # what PyTorch raises for whatever cannot be captured
            self._refuse(str(error).strip().partition("\n")[0] or type(error).__name__)
        finally:
            for p, grad in zip(parameters, before, strict=True):
                p.grad = grad

    def _compared(self, graph: _Graph, algorithm: Any, batch: Batch) -> Found:
        """Return what ``eager`` finds, and trust the graph if it finds the same."""
        graph(batch)
        replayed = {p: grad.clone() for p, grad in graph.grads}
        for p in replayed:
            p.grad = None
        found = self._eager(algorithm, batch)
        expected = {p: p.grad for p in algorithm.nets.parameters() if p.grad is not None}
        if replayed.keys() != expected.keys():
            self._refuse("the graph moves other parameters")
            return found
        errors = torch._foreach_norm([replayed[p] - grad for p, grad in expected.items()])
        sizes = torch._foreach_norm(list(expected.values()))
        error, size = torch.stack([torch.stack(errors).norm(), torch.stack(sizes).norm()]).tolist()
        if error <= TOLERANCE * size:
            graph.trusted = True
        elif size - size == 0.0:  # else this gradient is not finite, and tells nothing
            self._refuse(f"the graph's gradient is off by {error / size if size else error:.2g} of its norm")
        return found

    def _refuse(self, why: str) -> None:
        self.refused = why
        self._kinds.clear()
        log.warning("gradients are worked out operation by operation, not by a CUDA graph: %s", why)


class _Graph:
    """A captured gradient: ``static`` is what it reads, ``found`` and ``grads`` are where it writes."""

    def __init__(
        self, static: Tensors, replay: Callable[[], object], found: Found, grads: list[tuple[Any, Tensor]]
    ) -> None:  # fmt: skip
        self.grads, self.trusted = grads, False
        self._static, self._replay, self._found = static, replay, found

    def __call__(self, batch: Batch) -> Found:
        given = _tensors(batch)
        torch._foreach_copy_(list(self._static.values()), [given[name] for name in self._static])
        self._replay()
        for p, grad in self.grads:
            p.grad = grad
        loss, joined, update = self._found
        return loss, joined, Update(dict(update.metrics), update.priorities)


class _Kind(NamedTuple):
    """What a graph is of: addresses, as it moves the memory that it has seen; shapes; numbers."""

    at: tuple[int, ...]
    shapes: tuple[tuple[str, torch.Size, torch.dtype], ...]
    numbers: tuple[float, ...]


def _kind(algorithm: Any, batch: Batch) -> Hashable:
    tensors = _tensors(batch)
    return _Kind(
        tuple(p.data_ptr() for p in algorithm.nets.parameters()),
        tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()),
        algorithm.numbers(),
    )


def _tensors(batch: Batch) -> Tensors:
    """What a loss may read of a batch."""
    return batch.items if batch.probs is None else {**batch.items, PROBS: batch.probs}


def _batch(tensors: Tensors) -> Batch:
    items = dict(tensors)
    probs = items.pop(PROBS, None)
    return Batch(items, probs=probs)
