"""Compiled copies between unrolls, rows and batches. Every field is bytes, so one compiled function serves all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from shoal.jit import jit


def _memcpy(typing_context: Any, target: Any, source: Any) -> Any:
    """``target[:] = source`` of as many bytes by the C library's ``memcpy``, which knows the CPU better than a loop."""
    emit: Any = cgutils.raw_memcpy

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, of = (context.make_array(t)(context, builder, a) for t, a in zip(signature.args, args, strict=True))
        count = builder.extract_value(of.shape, 0)
        emit(builder, to.data, of.data, count, 1)
        return context.get_dummy_value()

    return types.void(target, source), generate


_copy = cast(Callable[[np.ndarray, np.ndarray], None], intrinsic(_memcpy))


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
def _stack(
    data: np.ndarray, offset: int, previous: np.ndarray, depth: np.ndarray, zero: bool, row: int, out: np.ndarray
) -> None:
    """``out`` [stack, bytes]: the newest frame last, before an episode's first frame the padding."""
    stack, width = out.shape
    links = depth[row]
    for k in range(stack - 1, -1, -1):
        if links < 0 and zero:
            out[k, :] = 0
        else:
            _copy(out[k], data[row, offset : offset + width])
        if links > 0:
            row = previous[row]
        links -= 1


@jit
def gather_stacks(
    data: np.ndarray,
    offset: int,
    previous: np.ndarray,
    depth: np.ndarray,
    zero: bool,
    rows: np.ndarray,
    ends: np.ndarray,
    out: np.ndarray,
    out_next: np.ndarray,
) -> None:
    """Both stacks [B, stack, bytes] of each item in turn: the frames they share come out of the cache once read."""
    for i in range(len(rows)):
        _stack(data, offset, previous, depth, zero, rows[i], out[i])
        _stack(data, offset, previous, depth, zero, ends[i], out_next[i])


@jit
def gather_stack(
    data: np.ndarray,
    offset: int,
    previous: np.ndarray,
    depth: np.ndarray,
    zero: bool,
    rows: np.ndarray,
    out: np.ndarray,
) -> None:
    """The stack [N, stack, bytes] that each row shows."""
    for i in range(len(rows)):
        _stack(data, offset, previous, depth, zero, rows[i], out[i])
