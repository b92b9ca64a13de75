"""The arrays of a table of sequences: stored rows, sequences in progress or complete, streams, and how they are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# indices of ``counters``; the first eight are those of ``rows``
HEAD, SIZE, FREE_HEAD, FREE, INSERTED, SAMPLED, EVICTED, ALLOCATED, SLOT_HEAD, SLOTS = range(10)
# bits of ``Items.flags``: the last step terminated the episode; the first row is the first of its episode
ENDS, STARTS = 1, 2


class Rows(NamedTuple):
    """Arrays with one element for each row."""

    previous: np.ndarray
    depth: np.ndarray
    refs: np.ndarray
    reward: np.ndarray
    q_taken: np.ndarray
    q_max: np.ndarray
    free: np.ndarray  # ring of the free rows


class Items(NamedTuple):
    """Arrays with one element for each slot, which holds one sequence."""

    end: np.ndarray  # row of the last observation
    prefix: np.ndarray  # steps before those that are learned from (burn-in)
    length: np.ndarray  # steps that are learned from
    flags: np.ndarray
    key: np.ndarray  # serial * slots + slot; -1 if the slot holds no item
    priority: np.ndarray
    position: np.ndarray  # its index in ``order``
    order: np.ndarray  # ring of the slots of live items
    free: np.ndarray  # ring of the free slots
    states: np.ndarray  # [slots, bytes]: recurrent states before the first row and at both probes


class Streams(NamedTuple):
    """Arrays with one element for each stream, a (writer, environment) pair."""

    hold: np.ndarray  # [S, H] ring of each stream's last rows
    open: np.ndarray  # [S, P] ring of the slots of sequences in progress
    pushed: np.ndarray  # rows ever written to the ring
    held: np.ndarray  # rows in the ring now
    length: np.ndarray  # rows since the stream's episode, or a gap, began
    begun: np.ndarray  # sequences that have begun in this episode
    done: np.ndarray  # sequences of this episode that are no longer in progress
    known: np.ndarray  # whether the rows reach back to the start of the episode
    ended: np.ndarray  # how the last row ended its episode; 0 if it did not


class Cut(NamedTuple):
    """How streams are cut into sequences; see ``SequenceOptions``. rescale: the eps of the value rescaling, negative
    for none."""

    length: int
    stride: int
    burn_in: int
    n_step: int
    gamma: float
    eta: float
    rescale: float
    stack: int
    same_step: bool
