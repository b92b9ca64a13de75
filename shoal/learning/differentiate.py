"""The gradient of an algorithm's loss of one batch, given to the parameters of its network."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal import transfer
from shoal.api import Batch, Update
from shoal.fast.precomputed import precomputed_gradient
from shoal.learning.algorithm import Algorithm
from shoal.learning.captured import GradientGraphs
from shoal.learning.compiled import compile_encoders
from shoal.nets.outputs import Outputs
from shoal.transfer import upload

log = logging.getLogger(__name__)


def differentiate(algorithm: Algorithm, batch: Batch) -> tuple[Tensor, Tensor | None, Update]:
    """Give every parameter of ``algorithm.nets``, which have none, its ``grad``, as the setting ``gradient`` says.
    Returns the loss [], all gradients as one vector if they lie so in memory, and the metrics."""
    if algorithm.differentiator is None:
        algorithm.differentiator = _chosen(algorithm)
    found: tuple[Tensor, Tensor | None, Update] = algorithm.differentiator(algorithm, batch)
    return found


def _chosen(algorithm: Algorithm) -> Callable[[Algorithm, Batch], tuple[Tensor, Tensor | None, Update]]:
    """Return what ``gradient`` of the algorithm's settings means for its network, where that lies now."""
    asked = algorithm.gradient or getattr(algorithm.cfg, "gradient", "eager")
    if asked == "eager":
        return eagerly
    gpu = next((transfer.streams(p.device) for p in algorithm.nets.parameters()), None)
    if asked == "auto" and gpu is not None and algorithm.capturable and not algorithm.cfg.is_large():
        asked = "graph"
    if asked == "graph" and gpu is not None and algorithm.capturable:
        return GradientGraphs(gpu, eagerly)
    if asked == "graph":
        why = "the network is not on a GPU" if gpu is None else f"that of {type(algorithm).__name__} cannot be captured"
        log.warning("gradients are worked out operation by operation, not by a CUDA graph: %s", why)
    if asked == "compile":
        compile_encoders(algorithm)
    return eagerly


def eagerly(algorithm: Algorithm, batch: Batch) -> tuple[Tensor, Tensor | None, Update]:
    """``differentiate``, operation by operation."""
    if not hasattr(algorithm.nets, "outputs"):  # a network that the loss asks itself
        loss, update = algorithm.loss(None, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), None, update
    outputs: Outputs = algorithm.nets.outputs(batch.items)
    loss, update = algorithm.loss(outputs.values, batch)
    gradient = precomputed_gradient(loss, outputs.leaf)
    if gradient is not None:
        return loss.detach(), outputs.backward(gradient), update
    return loss.detach(), _backward(loss, outputs, [p for p in algorithm.nets.parameters() if p.requires_grad]), update


def _backward(loss: Tensor, outputs: Outputs, parameters: list[nn.Parameter]) -> Tensor | None:
    """Give every parameter its ``grad``: what reaches it through the outputs, and what reaches it directly. Return
    all gradients as one vector if they lie so in memory."""
    by_leaf, *direct = torch.autograd.grad(loss, [outputs.leaf, *parameters], allow_unused=True)
    joined = None if by_leaf is None else outputs.backward(by_leaf)
    for p, gradient in zip(parameters, direct, strict=True):
        if gradient is None:
            continue
        if p.grad is None:
            p.grad, joined = gradient, None  # not a part of that vector
        else:
            p.grad += gradient
    return joined


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its items (and probabilities) on ``device``, itself if they are there."""
    if device.type == "cpu" or all(v.device.type == device.type for v in batch.items.values()):
        return batch
    return upload(batch, device)()
