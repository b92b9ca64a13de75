"""Compiled parts of the samplers: random numbers, 8-ary sum and max trees, and a binary heap with positions.

A tree is one float64 array that holds its levels one after the other (at ``offsets``), leaves first; the top level has
8 nodes. The 8 children of a node share a cache line. Functions that call each other stay in this file, because numba's
disk cache watches only the file of the outer function.
"""

from __future__ import annotations

import numpy as np

from shoal.jit import jit, jit_allocating


@jit
def _next(rng: np.ndarray) -> np.uint64:
    """Return the next 64 random bits of xoshiro256++ (Blackman and Vigna 2019)."""
    a, b, c, d = rng[0], rng[1], rng[2], rng[3]
    t = a + d
    out = ((t << np.uint64(23)) | (t >> np.uint64(41))) + a
    t = b << np.uint64(17)
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= t
    d = (d << np.uint64(45)) | (d >> np.uint64(19))
    rng[0], rng[1], rng[2], rng[3] = a, b, c, d
    return out  # type: ignore[no-any-return]


@jit
def _random(rng: np.ndarray) -> float:
    """Return a random number, uniform in [0, 1)."""
    return float((_next(rng) >> np.uint64(11)) * 2.0**-53)


@jit
def _node(tree: np.ndarray, base: int, largest: bool) -> float:
    """Return the sum, or the maximum, of the 8 nodes from index ``base``."""
    if largest:
        top = tree[base]
        for j in range(1, 8):
            top = max(top, tree[base + j])
        return float(top)
    low = (tree[base] + tree[base + 1]) + (tree[base + 2] + tree[base + 3])
    return float(low + ((tree[base + 4] + tree[base + 5]) + (tree[base + 6] + tree[base + 7])))


@jit
def _repair(tree: np.ndarray, offsets: np.ndarray, rows: np.ndarray, largest: bool) -> None:
    """Recompute every node above the leaves ``rows``, level by level. Sums are never updated by differences, so
    rounding errors do not accumulate."""
    for level in range(1, len(offsets) - 1):
        below, here, shift = offsets[level - 1], offsets[level], 3 * level
        seen = -1
        for row in rows:
            node = row >> shift
            if node != seen:
                tree[here + node] = _node(tree, below + 8 * node, largest)
                seen = node


@jit
def tree_set(
    tree: np.ndarray, offsets: np.ndarray, rows: np.ndarray, priorities: np.ndarray, alpha: float, largest: bool
) -> None:
    """Set leaf weights to priority ** alpha (``largest``: to the priority). The last of several values for a row
    counts."""
    for i in range(len(rows)):
        tree[rows[i]] = priorities[i] if largest else np.float64(priorities[i]) ** alpha
    _repair(tree, offsets, rows, largest)


@jit
def tree_clear(tree: np.ndarray, offsets: np.ndarray, rows: np.ndarray, largest: bool) -> None:
    for row in rows:
        tree[row] = 0.0
    _repair(tree, offsets, rows, largest)


@jit
def _descend(tree: np.ndarray, offsets: np.ndarray, draws: np.ndarray, rows: np.ndarray) -> None:
    """Set ``rows`` to the leaves at cumulative weights ``draws``, which are overwritten. Rounding never ends in a leaf
    of weight 0. All draws descend together and without branches, so that their memory accesses overlap."""
    rows[:] = 0
    for level in range(len(offsets) - 2, -1, -1):
        here = offsets[level]
        for i in range(len(rows)):
            base, draw = here + 8 * np.int64(rows[i]), draws[i]
            child, before, upto = 0, 0.0, 0.0
            for j in range(7):  # the number of partial sums up to ``draw`` is the child's index
                upto += tree[base + j]
                child += draw >= upto
                before = upto if draw >= upto else before
            draw -= before
            if draw >= tree[base + child]:  # after rounding, take the last child with weight
                while tree[base + child] <= 0.0:
                    child -= 1
                draw = tree[base + child] * (1.0 - 2.0**-52)
            rows[i], draws[i] = 8 * rows[i] + child, draw


@jit_allocating
def tree_draw(tree: np.ndarray, offsets: np.ndarray, rng: np.ndarray, rows: np.ndarray, probs: np.ndarray) -> float:
    """Draw stratified, one row in each of ``len(rows)`` equal parts of the total weight, and return that total."""
    n = len(rows)
    total = _node(tree, offsets[-2], False)
    draws = np.empty(n, np.float64)
    for i in range(n):
        draws[i] = min((i + _random(rng)) * (total / n), np.nextafter(total, 0.0))
    _descend(tree, offsets, draws, rows)
    for i in range(n):
        probs[i] = tree[rows[i]] / total
    return total


@jit_allocating
def tree_take(tree: np.ndarray, offsets: np.ndarray, rng: np.ndarray, rows: np.ndarray) -> None:
    """Draw without replacement, clearing each drawn leaf."""
    draw = np.empty(1, np.float64)
    for i in range(len(rows)):
        total = _node(tree, offsets[-2], False)
        draw[0] = min(_random(rng) * total, np.nextafter(total, 0.0))
        _descend(tree, offsets, draw, rows[i : i + 1])
        tree[rows[i]] = 0.0
        _repair(tree, offsets, rows[i : i + 1], False)


@jit
def tree_top(tree: np.ndarray, offsets: np.ndarray, size: int, rows: np.ndarray, saved: np.ndarray) -> None:
    """Return the ``len(rows)`` largest leaves, largest first; if there are only ``size``, start again from the
    largest."""
    count = min(size, len(rows))
    for i in range(count):
        node = 0
        for level in range(len(offsets) - 2, -1, -1):
            base = offsets[level] + 8 * node
            child = 0
            for j in range(1, 8):
                if tree[base + j] > tree[base + child]:
                    child = j
            node = 8 * node + child
        rows[i], saved[i] = node, tree[node]
        tree[node] = 0.0
        _repair(tree, offsets, rows[i : i + 1], True)
    for i in range(count):
        tree[rows[i]] = saved[i]
    _repair(tree, offsets, rows[:count], True)
    for i in range(count, len(rows)):
        rows[i] = rows[i - count]


@jit
def uniform_draw(order: np.ndarray, counters: np.ndarray, rng: np.ndarray, rows: np.ndarray, probs: np.ndarray) -> None:
    """Draw uniformly from the live items, with replacement. ``counters`` starts with [head, size] of ``order``."""
    head, size = counters[0], counters[1]
    for i in range(len(rows)):
        at = head + min(size - 1, np.int64(_random(rng) * size))
        rows[i] = order[at if at < len(order) else at - len(order)]
        probs[i] = 1.0 / size


# ------------------------------------------------------------------ heap: [0] is the largest weight
@jit
def _up(heap: np.ndarray, where: np.ndarray, weight: np.ndarray, at: int) -> int:
    row = heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if weight[heap[parent]] >= weight[row]:
            break
        heap[at] = heap[parent]
        where[heap[at]] = at
        at = parent
    heap[at] = row
    where[row] = at
    return at


@jit
def _down(heap: np.ndarray, where: np.ndarray, weight: np.ndarray, at: int, size: int) -> None:
    row = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and weight[heap[child + 1]] > weight[heap[child]]:
            child += 1
        if weight[heap[child]] <= weight[row]:
            break
        heap[at] = heap[child]
        where[heap[at]] = at
        at = child
    heap[at] = row
    where[row] = at


@jit
def heap_set(
    heap: np.ndarray,
    where: np.ndarray,
    weight: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    priorities: np.ndarray,
    new: bool,
) -> None:
    """Insert (``new``) or move rows. ``counts`` is [size, changes since the last sort]."""
    for i in range(len(rows)):
        row = rows[i]
        if new:
            where[row] = counts[0]
            heap[counts[0]] = row
            counts[0] += 1
        weight[row] = priorities[i]
        _down(heap, where, weight, _up(heap, where, weight, where[row]), counts[0])
    counts[1] += len(rows)


@jit
def heap_clear(heap: np.ndarray, where: np.ndarray, weight: np.ndarray, counts: np.ndarray, rows: np.ndarray) -> None:
    for row in rows:
        at, last = where[row], counts[0] - 1
        counts[0] = last
        if at != last:
            heap[at] = heap[last]
            where[heap[at]] = at
            _down(heap, where, weight, _up(heap, where, weight, at), last)
    counts[1] += len(rows)


@jit_allocating
def heap_sort(heap: np.ndarray, where: np.ndarray, weight: np.ndarray, counts: np.ndarray) -> None:
    """Sort the heap, largest first. A sorted array is a heap whose indices are exact ranks."""
    size = counts[0]
    key = np.empty(size, np.float32)
    for i in range(size):
        key[i] = -weight[heap[i]]
    rows = heap[:size][np.argsort(key)]
    for i in range(size):
        heap[i] = rows[i]
        where[rows[i]] = i
    counts[1] = 0


@jit
def heap_draw(
    heap: np.ndarray,
    mass: np.ndarray,
    counts: np.ndarray,
    rng: np.ndarray,
    rows: np.ndarray,
    probs: np.ndarray,
) -> None:
    """Draw one row in each of ``len(rows)`` segments of equal mass. ``mass[r]`` is the mass of the ranks up to r."""
    size, n = counts[0], len(rows)
    total = mass[size]
    for i in range(n):
        draw = (i + _random(rng)) * (total / n)
        low, high = 0, size - 1  # find the first rank (from 0) with mass[rank + 1] > draw
        while low < high:
            middle = (low + high) >> 1
            if mass[middle + 1] > draw:
                high = middle
            else:
                low = middle + 1
        rows[i] = heap[low]
        probs[i] = (mass[low + 1] - mass[low]) / total
