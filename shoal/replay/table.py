"""Table: a replay of n-step transitions that stores every step of every stream once."""

from __future__ import annotations

import numpy as np
import torch

from shoal.api import Arrays, Spec
from shoal.replay import copies, rows as _rows
from shoal.replay.layout import Column
from shoal.replay.options import TableOptions
from shoal.replay.rows import FREE, INSERTED, SIZE
from shoal.replay.samplers import Proportional, live_rows
from shoal.replay.store import BatchMemory, Store
from shoal.types import State


class _TransitionBatch(BatchMemory):
    """Memory of a batch of transitions."""

    def __init__(self, table: Table, n: int) -> None:
        super().__init__(n)
        self.table, self.ends = table, np.empty(n, np.int32)
        self.reward, self.discount = np.empty(n, np.float32), np.empty(n, np.float32)
        arrays: Arrays = {}
        # (offset, bytes of the first observation, bytes of the next)
        self.stacks: list[tuple[int, np.ndarray, np.ndarray]] = []
        self.copies: list[tuple[int, np.ndarray, np.ndarray]] = []  # (offset, bytes, rows to copy from)

        def place(name: str, column: Column, stack: tuple[int, ...] = ()) -> np.ndarray:
            arrays[name] = array = np.empty((n, *stack, *column.shape[len(stack) :]), column.dtype)
            return array.reshape(-1).view(np.uint8).reshape(n, *stack, column.nbytes)

        for column in table.layout.obs:
            if table.stacked(column):
                now, after = (place(p + column.name, column, (table.spec.stack,)) for p in ("", "next/"))
                self.stacks.append((column.offset, now, after))
            else:
                self.copies.append((column.offset, place(column.name, column), self.slots))
                self.copies.append((column.offset, place("next/" + column.name, column), self.ends))
        for column in table.layout.rest:
            self.copies.append((column.offset, place(column.name, column), self.slots))
        arrays["reward"], arrays["discount"] = self.reward, self.discount
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def fill(self) -> None:
        r, data, zero = self.table._r, self.table._data, self.table.spec.pad == "zero"
        copies.gather_items(
            r.key, r.end, r.reward, r.discount, self.slots, self.keys, self.ends, self.reward, self.discount
        )
        for offset, now, after in self.stacks:
            copies.gather_stacks(data, offset, r.previous, r.depth, zero, self.slots, self.ends, now, after)
        for offset, out, chosen in self.copies:
            copies.gather(data, offset, chosen, out)


class Table(Store):
    """The table behind a replay channel of transitions; see ``TableOptions``. An item's slot is the row of its first
    step."""

    def __init__(self, spec: TableOptions, unroll: Spec, writers: int, seed: int):
        super().__init__(spec, "rows", unroll, writers, seed)
        self.spec = spec
        self._r = _rows.Rows(*(self._arrays[f"rows/{name}"] for name in _rows.Rows._fields))
        self._s = _rows.Streams(*(self._arrays[f"streams/{name}"] for name in _rows.Streams._fields))
        self._new_rows, self._new_deltas = self._arrays["scratch/new_rows"], self._arrays["scratch/new_deltas"]
        self._victims = self._arrays["scratch/victims"]
        if spec.evict == "proportional":
            self._evictor = Proportional(
                self._arrays_of("evictor"), self._order, self._counters, self._rng, spec.alpha_evict
            )
            self._prioritised = True
        self._since_evict = 0

    def _close(self, begin: int, end: int) -> None:
        _rows.close_streams(self._r, self._s, begin, end, self._counters)

    def _ingest(self, fields: _rows.Unroll, begin: int, steps: int) -> int:
        layout, spec, n = self.layout, self.spec, len(fields.reward)
        return _rows.ingest(
            self._r, self._s, fields, self._counters, begin, layout.envs, steps, spec.n_step, spec.gamma, spec.stack,
            layout.same_step, self._row_of[:n], self._final_of[:n], self._new_rows, self._new_deltas,
        )  # fmt: skip

    def _insert(self, count: int) -> None:
        self._insert_into_samplers(self._new_rows[:count], self._new_deltas[:count])
        self._since_evict += count
        if self._since_evict >= self.spec.evict_every:
            self.evict()

    def evict(self) -> int:
        """Remove the items above the capacity at once, and return their number."""
        with self._lock:
            self._since_evict = 0
            surplus = max(0, int(self._counters[SIZE]) - self.spec.capacity)
            self._remove(surplus)
            self._count()
            return surplus

    def _remove(self, count: int) -> None:
        if count <= 0:
            return
        victims = self._victims[:count]
        if self._evictor is None:
            _rows.oldest(self._r.order, self._counters, victims)
        else:
            self._evictor.take(victims)
        self.sampler.remove(victims)
        _rows.remove(self._r, victims, self._counters)

    def _holders(self, rows: int) -> int:
        return rows

    def _new_batch(self, n: int) -> BatchMemory:
        return _TransitionBatch(self, n)

    # --------------------------------------------------------------------------------- state
    def state(self) -> State:
        return {**super().state(), "since_evict": self._since_evict}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._since_evict = int(state["since_evict"])

    def check_valid(self) -> tuple[bool, str]:
        """Check slowly that rows, references, free list, items, streams and samplers agree. Return (True, "") or
        (False, reason)."""
        with self._lock:
            r, s = self._r, self._s
            live = live_rows(r.order, self._counters)
            if len(np.unique(live)) != len(live) or not np.array_equal(np.sort(live), np.flatnonzero(r.key >= 0)):
                return False, "table: the rows with keys are not the live items"
            if (r.key[live] % len(r.key) != live).any() or (r.key[live] // len(r.key) >= self.inserted).any():
                return False, "table: a key does not name its row"
            if not np.array_equal((r.position[live] - self._counters[0]) % len(r.order), np.arange(len(live))):
                return False, "table: an item is not where it is said to be"
            refs = np.zeros(len(r.refs), np.int64)
            for top in (live, r.end[live]):
                row, links = top.copy(), r.depth[top].copy()
                for _ in range(self.spec.stack):
                    np.add.at(refs, row[links >= 0], 1)
                    row = np.where(links > 0, r.previous[row], row)
                    links -= 1
            width = s.hold.shape[1]
            for i in range(len(s.held)):
                np.add.at(refs, s.hold[i, (s.pushed[i] - 1 - np.arange(s.held[i])) % width], 1)
            if not np.array_equal(refs, r.refs):
                return False, "table: the references of a row are miscounted"
            free = r.free[(self._counters[2] + np.arange(self._counters[FREE])) % len(r.free)]
            if not np.array_equal(np.sort(free), np.flatnonzero(refs == 0)):
                return False, "table: the free rows are not the rows without references"
            if (self.inserted, self.size) != (self._counters[INSERTED], self._counters[SIZE]):
                return False, "table: the counters disagree"
            if self.inserted != self.size + self.evicted:
                return False, "table: items were lost"
            return self._samplers_valid()
