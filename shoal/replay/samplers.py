"""Shoal's samplers: they choose the live items of a batch.

``probs`` are probabilities of the distribution that a batch is drawn from, which sum to 1 over the live items. The
greedy sampler is deterministic and returns 1 for each item.
"""

from __future__ import annotations

import numpy as np

from shoal.replay import sampling_kernels
from shoal.replay.layout import heap_arrays, tree_arrays, tree_offsets
from shoal.replay.sampler import Arrays, Sampler, live_rows as live_rows


class Uniform(Sampler):
    """Draws live items uniformly, with replacement."""

    def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
        sampling_kernels.uniform_draw(self.order, self.counters, self.rng, rows, probs)

    def mass(self) -> float:
        return float(self.counters[1])

    def check_valid(self) -> tuple[bool, str]:
        rows = live_rows(self.order, self.counters)
        return (True, "") if len(np.unique(rows)) == len(rows) else (False, "uniform: an item is listed twice")


class _Tree(Sampler):
    """Base class of samplers with an 8-ary tree over all rows, in the arrays ``tree`` and ``offsets``."""

    largest = False
    arrays = staticmethod(tree_arrays)

    def __init__(self, arrays: Arrays, order: np.ndarray, counters: np.ndarray, rng: np.ndarray, alpha: float):
        self.tree, self.offsets = arrays["tree"], arrays["offsets"]
        self.order, self.counters, self.rng, self.alpha = order, counters, rng, alpha
        self.offsets[:] = tree_offsets(len(order))

    def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        sampling_kernels.tree_set(self.tree, self.offsets, rows, priorities, self.alpha, self.largest)

    update = insert

    def remove(self, rows: np.ndarray) -> None:
        sampling_kernels.tree_clear(self.tree, self.offsets, rows, self.largest)

    def check_valid(self) -> tuple[bool, str]:
        name = type(self).__name__.lower()
        live = np.zeros(len(self.order), bool)
        live[live_rows(self.order, self.counters)] = True
        if not np.array_equal(self.tree[: len(self.order)] > 0, live):
            return False, f"{name}: the leaves with weight are not the live items"
        reduce = np.max if self.largest else np.sum
        for level in range(1, len(self.offsets) - 1):
            children = self.tree[self.offsets[level - 1] : self.offsets[level]].reshape(-1, 8)
            nodes = self.tree[self.offsets[level] : self.offsets[level] + len(children)]
            if not np.allclose(reduce(children, axis=1), nodes, rtol=1e-12, atol=0):
                return False, f"{name}: a node of level {level} is not the sum or maximum of its children"
        return True, ""


class Proportional(_Tree):
    """Draws items with P(i) = p_i ** alpha / sum from a sum tree, stratified: one draw in each of n equal parts of the
    total (Schaul et al. 2016, section 3.3)."""

    def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
        sampling_kernels.tree_draw(self.tree, self.offsets, self.rng, rows, probs)

    def mass(self) -> float:
        return float(self.tree[self.offsets[-2] : self.offsets[-1]].sum())

    def take(self, rows: np.ndarray) -> None:
        """Draw items without replacement and remove them from the tree (for eviction)."""
        sampling_kernels.tree_take(self.tree, self.offsets, self.rng, rows)


class Greedy(_Tree):
    """Returns the items of largest priority, largest first, from a max tree."""

    largest = True

    def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
        saved = np.empty(len(rows), np.float64)
        sampling_kernels.tree_top(self.tree, self.offsets, int(self.counters[1]), rows, saved)
        probs[:] = 1.0


class Rank(Sampler):
    """Draws items with P(i) = rank(i) ** -alpha / sum, where rank 1 is the largest priority, stratified: one draw in
    each of n segments of equal mass (Schaul et al. 2016, section 3.3).

    The rank is the index in a binary heap. The heap is sorted again after as many changes as it has entries.
    """

    arrays = staticmethod(heap_arrays)

    def __init__(self, arrays: Arrays, order: np.ndarray, counters: np.ndarray, rng: np.ndarray, alpha: float):
        self.heap, self.where, self.weight = arrays["heap"], arrays["where"], arrays["weight"]
        self.order, self.counters, self.rng, self.counts = order, counters, rng, arrays["counts"]
        self.cumulative = np.zeros(len(self.heap) + 1)  # not saved, as a restored table may have another alpha
        self.cumulative[1:] = np.cumsum(np.arange(1, len(self.cumulative), dtype=np.float64) ** -alpha)

    def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        sampling_kernels.heap_set(self.heap, self.where, self.weight, self.counts, rows, priorities, True)
        self._sort_when_due()

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        sampling_kernels.heap_set(self.heap, self.where, self.weight, self.counts, rows, priorities, False)
        self._sort_when_due()

    def remove(self, rows: np.ndarray) -> None:
        sampling_kernels.heap_clear(self.heap, self.where, self.weight, self.counts, rows)

    def sort(self) -> None:
        sampling_kernels.heap_sort(self.heap, self.where, self.weight, self.counts)

    rehearse = sort

    def _sort_when_due(self) -> None:
        if self.counts[1] >= len(self.heap):
            self.sort()

    def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
        sampling_kernels.heap_draw(self.heap, self.cumulative, self.counts, self.rng, rows, probs)

    def check_valid(self) -> tuple[bool, str]:
        size = int(self.counts[0])
        heap = self.heap[:size]
        if not np.array_equal(np.sort(heap), np.sort(live_rows(self.order, self.counters))):
            return False, "rank: the heap does not hold the live items"
        if not np.array_equal(self.where[heap], np.arange(size)):
            return False, "rank: an item is not where it is said to be"
        weight = self.weight[heap]
        if size > 1 and (weight[(np.arange(1, size) - 1) // 2] < weight[1:]).any():
            return False, "rank: a parent of the heap is smaller than its child"
        return True, ""
