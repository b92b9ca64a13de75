"""Compiled policy inference for a few rows (environments), where PyTorch's overhead per call dominates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.fast.pixels import readable
from shoal.jit import jit_late, jit_sums

Linears = list[tuple[Tensor, Tensor]]
MAX_ROWS = 4  # largest number of rows for which this is faster
_TINY = np.finfo(np.float32).tiny


def is_small_batch(x: Tensor) -> bool:
    """Return True if ``x`` has few enough rows ``[N, ...]`` for this module."""
    return 0 < len(x) <= MAX_ROWS and x.dtype == torch.float32 and readable(x)


class SmallBatchPerceptron:
    """A compiled version of ``fast.perceptron.Perceptron`` for a few rows. layers, heads: weights and biases; there
    must be at least one layer."""

    def __init__(self, layers: Linears, tanh: bool, heads: Linears) -> None:
        self._given = layers, tanh, heads
        self._parameters = [p for layer in (*layers, *heads) for p in layer]
        self._at: list[int] = []  # addresses of the parameters when the arrays below became views of them
        self._arrays: list[tuple[np.ndarray, ...]] = []
        self._scratch = np.empty((2, max(len(bias) for _, bias in layers)), np.float32)
        self._outputs = sum(len(bias) for _, bias in heads)

    def __reduce__(self) -> tuple[type[SmallBatchPerceptron], tuple[Linears, bool, Linears]]:
        return SmallBatchPerceptron, self._given  # a copy makes views of its own parameters

    def __call__(self, x: Tensor) -> Tensor:
        """Return values ``[N, outputs]`` for rows ``[N, inputs]``."""
        return torch.from_numpy(self.values(x.contiguous().numpy())).t()

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return values ``[outputs, N]`` for contiguous rows ``[N, inputs]``."""
        layers, tanh, heads = self._given
        at = [p.data_ptr() for p in self._parameters]
        if at != self._at:
            groups = (layers, heads)
            self._arrays = [tuple(p.detach().numpy() for p in part) for g in groups for part in zip(*g, strict=True)]
            self._at = at
        out = np.empty((self._outputs, len(x)), np.float32)  # output by output in memory, like the perceptron's result
        kernel: Callable[..., None] = _perceptron
        kernel(x, *self._arrays, tanh, self._scratch, out)
        return out

    def act(self, x: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return actions ``[N]``, logits ``[N, A]`` and values ``[N]`` for observations ``[N, inputs]`` and the uniform
        numbers of ``nets.distributions``. The second of the two heads must have one output."""
        both = self.values(np.ascontiguousarray(x, np.float32))
        logits = both[:-1].T
        return _chosen(logits, uniform), logits, both[-1]


def categorical(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return actions ``[N]`` for logits ``[N, A]`` and uniform numbers in [0, 1): ``[N]`` if ``A`` is 2, else ``[N,
    A]``."""
    return torch.from_numpy(_chosen(logits.numpy(), uniform.numpy()))


def _chosen(logits: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    out = np.empty(len(logits), np.int64)
    if logits.shape[1] == 2:
        _one_of_two(logits, uniform, out)
    else:
        _one_of_many(logits, uniform, out)
    return out


@jit_sums
def _perceptron(
    x: np.ndarray, weights: tuple[np.ndarray, ...], biases: tuple[np.ndarray, ...],
    head_weights: tuple[np.ndarray, ...], head_biases: tuple[np.ndarray, ...], tanh: bool, scratch: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    for row in range(len(x)):
        given = x[row]
        for layer in range(len(weights)):
            made = scratch[layer % 2, : len(biases[layer])]
            for j in range(len(made)):
                y = biases[layer][j]
                for i in range(len(given)):
                    y += weights[layer][j, i] * given[i]
                made[j] = math.tanh(y) if tanh else max(y, np.float32(0.0))
            given = made
        at = 0
        for head in range(len(head_weights)):
            for j in range(len(head_biases[head])):
                y = head_biases[head][j]
                for i in range(len(given)):
                    y += head_weights[head][j, i] * given[i]
                out[at, row] = y
                at += 1


@jit_late
def _one_of_two(logits: np.ndarray, uniform: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(out)):
        out[i] = uniform[i] < np.float32(1.0) / (np.float32(1.0) + math.exp(logits[i, 0] - logits[i, 1]))


@jit_late
def _one_of_many(logits: np.ndarray, uniform: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(out)):
        best, most = 0, np.float32(-np.inf)
        for a in range(logits.shape[1]):
            found = logits[i, a] - math.log(-math.log(max(uniform[i, a], _TINY)))
            if found > most:
                best, most = a, found
        out[i] = best
