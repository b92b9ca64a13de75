"""Compiled parts of ``lstm``. The order of summation may change (fast-math), so that the compiler can use vector
instructions. Loops touch few arrays each, because only such loops are vectorised."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.jit import SUMS, F, jit

_ONE, _HALF, _LARGE = np.float32(1.0), np.float32(0.5), np.float32(7.905311)
_P1, _P3, _P5 = np.float32(4.89352455891786e-3), np.float32(6.37261928875436e-4), np.float32(1.48572235717979e-5)
_P7, _P9, _P11 = np.float32(5.12229709037114e-8), np.float32(-8.60467152213735e-11), np.float32(2.00018790482477e-13)
_P13 = np.float32(-2.76076847742355e-16)
_Q0, _Q2, _Q4 = np.float32(4.89352518554385e-3), np.float32(2.26843463243900e-3), np.float32(1.18534705686654e-4)
_Q6 = np.float32(1.19825839466702e-6)


def _jit(function: F) -> F:
    return jit(function, fastmath=SUMS)


@_jit
def _tanh(x: Any) -> Any:
    """Return tanh as a rational function with an error of a few units in the last place (as in the Eigen library),
    which can be vectorised."""
    x = _LARGE if x > _LARGE else x  # nan is passed on
    x = -_LARGE if x < -_LARGE else x
    y = x * x
    p = (((((_P13 * y + _P11) * y + _P9) * y + _P7) * y + _P5) * y + _P3) * y + _P1
    return x * p / (((_Q6 * y + _Q4) * y + _Q2) * y + _Q0)


@_jit
def _add_product(x: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Add ``x [N, K] weights [K, M]`` to ``out [N, M]``, eight rows of the weights at a time, which stay in the cache
    for all of ``x``."""
    inputs, outputs = weights.shape
    eights = inputs - inputs % 8
    for k in range(0, eights, 8):
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        w4, w5, w6, w7 = weights[k + 4], weights[k + 5], weights[k + 6], weights[k + 7]
        for n in range(len(x)):
            x0, x1, x2, x3, x4, x5, x6, x7 = (
                x[n, k], x[n, k + 1], x[n, k + 2], x[n, k + 3], x[n, k + 4], x[n, k + 5], x[n, k + 6], x[n, k + 7],
            )  # fmt: skip
            y = out[n]
            for j in range(outputs):
                y[j] += (
                    x0 * w0[j]
                    + x1 * w1[j]
                    + x2 * w2[j]
                    + x3 * w3[j]
                    + x4 * w4[j]
                    + x5 * w5[j]
                    + x6 * w6[j]
                    + x7 * w7[j]
                )
    for k in range(eights, inputs):
        for n in range(len(x)):
            for j in range(outputs):
                out[n, j] += x[n, k] * weights[k, j]


@_jit
def unroll(
    gates: np.ndarray, weights: np.ndarray, first: np.ndarray, scale: np.ndarray, hidden: np.ndarray, cells: np.ndarray,
    squashed: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """Unroll an LSTM over T steps.

    gates: [T, B, 4 H], the contributions of inputs and biases; those of the state are added and the activations applied
    in place. weights: [H, 4 H]; first: bool [T, B]; scale: [4 H], 1 for tanh and 1/2 for the logistic function; hidden,
    cells: [T + 1, B, H], states before each step and after the last, of which the first is given; squashed: tanh of the
    cells after each step; out: [T, B, H].
    """
    length, batch, size = out.shape
    for t in range(length):
        for b in range(batch):
            if first[t, b]:
                hidden[t, b, :] = 0
                cells[t, b, :] = 0
        _add_product(hidden[t], weights, gates[t])
        for b in range(batch):
            gate, before, after = gates[t, b], cells[t, b], cells[t + 1, b]
            i, f, g, o = gate[:size], gate[size : 2 * size], gate[2 * size : 3 * size], gate[3 * size :]
            s, h, y = squashed[t, b], hidden[t + 1, b], out[t, b]
            for j in range(4 * size):
                gate[j] = _ONE - scale[j] + scale[j] * _tanh(scale[j] * gate[j])
            for j in range(size):
                after[j] = f[j] * before[j] + i[j] * g[j]
            for j in range(size):
                s[j] = _tanh(after[j])
            for j in range(size):
                y[j] = h[j] = o[j] * s[j]


@_jit
def back(
    gradient: np.ndarray, gates: np.ndarray, weights: np.ndarray, first: np.ndarray, cells: np.ndarray,
    squashed: np.ndarray, by_hidden: np.ndarray, by_cell: np.ndarray,
) -> None:  # fmt: skip
    """Compute the gradient of ``unroll``.

    gradient: [T, B, H], of the loss with respect to ``out``; gates: overwritten by the gradient with respect to their
    arguments; weights: [4 H, H]; by_hidden, by_cell: [B, H], initially 0, the gradient with respect to the state after
    a step.
    """
    length, batch, size = gradient.shape
    for t in range(length - 1, -1, -1):
        for b in range(batch):
            gate, before, s = gates[t, b], cells[t, b], squashed[t, b]
            i, f, g, o = gate[:size], gate[size : 2 * size], gate[2 * size : 3 * size], gate[3 * size :]
            by_y, by_h, by_c = gradient[t, b], by_hidden[b], by_cell[b]
            for j in range(size):
                by = by_h[j] + by_y[j]
                by_c[j] += by * o[j] * (_ONE - s[j] * s[j])
                o[j] = by * s[j] * o[j] * (_ONE - o[j])
            for j in range(size):
                open_ = i[j]
                i[j] = by_c[j] * g[j] * open_ * (_ONE - open_)
                g[j] = by_c[j] * open_ * (_ONE - g[j] * g[j])
            for j in range(size):
                kept = f[j]
                f[j] = by_c[j] * before[j] * kept * (_ONE - kept)
                by_c[j] *= kept
        by_hidden[:] = 0
        if t:
            _add_product(gates[t], weights, by_hidden)
        for b in range(batch):
            if first[t, b]:
                by_hidden[b, :] = 0
                by_cell[b, :] = 0
