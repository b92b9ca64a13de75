"""Compiled sums of noise (``ops.weighted_noise``)."""

from __future__ import annotations

import numpy as np

from shoal.jit import jit_sums

PIECE = 4096  # numbers of the sum that stay in the innermost cache while all slices are added


@jit_sums
def add_slices(table: np.ndarray, indices: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Add ``weights[i] * table[indices[i] :]`` to ``out`` for each ``i`` in turn."""
    for begin in range(0, len(out), PIECE):
        part = out[begin : begin + PIECE]
        for i in range(len(indices)):
            at = indices[i] + begin
            noise, weight = table[at : at + len(part)], weights[i]
            if weight != 0:
                for j in range(len(part)):
                    part[j] += weight * noise[j]
