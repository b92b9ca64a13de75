"""Compiled copies between unrolls, rows and batches. Every field is bytes, so one compiled function serves all."""

from __future__ import annotations

import numpy as np

from shoal.data.jit import jit


@jit
def pick(
    key: np.ndarray,
    end: np.ndarray,
    item_reward: np.ndarray,
    item_discount: np.ndarray,
    chosen: np.ndarray,
    keys: np.ndarray,
    ends: np.ndarray,
    reward: np.ndarray,
    discount: np.ndarray,
) -> None:
    for i in range(len(chosen)):
        row = chosen[i]
        keys[i], ends[i], reward[i], discount[i] = key[row], end[row], item_reward[row], item_discount[row]


@jit
def _copy(target: np.ndarray, source: np.ndarray) -> None:
    for j in range(len(target)):
        target[j] = source[j]


@jit
def scatter(data: np.ndarray, offset: int, source: np.ndarray, row_of: np.ndarray) -> None:
    """Bytes of step i go to row ``row_of[i]``."""
    width = source.shape[1]
    for i in range(len(row_of)):
        if row_of[i] >= 0:
            _copy(data[row_of[i], offset : offset + width], source[i])


@jit
def gather(data: np.ndarray, offset: int, chosen: np.ndarray, out: np.ndarray) -> None:
    width = out.shape[1]
    for i in range(len(chosen)):
        _copy(out[i], data[chosen[i], offset : offset + width])


@jit
def gather_stack(
    data: np.ndarray,
    offset: int,
    previous: np.ndarray,
    depth: np.ndarray,
    zero: bool,
    chosen: np.ndarray,
    out: np.ndarray,
) -> None:
    """``out`` [B, stack, bytes]: the newest frame last, before an episode's first frame the padding."""
    stack, width = out.shape[1], out.shape[2]
    for i in range(len(chosen)):
        row, links = chosen[i], depth[chosen[i]]
        for k in range(stack - 1, -1, -1):
            if links < 0 and zero:
                out[i, k, :] = 0
            else:
                _copy(out[i, k], data[row, offset : offset + width])
            if links > 0:
                row = previous[row]
            links -= 1
