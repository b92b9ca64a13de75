"""Arrays side by side in shared memory: where each field of an item lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal import api

ALIGN = 64  # a cache line
LINE = ALIGN // 8  # counters are one per cache line: column 0 of an [n, LINE] array of int64


@dataclass(frozen=True)
class FieldLayout:
    """One array inside a slot or a parameter buffer; ``offset`` counts from its start."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    axis: int


def up(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def fields(spec: api.Spec, start: int, items: int = 1) -> tuple[tuple[FieldLayout, ...], int]:
    """Fields of so many items side by side, and where they end."""
    out, offset = [], start
    for name, f in spec.items():
        shape = list(f.shape)
        if items > 1:
            shape[f.axis] *= items
        out.append(FieldLayout(name, offset, tuple(shape), np.dtype(f.dtype).name, f.axis))
        offset += up(f.nbytes * items)
    return tuple(out), offset
