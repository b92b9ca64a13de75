"""Compiled copies between unrolls, table rows and batches. All fields are treated as bytes, so each function is
compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from shoal.jit import jit


def _memcpy(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy ``source`` to ``target``, byte arrays of equal length, by the C library's ``memcpy``: faster than a compiled
    loop."""
    emit: Any = cgutils.raw_memcpy

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, of = (context.make_array(t)(context, builder, a) for t, a in zip(signature.args, args, strict=True))
        count = builder.extract_value(of.shape, 0)
        emit(builder, to.data, of.data, count, 1)
        return context.get_dummy_value()

    return types.void(target, source), generate


_copy = cast(Callable[[np.ndarray, np.ndarray], None], intrinsic(_memcpy))


@jit
def gather_items(
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
    """Copy the bytes of each step i of ``source`` [N, width] to row ``row_of[i]`` of ``data``; -1 skips the step."""
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
    """Fill ``out`` [stack, bytes] with the frames that end at ``row``, newest last. Frames before the episode's first
    are zeros, or repeat the first."""
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
    """Gather the stacks [B, stack, bytes] of both observations of each item. Taking an item's two stacks in turn reads
    the frames that they share from the cache."""
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
    """Gather the stacks [N, stack, bytes] that end at each of ``rows``."""
    for i in range(len(rows)):
        _stack(data, offset, previous, depth, zero, rows[i], out[i])
