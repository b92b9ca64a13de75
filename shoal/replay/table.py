"""Table: a replay of n-step transitions that stores every step of every stream once."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from shoal.api import Arrays, Batch, ShoalError, Spec, Tensors
from shoal.replay import copies, rows as _rows
from shoal.replay.layout import Column
from shoal.replay.options import TableOptions
from shoal.replay.rows import FREE, INSERTED, SAMPLED, SIZE
from shoal.replay.samplers import Proportional, live_rows
from shoal.replay.store import Store, as_bytes
from shoal.types import State


class _Buffers:
    """Memory of the batches of one size, reused by every batch."""

    def __init__(self, table: Table, n: int):
        self.rows, self.ends = np.empty(n, np.int32), np.empty(n, np.int32)
        self.keys, self.probs = np.empty(n, np.int64), np.empty(n, np.float32)
        self.reward, self.discount = np.empty(n, np.float32), np.empty(n, np.float32)
        arrays: Arrays = {}
        self.stacks: list[tuple[int, np.ndarray, np.ndarray]] = []  # (offset, bytes, those of the window's end)
        self.copies: list[tuple[int, np.ndarray, np.ndarray]] = []  # (offset, bytes, rows)

        def place(name: str, column: Column, stack: tuple[int, ...] = ()) -> np.ndarray:
            arrays[name] = array = np.empty((n, *stack, *column.shape[len(stack) :]), column.dtype)
            return array.reshape(-1).view(np.uint8).reshape(n, *stack, column.nbytes)

        for column in table.layout.obs:
            if table.stacked(column):
                now, after = (place(p + column.name, column, (table.spec.stack,)) for p in ("", "next/"))
                self.stacks.append((column.offset, now, after))
            else:
                self.copies.append((column.offset, place(column.name, column), self.rows))
                self.copies.append((column.offset, place("next/" + column.name, column), self.ends))
        for column in table.layout.rest:
            self.copies.append((column.offset, place(column.name, column), self.rows))
        arrays["reward"], arrays["discount"] = self.reward, self.discount
        self.tensors: Tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self.key_tensor, self.prob_tensor = torch.from_numpy(self.keys), torch.from_numpy(self.probs)


class Table(Store):
    """The table behind a replay channel; see ``TableOptions`` for what it does.

    A batch is valid until the next ``sample`` of the same size (``spec.batches`` of them: until as many follow), so two
    threads that sample must use different sizes or copy.
    """

    def __init__(self, spec: TableOptions, unroll: Spec, writers: int, seed: int):
        super().__init__(spec, "rows", unroll, writers, seed)
        self.spec = spec
        self._r = _rows.Rows(*(self._arrays[f"rows/{name}"] for name in _rows.Rows._fields))
        self._s = _rows.Streams(*(self._arrays[f"streams/{name}"] for name in _rows.Streams._fields))
        self._u = _rows.Unroll(*(self._arrays[f"scratch/{name}"] for name in _rows.Unroll._fields))
        self._row_of, self._final_of = self._arrays["scratch/row_of"], self._arrays["scratch/final_of"]
        self._new_rows, self._new_deltas = self._arrays["scratch/new_rows"], self._arrays["scratch/new_deltas"]
        self._victims = self._arrays["scratch/victims"]
        if spec.evict == "proportional":
            self._evictor = Proportional(self._own("evictor"), self._order, self._counters, self._rng, spec.alpha_evict)
            self._prioritised = True
        self._since_evict = 0
        self._buffers: dict[int, deque[_Buffers]] = {}

    # ------------------------------------------------------------------------------------ in
    def add(self, unroll: Arrays, writer: int = 0, generation: int = 0) -> int:
        """Append ``T`` steps (at most those of the spec) to the streams of a writer; how many items they completed.
        A writer of another generation than before starts new streams."""
        layout, spec = self.layout, self.spec
        steps = self._check(unroll, writer)
        with self._lock:
            n = steps * layout.envs
            u = self._take(unroll, self._u, n, spec.initial == "given")
            begin = writer * layout.envs
            if self._generation[writer] != generation:
                _rows.close_streams(self._r, self._s, begin, begin + layout.envs, self._counters)
                self._generation[writer] = generation
            need = n
            if layout.same_step:
                need += int(np.count_nonzero((u[1] | u[2]) & u[3]))
            while (short := need - int(self._counters[FREE])) > 0:
                self._remove(min(short, int(self._counters[SIZE])))
            row_of, final_of = self._row_of[:n], self._final_of[:n]
            count = _rows.ingest(
                self._r,
                self._s,
                _rows.Unroll(*u),
                self._counters,
                begin,
                layout.envs,
                steps,
                spec.n_step,
                spec.gamma,
                spec.stack,
                layout.same_step,
                row_of,
                final_of,
                self._new_rows,
                self._new_deltas,
            )
            for column in layout.obs + layout.rest:
                copies.scatter(self._data, column.offset, as_bytes(unroll[column.name], n, column.nbytes), row_of)
            if layout.same_step and need > n:
                for column in layout.obs:
                    final = unroll[f"final/{column.name}"]
                    copies.scatter(self._data, column.offset, as_bytes(final, n, column.nbytes), final_of)
            if count:
                self._insert(count)
            self._count()
            return int(count)

    def _insert(self, count: int) -> None:
        self._set(self._new_rows[:count], self._new_deltas[:count], self.spec.initial == "given")
        self._since_evict += count
        if self._since_evict >= self.spec.evict_every:
            self.evict()

    def evict(self) -> int:
        """Remove the items above the capacity, at once; how many they were."""
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

    # ----------------------------------------------------------------------------------- out
    def sample(self, n: int) -> Batch:
        """``n`` items, and their keys and probabilities; the memory is reused by the next batch of that size."""
        with self._lock:
            if not self.size:
                raise ShoalError("A replay table was sampled before it held an item.")
            if n not in self._buffers:
                self._buffers[n] = deque(_Buffers(self, n) for _ in range(self.spec.batches))
            b = self._buffers[n][0]
            self._buffers[n].rotate(-1)
            self.sampler.draw(b.rows, b.probs)
            r = self._r
            copies.pick(r.key, r.end, r.reward, r.discount, b.rows, b.keys, b.ends, b.reward, b.discount)
            zero = self.spec.pad == "zero"
            for offset, now, after in b.stacks:
                copies.gather_stacks(self._data, offset, r.previous, r.depth, zero, b.rows, b.ends, now, after)
            for offset, out, chosen in b.copies:
                copies.gather(self._data, offset, chosen, out)
            self._counters[SAMPLED] += n
            self.sampled += n
            return Batch(b.tensors, b.key_tensor, b.prob_tensor, self.size)

    # --------------------------------------------------------------------------------- state
    def state(self) -> State:
        return {**super().state(), "since_evict": self._since_evict}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._since_evict = int(state["since_evict"])

    def check_valid(self) -> tuple[bool, str]:
        """Slow self-check: rows, references, free list, items, streams and samplers agree."""
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
