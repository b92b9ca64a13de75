"""Compiled parts of the replay table: rows, the links between them, and items.

A row is one step of one stream; ``previous`` links it to the step before, ``depth`` says how many of those links a
stack may follow. An item is named by its first row; it holds a reference on every row its two observations show.
A stream holds one on its last ``n_step + stack`` rows. A row without references is free. None of these
functions makes an array (``jit``). Those that call each other stay in this file, because numba's disk cache watches
only the file of the outer function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.jit import jit

HEAD, SIZE, FREE_HEAD, FREE, INSERTED, SAMPLED, EVICTED, ALLOCATED = range(8)  # of ``counters``
TERMINATED, TRUNCATED = 1, 2  # of ``Streams.ended``


class Rows(NamedTuple):
    """Arrays over all rows."""

    previous: np.ndarray
    depth: np.ndarray
    refs: np.ndarray
    end: np.ndarray  # item: row of its next observation
    reward: np.ndarray  # item: discounted sum over its window
    discount: np.ndarray  # item: product of discounts
    key: np.ndarray  # item: serial * rows + row; -1 is no item
    priority: np.ndarray  # item: |delta| + eps
    position: np.ndarray  # item: its place in ``order``
    order: np.ndarray  # ring of the live items
    free: np.ndarray  # ring of the free rows


class Streams(NamedTuple):
    """Arrays over all streams (writer, column)."""

    hold: np.ndarray  # [S, H] ring of the last rows
    reward: np.ndarray  # [S, H] their rewards
    q: np.ndarray  # [S, H] their q_taken
    pushed: np.ndarray  # rows ever written to the ring
    held: np.ndarray  # rows in the ring now
    length: np.ndarray  # rows since the stream's episode began, or since its gap
    known: np.ndarray  # whether it began with an episode
    ended: np.ndarray  # how the last row ended, 0: it did not


class Unroll(NamedTuple):
    """Per-step fields of one unroll, [T * E]."""

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
    """Add ``change`` to the references of every row that the stack at ``row`` shows."""
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
    """Forget the open window of a stream."""
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
    """A free row becomes the next of stream ``s``; the oldest one it held may go."""
    row = rows.free[counters[FREE_HEAD]]
    counters[FREE_HEAD] = (counters[FREE_HEAD] + 1) % len(rows.free)
    counters[FREE] -= 1
    counters[ALLOCATED] += 1
    width, pushed = streams.hold.shape[1], streams.pushed[s]
    rows.previous[row] = streams.hold[s, (pushed - 1) % width]  # of a stream's first row nobody follows it
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
    """Make the item whose window of ``steps`` rewards ends at row ``end``, the newest of the stream: its row
    and its TD error by the actor's own values go to place ``at``. Returns the next place, or ``at`` if part of its
    stack is missing."""
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
    """Link one unroll into its streams and make the items it completes; returns how many. ``row_of`` and ``final_of``
    say in which row each step and each final observation belongs (-1: nowhere)."""
    count = 0
    width = streams.hold.shape[1]
    for e in range(envs):
        s = first_stream + e
        for t in range(steps):
            i = t * envs + e
            row_of[i] = final_of[i] = -1
            ended = streams.ended[s]
            if ended and not unroll.valid[i] and not unroll.first[i]:  # the true final observation
                row = _append(rows, streams, s, counters, stack)
                row_of[i] = row
                for k in range(min(n_step, streams.length[s]), 0, -1):
                    count = _item(
                        rows, streams, s, k, row, ended, gamma, unroll.q_max[i], stack, counters, new_rows, new_deltas,
                        count,
                    )  # fmt: skip
                _close(rows, streams, s, counters)
                continue
            if ended or unroll.first[i] or not unroll.valid[i]:  # a gap: windows stay incomplete
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
    """End these items. The oldest leaves ``order`` at its head, any other trades places with the newest."""
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
    """Write the priorities of keys that are still live. Their rows and priorities, how many they are, and the largest
    of them, come back."""
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
