"""SequenceTable: a replay of overlapping sequences that stores every step of every stream once."""

from __future__ import annotations

import numpy as np
import torch

from shoal.api import Arrays, Field, Spec
from shoal.replay import copies, rows as _steps, sequence_arrays as _arrays, sequence_rows as _rows
from shoal.replay.layout import sampled_shape
from shoal.replay.samplers import live_rows
from shoal.replay.sequence_arrays import FREE, SIZE, SLOT_HEAD, SLOTS, STARTS
from shoal.replay.sequence_options import PROBES, STATE, SequenceOptions
from shoal.replay.store import BatchMemory, Store, as_bytes


class _SequenceBatch(BatchMemory):
    """Memory of a batch of sequences. chosen: the table row of each of their steps, [L, B]."""

    def __init__(self, table: SequenceTable, n: int) -> None:
        super().__init__(n)
        self.table, length = table, table.spec.steps
        self.chosen = np.empty((length, n), np.int32)
        self.valid, self.first, self.terminated = (np.empty((length, n), np.bool_) for _ in range(3))
        self.reward = np.empty((length, n), np.float32)
        arrays: Arrays = {}
        self.stacks: list[tuple[int, np.ndarray]] = []  # (offset, bytes)
        self.copies: list[tuple[int, np.ndarray]] = []
        self.states: list[tuple[int, np.ndarray]] = []
        for column in table.layout.obs + table.layout.rest:
            stacked = column in table.layout.obs and table.stacked(column)
            shape = sampled_shape(column, table.spec.stack) if stacked else column.shape
            arrays[column.name] = array = np.empty((length, n, *shape), column.dtype)
            found = array.reshape(-1).view(np.uint8).reshape(length * n, -1)
            if stacked:
                self.stacks.append((column.offset, found.reshape(length * n, table.spec.stack, column.nbytes)))
            else:
                self.copies.append((column.offset, found))
        arrays |= {name: getattr(self, name) for name in ("valid", "first", "terminated", "reward")}
        for offset, name, f in table.states:
            arrays[name] = array = np.zeros((n, *f.shape), f.dtype)
            self.states.append((offset, array.reshape(-1).view(np.uint8).reshape(n, f.nbytes)))
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def fill(self) -> None:
        table, r, i = self.table, self.table._r, self.table._i
        _rows.unfold(
            r, i, self.slots, table.spec.burn_in, self.keys, self.chosen, self.valid, self.first, self.terminated,
            self.reward,
        )  # fmt: skip
        chosen = self.chosen.reshape(-1)
        for offset, out in self.stacks:
            copies.gather_stack(table._data, offset, r.previous, r.depth, table.spec.pad == "zero", chosen, out)
        for offset, out in self.copies:
            copies.gather(table._data, offset, chosen, out)
        for offset, out in self.states:
            copies.gather(i.states, offset, self.slots, out)


class SequenceTable(Store):
    """The table behind a replay channel of sequences; see ``SequenceOptions``."""

    def __init__(self, spec: SequenceOptions, unroll: Spec, writers: int, seed: int):
        super().__init__(spec, "items", unroll, writers, seed)
        self.spec = spec
        self._r = _arrays.Rows(*(self._arrays[f"rows/{name}"] for name in _arrays.Rows._fields))
        self._i = _arrays.Items(*(self._arrays[f"items/{name}"] for name in _arrays.Items._fields))
        self._s = _arrays.Streams(*(self._arrays[f"streams/{name}"] for name in _arrays.Streams._fields))
        self._i.free[:] = np.arange(len(self._i.free))
        self._counters[SLOTS] = len(self._i.free)
        self._cut = _arrays.Cut(
            spec.length, spec.stride, spec.burn_in, spec.n_step, float(spec.gamma), float(spec.eta),
            -1.0 if spec.rescale is None else float(spec.rescale), spec.stack, self.layout.same_step,
        )  # fmt: skip
        # (offset in a slot's states, name in a batch, field of one sequence)
        self.states: list[tuple[int, str, Field]] = []
        offset = 0
        for part in ("", *(PROBES if spec.probes else ())):
            for name, f in spec.states(unroll).items():
                one = Field(f.shape[2:], f.dtype)
                self.states.append((offset, part + name.removeprefix(STATE) if part else name, one))
                offset += one.nbytes
        self._slots_of = [self._arrays[f"scratch/{name}_of"] for name in ("begin", "first", "last")]
        self._new, self._new_priorities = self._arrays["scratch/new"], self._arrays["scratch/new_priorities"]

    def _close(self, begin: int, end: int) -> None:
        _rows.close_streams(self._r, self._i, self._s, begin, end, self._counters)

    def _ingest(self, fields: _steps.Unroll, begin: int, steps: int) -> int:
        n = len(fields.reward)
        begin_of, first_of, last_of = (of[:n] for of in self._slots_of)
        return _rows.ingest(
            self._r, self._i, self._s, fields, self._counters, begin, self.layout.envs, steps, self._cut,
            self._row_of[:n], self._final_of[:n], begin_of, first_of, last_of, self._arrays["scratch/window"],
            self._new, self._new_priorities,
        )  # fmt: skip

    def _copy_in(self, unroll: Arrays, n: int, finals: bool) -> None:
        super()._copy_in(unroll, n, finals)
        sources = list(self.spec.states(self.fields))
        for i, (offset, _, f) in enumerate(self.states):
            source = as_bytes(unroll[sources[i % len(sources)]], n, f.nbytes)
            copies.scatter(self._i.states, offset, source, self._slots_of[i // len(sources)][:n])

    def _insert(self, count: int) -> None:
        self._insert_into_samplers(self._new[:count], self._new_priorities[:count])
        self._remove(int(self._counters[SIZE]) - self.spec.capacity)

    def _remove(self, count: int) -> None:
        if count <= 0:
            return
        victims = self._arrays["scratch/victims"][:count]
        _steps.oldest(self._order, self._counters, victims)
        self.sampler.remove(victims)
        _rows.remove(self._r, self._i, victims, self._counters)

    def _holders(self, rows: int) -> int:
        # the largest number of rows that one sequence may hold alone
        return -(-rows // (self.spec.steps + self.spec.stack))

    def _new_batch(self, n: int) -> BatchMemory:
        return _SequenceBatch(self, n)

    # --------------------------------------------------------------------------------- state
    def check_valid(self) -> tuple[bool, str]:
        """Check slowly that rows, references, free lists, sequences, streams and samplers agree. Return (True, "") or
        (False, reason)."""
        with self._lock:
            r, i, s, spec = self._r, self._i, self._s, self.spec
            live = live_rows(i.order, self._counters)
            if len(np.unique(live)) != len(live) or not np.array_equal(np.sort(live), np.flatnonzero(i.key >= 0)):
                return False, "sequences: the slots with keys are not the live items"
            if (i.key[live] % len(i.key) != live).any() or (np.diff(i.key[live]) <= 0).any():
                return False, "sequences: a key does not name its slot, or a later one is not larger"
            if not np.array_equal((i.position[live] - self._counters[0]) % len(i.order), np.arange(len(live))):
                return False, "sequences: an item is not where it is said to be"
            if ((i.length[live] < 1) | (i.length[live] > spec.length) | (i.prefix[live] > spec.burn_in)).any():
                return False, "sequences: an item is longer than a sequence"
            if ((i.prefix[live] < spec.burn_in) & (i.flags[live] & STARTS == 0)).any():
                return False, "sequences: an item lacks steps to burn in, and no episode begins there"
            refs = np.zeros(len(r.refs), np.int64)
            for slot in live.tolist():
                row = int(i.end[slot])
                for _ in range(int(i.prefix[slot]) + int(i.length[slot])):
                    refs[row] += 1
                    row = int(r.previous[row])
                for _ in range(int(r.depth[row]) + 1):
                    refs[row] += 1
                    row = int(r.previous[row])
            width, places = s.hold.shape[1], s.open.shape[1]
            opened: list[int] = []
            for j in range(len(s.held)):
                np.add.at(refs, s.hold[j, (s.pushed[j] - 1 - np.arange(s.held[j])) % width], 1)
                opened += s.open[j, np.arange(s.done[j], s.begun[j]) % places].tolist()
            if not np.array_equal(refs, r.refs):
                return False, "sequences: the references of a row are miscounted"
            free = r.free[(self._counters[2] + np.arange(self._counters[FREE])) % len(r.free)]
            if not np.array_equal(np.sort(free), np.flatnonzero(refs == 0)):
                return False, "sequences: the free rows are not the rows without references"
            free = i.free[(self._counters[SLOT_HEAD] + np.arange(self._counters[SLOTS])) % len(i.free)]
            if not np.array_equal(np.sort([*free, *live, *opened]), np.arange(len(i.free))):
                return False, "sequences: a slot is neither free, open nor an item, or more than one of them"
            if self.inserted != self.size + self.evicted:
                return False, "sequences: items were lost"
            return self._samplers_valid()
