"""The arrays of a table of sequences: rows of streams, sequences that are open or whole, and how streams are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# of ``counters``: the first eight as in ``rows``
HEAD, SIZE, FREE_HEAD, FREE, INSERTED, SAMPLED, EVICTED, ALLOCATED, SLOT_HEAD, SLOTS = range(10)
ENDS, STARTS = 1, 2  # of ``Items.flags``: its last step terminated the episode; its first row is the episode's first


class Rows(NamedTuple):
    """Arrays over all rows."""

    previous: np.ndarray
    depth: np.ndarray
    refs: np.ndarray
    reward: np.ndarray
    q_taken: np.ndarray
    q_max: np.ndarray
    free: np.ndarray  # ring of the free rows


class Items(NamedTuple):
    """Arrays over all slots."""

    end: np.ndarray  # row of the last observation
    prefix: np.ndarray  # steps before those that are learned from
    length: np.ndarray  # steps that are learned from
    flags: np.ndarray
    key: np.ndarray  # serial * slots + slot; -1 is no item
    priority: np.ndarray
    position: np.ndarray  # its place in ``order``
    order: np.ndarray  # ring of the live items
    free: np.ndarray  # ring of the free slots
    states: np.ndarray  # [slots, bytes]: before the first row, and both probes


class Streams(NamedTuple):
    """Arrays over all streams (writer, column)."""

    hold: np.ndarray  # [S, H] ring of the last rows
    open: np.ndarray  # [S, P] ring of the slots of open sequences
    pushed: np.ndarray  # rows ever written to the ring
    held: np.ndarray  # rows in the ring now
    length: np.ndarray  # rows since the stream's episode began, or since its gap
    begun: np.ndarray  # sequences of this episode that have begun
    done: np.ndarray  # ... and are no longer open
    known: np.ndarray  # whether it began with an episode
    ended: np.ndarray  # how the last row ended, 0: it did not


class Cut(NamedTuple):
    """How streams are cut; see ``SequenceOptions``. rescale: below 0 there is none."""

    length: int
    stride: int
    burn_in: int
    n_step: int
    gamma: float
    eta: float
    rescale: float
    stack: int
    same_step: bool
