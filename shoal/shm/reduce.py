"""Sums over the replicas of a role, in shared memory.

Every member has a slot for each of two rounds and a line of counters, which nobody else writes. A put fills the slot
and counts up. Of a small item every member then adds all slots for itself. Of a large one each member adds an equal
part into a common result, and counts that; the result is read in place. Slots and results of one parity are free again
two rounds later, since nobody puts a round before it has got the one before: no lock, no copy, at most two waits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import numpy as np
import torch

from shoal import api
from shoal.program.groups import ROUNDS
from shoal.runtime.reduction import combine, got
from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.fields import LINE
from shoal.shm.group_layout import ReduceLayout
from shoal.shm.layout import CHECKPOINT
from shoal.shm.ring import coerce
from shoal.shm.session import Session
from shoal.types import State

_LOW = 0xFFFFFFFF
_PUT, _ADDED, _WAITS = 0, 1, 2  # columns of a member's line
_Part = tuple[np.ndarray, list[np.ndarray]]  # where to add, and what


class ReduceEnd:
    """A member's end (an ``api.Reducer``, and ``reduction.Saved``)."""

    def __init__(self, session: Session, layout: ReduceLayout, member: int) -> None:
        arena = session.arena
        self.channel, self.agreed = layout.channel, 0
        self._session, self._layout, self._member, self._words = session, layout, member, arena.words
        self._lines = [layout.lines // 8 + m * LINE for m in range(layout.members)]
        self._line = self._lines[member]
        self._bell, self._bell_address = layout.bell // 8, arena.base + layout.bell
        self._phase = f"wait:{layout.channel.name}"
        self._puts: int = self._words[self._line + _PUT]
        self._gets = self._puts
        self._headers = [[layout.slot(m, r) // 8 for m in range(layout.members)] for r in range(ROUNDS)]
        self._slots = [_slots(arena, layout, r) for r in range(ROUNDS)]
        self._results = _results(arena, layout)
        self._parts = [self._part(r) for r in range(ROUNDS)]
        self._known: api.Arrays | None = None  # the result of the round to be got next, where another had got it
        self._tensors = [{name: torch.from_numpy(a) for name, a in result.items()} for result in self._results]

    @property
    def pending(self) -> bool:
        return self._puts > self._gets

    def ready(self) -> bool:
        return not self.pending or self._all(_PUT, self._gets + 1)

    def put(self, items: api.Arrays) -> None:
        """Copy this round's item in."""
        target = self._reserve()
        if items.keys() != target.keys():
            raise api.UsageError(
                f"Channel {self.channel.name!r} has the fields {sorted(target)}, put got {sorted(items)}."
            )
        for name, array in target.items():
            array[...] = coerce(self.channel.name, name, items[name], array)
        self._commit()

    def slot(self) -> _Slot:
        """``with reducer.slot() as arrays:`` fills this round's item in place; an exception inside discards it."""
        return _Slot(self._reserve, self._commit)

    def get(self) -> api.Tensors:
        """Return the result of the round. Blocks until every member has put."""
        if not self.pending:
            raise api.UsageError(f"Channel {self.channel.name!r}: a get must follow a put.")
        count = self._gets + 1
        parity = self._gets % ROUNDS
        self._await(_PUT, count)
        self._fill(parity, self._known)
        self._known = None
        if self._layout.shared_out:
            self._raise(_ADDED, count)
            self._await(_ADDED, count)
        self.agreed = min(self._words[at] for at in self._headers[parity])
        self._session.fresh = False
        self._gets = count
        return self._tensors[parity if self._layout.shared_out else 0].copy()

    # --------------------------------------------------------------------------- what lies where
    def _part(self, parity: int) -> list[_Part]:
        """Return what this member adds: all, or its part of each field."""
        found = []
        for name, whole in self._results[parity if self._layout.shared_out else 0].items():
            out, ins = self._own(whole), [self._own(slot[name]) for slot in self._slots[parity]]
            if len(out):
                found.append((out, ins))
        return found

    def _own(self, whole: np.ndarray) -> np.ndarray:
        """Return all of a field, or the part that this member adds up."""
        flat, m, members = whole.reshape(-1), self._member, self._layout.members
        return flat[len(flat) * m // members : len(flat) * (m + 1) // members] if self._layout.shared_out else flat

    def _fill(self, parity: int, known: api.Arrays | None) -> None:
        """What this member adds, or is ``known`` already."""
        if known:
            for name, whole in self._results[parity if self._layout.shared_out else 0].items():
                self._own(whole)[...] = self._own(known[name])
            return
        for out, parts in self._parts[parity]:
            combine(out, parts, self.channel.mean)

    def _reserve(self) -> api.Arrays:
        if self.pending:
            raise api.UsageError(f"Channel {self.channel.name!r}: a put must follow the get of the put before.")
        return self._slots[self._puts % ROUNDS][self._member]

    def _commit(self) -> None:
        self._session.fresh = False
        self._words[self._headers[self._puts % ROUNDS][self._member]] = self._words[CHECKPOINT // 8]
        self._puts += 1
        self._raise(_PUT, self._puts)

    # ------------------------------------------------------------------------------------ waiting
    def _all(self, column: int, count: int) -> bool:
        words = self._words
        return all(words[line + column] >= count for line in self._lines)

    def _raise(self, column: int, count: int) -> None:
        """Increase the counter, after all earlier writes, and wake the waiting members."""
        words = self._words
        futex.fence()
        words[self._line + column] = count
        words[self._bell] = _bell(count, column, self._layout.members, self._member)
        futex.fence()
        if any(words[line + _WAITS] for line in self._lines):
            futex.wake(self._bell_address)

    def _await(self, column: int, count: int) -> None:
        """Block until the counter of every member has reached the given value."""
        words = self._words
        seen = words[self._bell]
        if not self._all(column, count) and not (futex.soon(words, self._bell, seen) and self._all(column, count)):
            try:
                while True:
                    words[self._line + _WAITS] = 1
                    futex.fence()
                    seen = words[self._bell] & _LOW
                    if self._all(column, count):
                        break
                    self._session.wait(self._phase, self._bell_address, seen)
            finally:
                words[self._line + _WAITS] = 0
        futex.fence()

    # ------------------------------------------------------------------------------------- states
    def state_dict(self) -> State:
        """All that this member alone writes, copied: its items of two rounds, and its parts of two results."""
        slots = [{name: a.copy() for name, a in self._slots[r][self._member].items()} for r in range(ROUNDS)]
        parts = [[out.copy() for out, _ in self._parts[r]] if self._layout.shared_out else [] for r in range(ROUNDS)]
        return {"puts": self._puts, "gets": self._gets, "slots": slots, "parts": parts}

    def load_state_dict(self, mine: State, of_all: Callable[[], list[State]]) -> None:
        self._puts, self._gets = mine["puts"], mine["gets"]
        for r in range(ROUNDS):
            for name, array in self._slots[r][self._member].items():
                array[...] = mine["slots"][r][name]
            if self._layout.shared_out:
                for (out, _), saved in zip(self._parts[r], mine["parts"][r], strict=False):
                    out[...] = saved
        again = self._layout.shared_out and self._gets and not any(mine["parts"])
        if again or (self.pending and "result" in mine):
            states = of_all()
            self._known = got(states, self._gets)
            if again:
                self._add_again((self._gets - 1) % ROUNDS, states, mine.get("result"))
        if self._layout.shared_out:
            self._raise(_ADDED, self._gets)
        self._raise(_PUT, self._puts)

    def _add_again(self, parity: int, states: list[State], result: api.Arrays | None) -> None:
        """Its part of the round got last, which another may not have got yet, where it was saved by an end that shared
        no result with others. What this writes for them they write themselves, and nobody puts before all are here."""
        for member, state in enumerate(states):
            for name, array in self._slots[parity][member].items():
                array[...] = state["slots"][parity][name]
        self._fill(parity, result)


class _Slot:
    """Context of one item that is written in place."""

    def __init__(self, reserve: Callable[[], api.Arrays], commit: Callable[[], None]) -> None:
        self._reserve, self._commit = reserve, commit

    def __enter__(self) -> api.Arrays:
        return self._reserve()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self._commit()


def _bell(count: int, column: int, members: int, member: int) -> int:
    """Return what a member writes where others sleep: no two are the same."""
    return ((2 * count + column) * members + member) & _LOW


def _slots(arena: Arena, layout: ReduceLayout, round: int) -> list[api.Arrays]:
    """Return the items of all members in the slots of a round."""
    starts = [layout.slot(m, round) for m in range(layout.members)]
    return [{f.name: arena.field(start, f) for f in layout.fields} for start in starts]


def _results(arena: Arena, layout: ReduceLayout) -> list[api.Arrays]:
    """The common results of two rounds, or one of this process."""
    if not layout.shared_out:
        return [{f.name: np.zeros(f.shape, f.dtype) for f in layout.result}]
    starts = [layout.results + r * layout.result_stride for r in range(ROUNDS)]
    return [{f.name: arena.field(start, f) for f in layout.result} for start in starts]
