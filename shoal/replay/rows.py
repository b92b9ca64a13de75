"""Compiled parts of the replay table of transitions: rows, the links between them, and items.

A row is one step of one stream. ``previous`` links it to the step before, and ``depth`` is the number of links that a
frame stack may follow. An item is identified by its first row and holds a reference to every row of its two
observations. A stream holds a reference to its last ``n_step + stack`` rows. A row without references is free. None of
these functions allocates an array (see ``jit``). Functions that call each other stay in this file, because numba's disk
cache watches only the file of the outer function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.jit import jit

HEAD, SIZE, FREE_HEAD, FREE, INSERTED, SAMPLED, EVICTED, ALLOCATED = range(8)  # indices of ``counters``
TERMINATED, TRUNCATED = 1, 2  # values of ``Streams.ended``


class Rows(NamedTuple):
    """Arrays with one element for each row. Those marked "item" describe the item that begins at the row."""

    previous: np.ndarray
    depth: np.ndarray
    refs: np.ndarray
    end: np.ndarray  # item: row of its next observation
    reward: np.ndarray  # item: discounted sum over its window
    discount: np.ndarray  # item: product of discounts
    key: np.ndarray  # item: serial * rows + row; -1 if the row begins no item
    priority: np.ndarray  # item: |delta| + eps
    position: np.ndarray  # item: its index in ``order``
    order: np.ndarray  # ring of the first rows of live items
    free: np.ndarray  # ring of the free rows


class Streams(NamedTuple):
    """Arrays with one element for each stream, a (writer, environment) pair."""

    hold: np.ndarray  # [S, H] ring of each stream's last rows
    reward: np.ndarray  # [S, H] rewards of these rows
    q: np.ndarray  # [S, H] q_taken of these rows
    pushed: np.ndarray  # rows ever written to the ring
    held: np.ndarray  # rows in the ring now
    length: np.ndarray  # rows since the stream's episode, or a gap, began
    known: np.ndarray  # whether the rows reach back to the start of the episode
    ended: np.ndarray  # TERMINATED or TRUNCATED if the last row ended an episode, else 0


class Unroll(NamedTuple):
    """Per-step fields of one unroll, [T * E] each."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    first: np.ndarray
    q_taken: np.ndarray
    q_max: np.ndarray
    final_q: np.ndarray


@jit
def _reference(rows: Rows, row: int, change: int, counters: np.ndarray) -> None:
    """Add ``change`` to the reference count of every row in the frame stack at ``row``."""
    for _ in range(rows.depth[row] + 1):
        before = rows.previous[row]
        rows.refs[row] += change
        if rows.refs[row] == 0:
            rows.free[(counters[FREE_HEAD] + counters[FREE]) % len(rows.free)] = row
            counters[FREE] += 1
        row = before


@jit
def _release(rows: Rows, row: int, counters: np.ndarray) -> None:
    rows.refs[row] -= 1
    if rows.refs[row] == 0:
        rows.free[(counters[FREE_HEAD] + counters[FREE]) % len(rows.free)] = row
        counters[FREE] += 1


@jit
def _close(rows: Rows, streams: Streams, s: int, counters: np.ndarray) -> None:
    """Drop the open window of a stream."""
    width = streams.hold.shape[1]
    for i in range(streams.held[s]):
        _release(rows, streams.hold[s, (streams.pushed[s] - 1 - i) % width], counters)
    streams.held[s] = streams.length[s] = streams.ended[s] = streams.known[s] = 0


@jit
def close_streams(rows: Rows, streams: Streams, begin: int, end: int, counters: np.ndarray) -> None:
    for s in range(begin, end):
        _close(rows, streams, s, counters)


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
        _release(rows, streams.hold[s, pushed % width], counters)
    else:
        streams.held[s] += 1
    rows.depth[row] = min(streams.length[s], stack - 1)
    rows.refs[row] = 1
    streams.hold[s, pushed % width] = row
    streams.pushed[s] += 1
    return int(row)


@jit
def _item(
    rows: Rows, streams: Streams, s: int, steps: int, end: int, how: int, gamma: float, q_end: float, stack: int,
    counters: np.ndarray, new_rows: np.ndarray, new_deltas: np.ndarray, at: int,
) -> int:  # fmt: skip
    """Make the item whose window of ``steps`` rewards ends at row ``end``, the newest of the stream. Write its row and
    its TD error by the actor's own values to index ``at``. Return the next index, or ``at`` if the item's frame stack
    is incomplete."""
    width, newest = streams.hold.shape[1], streams.pushed[s] - 1
    if not streams.known[s] and streams.length[s] - steps < stack - 1:
        return at
    total, discount = 0.0, 1.0
    for i in range(steps, 0, -1):
        total += discount * streams.reward[s, (newest - i) % width]
        discount *= gamma
    if how & TERMINATED:
        discount = 0.0
    row = streams.hold[s, (newest - steps) % width]
    rows.end[row] = end
    rows.reward[row] = total
    rows.discount[row] = discount
    rows.key[row] = counters[INSERTED] * len(rows.key) + row
    counters[INSERTED] += 1
    place = (counters[HEAD] + counters[SIZE]) % len(rows.order)
    rows.order[place] = row
    rows.position[row] = place
    counters[SIZE] += 1
    _reference(rows, row, 1, counters)
    _reference(rows, end, 1, counters)
    q_start = streams.q[s, (newest - steps) % width]
    delta = abs(total - q_start + (discount * q_end if discount > 0.0 else 0.0))
    new_rows[at] = row
    new_deltas[at] = delta if np.isfinite(delta) else 0.0
    return at + 1


@jit
def ingest(
    rows: Rows, streams: Streams, unroll: Unroll, counters: np.ndarray, first_stream: int, envs: int, steps: int,
    n_step: int, gamma: float, stack: int, same_step: bool, row_of: np.ndarray, final_of: np.ndarray,
    new_rows: np.ndarray, new_deltas: np.ndarray,
) -> int:  # fmt: skip
    """Link one unroll into its streams, make the items that it completes, and return their number. ``row_of`` and
    ``final_of`` receive the row of each step and of each final observation (-1: not stored)."""
    count = 0
    width = streams.hold.shape[1]
    for e in range(envs):
        s = first_stream + e
        for t in range(steps):
            i = t * envs + e
            row_of[i] = final_of[i] = -1
            ended = streams.ended[s]
            if ended and not unroll.valid[i] and not unroll.first[i]:  # the episode's final observation
                row = _append(rows, streams, s, counters, stack)
                row_of[i] = row
                for k in range(min(n_step, streams.length[s]), 0, -1):
                    count = _item(
                        rows, streams, s, k, row, ended, gamma, unroll.q_max[i], stack, counters, new_rows, new_deltas,
                        count,
                    )  # fmt: skip
                _close(rows, streams, s, counters)
                continue
            if ended or unroll.first[i] or not unroll.valid[i]:  # after a gap, windows stay incomplete
                _close(rows, streams, s, counters)
            if not unroll.valid[i]:
                continue
            if streams.held[s] == 0:
                streams.known[s] = unroll.first[i]
            row = _append(rows, streams, s, counters, stack)
            row_of[i] = row
            at = (streams.pushed[s] - 1) % width
            streams.reward[s, at] = unroll.reward[i]
            streams.q[s, at] = unroll.q_taken[i]
            if streams.length[s] >= n_step:
                count = _item(
                    rows, streams, s, n_step, row, 0, gamma, unroll.q_max[i], stack, counters, new_rows, new_deltas,
                    count,
                )  # fmt: skip
            streams.length[s] += 1
            ended = TERMINATED if unroll.terminated[i] else (TRUNCATED if unroll.truncated[i] else 0)
            streams.ended[s] = ended
            if same_step and ended:
                row = _append(rows, streams, s, counters, stack)
                final_of[i] = row
                for k in range(min(n_step, streams.length[s]), 0, -1):
                    count = _item(
                        rows, streams, s, k, row, ended, gamma, unroll.final_q[i], stack, counters, new_rows,
                        new_deltas, count,
                    )  # fmt: skip
                _close(rows, streams, s, counters)
    return count


@jit
def oldest(order: np.ndarray, counters: np.ndarray, victims: np.ndarray) -> None:
    for i in range(len(victims)):
        victims[i] = order[(counters[HEAD] + i) % len(order)]


@jit
def remove(rows: Rows, victims: np.ndarray, counters: np.ndarray) -> None:
    """Remove these items. The oldest leaves the head of ``order``; any other is first swapped with the newest."""
    for row in victims:
        at, newest = rows.position[row], (counters[HEAD] + counters[SIZE] - 1) % len(rows.order)
        if at == counters[HEAD]:
            counters[HEAD] = (at + 1) % len(rows.order)
        else:
            rows.order[at] = rows.order[newest]
            rows.position[rows.order[at]] = at
        counters[SIZE] -= 1
        counters[EVICTED] += 1
        rows.key[row] = -1
        _reference(rows, rows.end[row], -1, counters)
        _reference(rows, row, -1, counters)


@jit
def resolve(
    key: np.ndarray,
    priority: np.ndarray,
    keys: np.ndarray,
    deltas: np.ndarray,
    eps: float,
    largest: np.ndarray,
    out: np.ndarray,
    values: np.ndarray,
) -> tuple[int, float]:
    """Write the new priorities of keys that are still live. Fill ``out`` and ``values`` with their rows and priorities,
    and return how many there are and the largest of them."""
    count, top = 0, np.float32(0.0)
    for i in range(len(keys)):
        row = keys[i] % len(key)
        if keys[i] < 0 or key[row] != keys[i] or not np.isfinite(deltas[i]):
            continue
        value = np.float32(abs(deltas[i]) + eps)
        priority[row] = value
        top = max(top, value)
        out[count], values[count] = row, value
        count += 1
    largest[0] = max(largest[0], top)
    return count, top
