"""Compiled parts of the table of sequences: rows of streams, sequences in progress, and complete ones.

A row is one step of one stream, as in ``rows``. A sequence gets a slot when its first row is stored. When its last
observation is stored it becomes an item, which holds a reference to every row that it contains. A stream holds a
reference to each row that its sequences in progress may contain. A row without references is free. None of these
functions allocates an array (see ``jit``). Functions that call each other stay in this file, because numba's disk cache
watches only the file of the outer function.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.jit import jit
from shoal.replay.rows import TERMINATED, TRUNCATED, Unroll
from shoal.replay.sequence_arrays import (
    ALLOCATED,
    ENDS,
    EVICTED,
    FREE,
    FREE_HEAD,
    HEAD,
    INSERTED,
    SIZE,
    SLOT_HEAD,
    SLOTS,
    STARTS,
    Cut,
    Items,
    Rows,
    Streams,
)


@jit
def _change(rows: Rows, row: int, change: int, counters: np.ndarray) -> None:
    """Add ``change`` (1 or -1) to the reference count of a row, and free the row at 0."""
    rows.refs[row] += change
    if rows.refs[row] == 0:
        rows.free[(counters[FREE_HEAD] + counters[FREE]) % len(rows.free)] = row
        counters[FREE] += 1


@jit
def _reference(rows: Rows, items: Items, slot: int, change: int, counters: np.ndarray) -> None:
    """Add ``change`` (1 or -1) to the reference count of every row of the item, including its first frame stack."""
    row = items.end[slot]
    for _ in range(items.prefix[slot] + items.length[slot]):
        before = rows.previous[row]
        _change(rows, row, change, counters)
        row = before
    for _ in range(rows.depth[row] + 1):
        before = rows.previous[row]
        _change(rows, row, change, counters)
        row = before


@jit
def _discard(items: Items, slot: int, counters: np.ndarray) -> None:
    """Free a slot."""
    items.free[(counters[SLOT_HEAD] + counters[SLOTS]) % len(items.free)] = slot
    counters[SLOTS] += 1


@jit
def _close(rows: Rows, items: Items, streams: Streams, s: int, counters: np.ndarray) -> None:
    """Drop the rows and the sequences in progress of a stream."""
    width, places = streams.hold.shape[1], streams.open.shape[1]
    for i in range(streams.held[s]):
        _change(rows, streams.hold[s, (streams.pushed[s] - 1 - i) % width], -1, counters)
    for k in range(streams.done[s], streams.begun[s]):
        _discard(items, streams.open[s, k % places], counters)
    streams.held[s] = streams.length[s] = streams.ended[s] = streams.known[s] = 0
    streams.begun[s] = streams.done[s] = 0


@jit
def close_streams(rows: Rows, items: Items, streams: Streams, begin: int, end: int, counters: np.ndarray) -> None:
    for s in range(begin, end):
        _close(rows, items, streams, s, counters)


@jit
def _append(rows: Rows, streams: Streams, s: int, counters: np.ndarray, stack: int) -> int:
    """Take a free row as the next of stream ``s``, release the oldest one that it holds if its ring is full, and return
    the new row."""
    row = rows.free[counters[FREE_HEAD]]
    counters[FREE_HEAD] = (counters[FREE_HEAD] + 1) % len(rows.free)
    counters[FREE] -= 1
    counters[ALLOCATED] += 1
    width, pushed = streams.hold.shape[1], streams.pushed[s]
    # meaningless for a stream's first row, where no link is followed
    rows.previous[row] = streams.hold[s, (pushed - 1) % width]
    if streams.held[s] == width:
        _change(rows, streams.hold[s, pushed % width], -1, counters)
    else:
        streams.held[s] += 1
    rows.depth[row] = min(streams.length[s], stack - 1)
    rows.refs[row] = 1
    streams.hold[s, pushed % width] = row
    streams.pushed[s] += 1
    return int(row)


@jit
def _rescale(x: float, eps: float) -> float:
    """Return the value rescaling ``ops.signed_hyperbolic`` of ``x``, or ``x`` itself if ``eps`` is negative."""
    return x if eps < 0.0 else x / (math.sqrt(abs(x) + 1.0) + 1.0) + eps * x


@jit
def _rescale_inverse(x: float, eps: float) -> float:
    """Return ``ops.signed_hyperbolic_inverse`` of ``x``, or ``x`` itself if ``eps`` is negative."""
    if eps < 0.0:
        return x
    size = abs(x)
    root = math.sqrt(1.0 + 4.0 * eps * (size + 1.0 + eps))
    y = 2.0 * (size + 1.0 + eps) / (1.0 + root)
    return x * ((2.0 - 4.0 * eps / (1.0 + 2.0 * eps + root)) / (1.0 + root)) * (y + 1.0)


@jit
def _priority(rows: Rows, items: Items, slot: int, cut: Cut, window: np.ndarray) -> float:
    """Return ``eta * max + (1 - eta) * mean`` of the absolute n-step TD errors by the actor's own values (Kapturowski
    et al. 2019, section 2.3)."""
    length, row = items.length[slot], items.end[slot]
    for i in range(length, -1, -1):
        window[i] = row
        row = rows.previous[row]
    largest, total = 0.0, 0.0
    for t in range(length):
        steps = min(cut.n_step, length - t)
        sum_, discount = 0.0, 1.0
        for i in range(steps):
            sum_ += discount * rows.reward[window[t + i]]
            discount *= cut.gamma
        if not (t + steps == length and (items.flags[slot] & ENDS) != 0):
            sum_ += discount * _rescale_inverse(rows.q_max[window[t + steps]], cut.rescale)
        delta = abs(_rescale(sum_, cut.rescale) - rows.q_taken[window[t]])
        if np.isfinite(delta):
            largest = max(largest, delta)
            total += delta
    return float(cut.eta * largest + (1.0 - cut.eta) * total / length)


@jit
def _emit(
    rows: Rows, items: Items, streams: Streams, s: int, length: int, end: int, how: int, cut: Cut, counters: np.ndarray,
    window: np.ndarray, new: np.ndarray, new_priorities: np.ndarray, at: int,
) -> int:  # fmt: skip
    """Turn the oldest sequence in progress of a stream into an item of ``length`` steps whose last observation is row
    ``end``. Write its slot and priority to index ``at`` and return the next index."""
    slot = streams.open[s, streams.done[s] % streams.open.shape[1]]
    streams.done[s] += 1
    items.end[slot] = end
    items.length[slot] = length
    if how & TERMINATED:
        items.flags[slot] |= ENDS
    items.key[slot] = counters[INSERTED] * len(items.key) + slot
    counters[INSERTED] += 1
    place = (counters[HEAD] + counters[SIZE]) % len(items.order)
    items.order[place] = slot
    items.position[slot] = place
    counters[SIZE] += 1
    _reference(rows, items, slot, 1, counters)
    new[at] = slot
    new_priorities[at] = _priority(rows, items, slot, cut, window)
    return at + 1


@jit
def _offset(streams: Streams, s: int, cut: Cut) -> int:
    """Return the step at which the first sequence's steps to learn from begin. After a gap, its burn-in and a whole
    frame stack come before them."""
    return 0 if streams.known[s] else cut.burn_in + cut.stack - 1


@jit
def _begin(
    items: Items, streams: Streams, s: int, cut: Cut, counters: np.ndarray, i: int, begin_of: np.ndarray
) -> None:
    """Give a slot to each sequence that begins at the stream's newest row."""
    at, offset = streams.length[s], _offset(streams, s, cut)
    while True:
        start = offset + streams.begun[s] * cut.stride  # the first of its steps to learn from
        if max(0, start - cut.burn_in) != at:
            return
        slot = items.free[counters[SLOT_HEAD]]
        counters[SLOT_HEAD] = (counters[SLOT_HEAD] + 1) % len(items.free)
        counters[SLOTS] -= 1
        streams.open[s, streams.begun[s] % streams.open.shape[1]] = slot
        streams.begun[s] += 1
        items.prefix[slot] = start - at
        items.flags[slot] = 0
        if streams.known[s] and at == 0:
            items.flags[slot] = STARTS
            items.states[slot, :] = 0
        else:
            begin_of[i] = slot


@jit
def _probe(streams: Streams, s: int, cut: Cut, ahead: int) -> int:
    """Return the slot of the sequence in progress whose step to learn from number ``ahead`` is the stream's newest row,
    or -1."""
    since = streams.length[s] - ahead - _offset(streams, s, cut)
    if since < 0 or since % cut.stride:
        return -1
    return int(streams.open[s, since // cut.stride % streams.open.shape[1]])  # it has begun and is not complete


@jit
def _complete(
    rows: Rows, items: Items, streams: Streams, s: int, row: int, how: int, cut: Cut, counters: np.ndarray,
    window: np.ndarray, new: np.ndarray, new_priorities: np.ndarray, at: int,
) -> int:  # fmt: skip
    """Make the items whose last observation is ``row``, the newest of the stream. ``how``: how the episode ended before
    it, 0 if it continues. Return the next index in ``new``."""
    # the first step to learn from of the oldest sequence in progress
    start = _offset(streams, s, cut) + streams.done[s] * cut.stride
    length = streams.length[s] - start
    if length == cut.length or (how and length > 0):
        at = _emit(rows, items, streams, s, length, row, how, cut, counters, window, new, new_priorities, at)
    return at


@jit
def ingest(
    rows: Rows, items: Items, streams: Streams, unroll: Unroll, counters: np.ndarray, first_stream: int, envs: int,
    steps: int, cut: Cut, row_of: np.ndarray, final_of: np.ndarray, begin_of: np.ndarray, first_of: np.ndarray,
    last_of: np.ndarray, window: np.ndarray, new: np.ndarray, new_priorities: np.ndarray,
) -> int:  # fmt: skip
    """Link one unroll into its streams, make the items that it completes, and return their number.

    ``row_of`` and ``final_of`` receive the row of each step and of each final observation. ``begin_of``, ``first_of``
    and ``last_of`` receive the slot that stores each step's recurrent state as that before its first row, before its
    first step to learn from and before its last. -1 means none.
    """
    count = 0
    for e in range(envs):
        s = first_stream + e
        for t in range(steps):
            i = t * envs + e
            row_of[i] = final_of[i] = begin_of[i] = first_of[i] = last_of[i] = -1
            ended = streams.ended[s]
            if ended and not unroll.valid[i] and not unroll.first[i]:  # the episode's final observation
                row = _append(rows, streams, s, counters, cut.stack)
                row_of[i] = row
                rows.q_max[row] = unroll.q_max[i]
                count = _complete(
                    rows, items, streams, s, row, ended, cut, counters, window, new, new_priorities, count
                )  # fmt: skip
                _close(rows, items, streams, s, counters)
                continue
            if ended or unroll.first[i] or not unroll.valid[i]:  # after a gap, sequences stay incomplete
                _close(rows, items, streams, s, counters)
            if not unroll.valid[i]:
                continue
            if streams.held[s] == 0:
                streams.known[s] = unroll.first[i]
            row = _append(rows, streams, s, counters, cut.stack)
            row_of[i] = row
            rows.reward[row] = unroll.reward[i]
            rows.q_taken[row] = unroll.q_taken[i]
            rows.q_max[row] = unroll.q_max[i]
            count = _complete(rows, items, streams, s, row, 0, cut, counters, window, new, new_priorities, count)
            _begin(items, streams, s, cut, counters, i, begin_of)
            first_of[i] = _probe(streams, s, cut, 0)
            last_of[i] = _probe(streams, s, cut, cut.length - 1)
            streams.length[s] += 1
            ended = TERMINATED if unroll.terminated[i] else (TRUNCATED if unroll.truncated[i] else 0)
            streams.ended[s] = ended
            if cut.same_step and ended:
                row = _append(rows, streams, s, counters, cut.stack)
                final_of[i] = row
                rows.q_max[row] = unroll.final_q[i]
                count = _complete(
                    rows, items, streams, s, row, ended, cut, counters, window, new, new_priorities, count
                )  # fmt: skip
                _close(rows, items, streams, s, counters)
    return count


@jit
def remove(rows: Rows, items: Items, victims: np.ndarray, counters: np.ndarray) -> None:
    """Remove these items, which must be the oldest of ``order``."""
    for slot in victims:
        counters[HEAD] = (counters[HEAD] + 1) % len(items.order)
        counters[SIZE] -= 1
        counters[EVICTED] += 1
        items.key[slot] = -1
        _reference(rows, items, slot, -1, counters)
        _discard(items, slot, counters)


@jit
def unfold(
    rows: Rows, items: Items, slots: np.ndarray, burn_in: int, keys: np.ndarray, chosen: np.ndarray, valid: np.ndarray,
    first: np.ndarray, terminated: np.ndarray, reward: np.ndarray,
) -> None:  # fmt: skip
    """Fill ``chosen`` [L, B] with the rows of each item, whose steps to learn from begin at row ``burn_in``, and fill
    the arrays that describe each row. Padding repeats the item's first and last row."""
    length = len(chosen)
    for j in range(len(slots)):
        slot = slots[j]
        keys[j] = items.key[slot]
        begin = burn_in - items.prefix[slot]
        end = burn_in + items.length[slot]
        row = items.end[slot]
        for t in range(length - 1, -1, -1):
            chosen[t, j] = row
            step = begin <= t < end
            valid[t, j] = step
            first[t, j] = t == begin and (items.flags[slot] & STARTS) != 0
            terminated[t, j] = t == end - 1 and (items.flags[slot] & ENDS) != 0
            reward[t, j] = rows.reward[row] if step else 0.0
            if begin < t <= end:
                row = rows.previous[row]
