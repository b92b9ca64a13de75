"""The arithmetic of a reduce channel: one order of adding, whoever does it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCK = 16_384  # elements that are added before the next ones, so that partial sums stay in the cache


def combine(out: np.ndarray, parts: Sequence[np.ndarray], mean: bool) -> None:
    """``out = parts[0] + parts[1] + ...``, from left to right, element by element; divided by their number if ``mean``.

    All arrays are flat and equally long, and of one dtype; ``out`` may lie in none of the parts. However a caller cuts
    them, each element of the result is the same bit for bit.
    """
    first, *others = parts
    for start in range(0, len(out), BLOCK):
        block = slice(start, start + BLOCK)
        total = out[block]
        if others:
            np.add(first[block], others[0][block], out=total)
            for part in others[1:]:
                total += part[block]
        else:
            total[:] = first[block]
        if mean:
            total /= len(parts)
