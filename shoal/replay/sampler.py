"""Sampler: the base class of all replay samplers, Shoal's and the user's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Sampler:
    """Base class of samplers, which choose a replay's items for a batch. Your own subclass implements ``draw`` and is
    named by ``sampler="MODULE:CLASS"``. It keeps its state in its arrays, which checkpoints contain.

    arrays: those that ``arrays(items)`` asked for, initially zero. order, counters: the table's ring of live rows, see
    ``live_rows``. rng: four uint64, the state of the table's generator. alpha: the exponent of the priorities.

    A sampler that draws in proportion to weights may define ``mass()``, which returns their sum. A sharded replay needs
    it.
    """

    def __init__(self, arrays: Arrays, order: np.ndarray, counters: np.ndarray, rng: np.ndarray, alpha: float) -> None:
        self.order, self.counters, self.rng = order, counters, rng

    @staticmethod
    def arrays(items: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and dtype, by name, of the arrays that the sampler needs for this number of items."""
        return {}

    def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Add new items: rows [N], int32, with their priorities [N], float32."""

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Set new priorities of live items."""

    def remove(self, rows: np.ndarray) -> None:
        """Forget items that leave the table."""

    @abstractmethod
    def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
        """Fill rows [N], int32, with live items, and probs [N], float64, with their probabilities."""

    def check_valid(self) -> tuple[bool, str]:
        """Return (True, "") if the sampler's state agrees with the table, else (False, reason)."""
        return True, ""

    def rehearse(self) -> None:
        """Call the functions that only a long run would call, so that they are compiled before training."""


def live_rows(order: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Return the rows of the live items, oldest first if eviction is fifo."""
    out: np.ndarray = order[(counters[0] + np.arange(counters[1])) % len(order)]
    return out
