"""SequenceTable: a replay of overlapping sequences that stores every step of every stream once."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from shoal.api import Arrays, Batch, Field, ShoalError, Spec, Tensors
from shoal.replay import copies, rows as _steps, sequence_arrays as _arrays, sequence_rows as _rows
from shoal.replay.samplers import live_rows
from shoal.replay.sequence_arrays import FREE, SAMPLED, SIZE, SLOT_HEAD, SLOTS, STARTS
from shoal.replay.sequence_options import PROBES, STATE, SequenceOptions
from shoal.replay.store import Store, as_bytes


class _Buffers:
    """Memory of the batches of one size, reused by every batch."""

    def __init__(self, table: SequenceTable, n: int):
        length = table.spec.steps
        self.slots, self.chosen = np.empty(n, np.int32), np.empty((length, n), np.int32)
        self.keys, self.probs = np.empty(n, np.int64), np.empty(n, np.float32)
        self.valid, self.first, self.terminated = (np.empty((length, n), np.bool_) for _ in range(3))
        self.reward = np.empty((length, n), np.float32)
        arrays: Arrays = {}
        self.stacks: list[tuple[int, np.ndarray]] = []  # (offset, bytes)
        self.copies: list[tuple[int, np.ndarray]] = []
        self.states: list[tuple[int, np.ndarray]] = []
        for column in table.layout.obs + table.layout.rest:
            stacked = column in table.layout.obs and table.stacked(column)
            shape = (table.spec.stack, *column.shape[1:]) if stacked else column.shape
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
        self.tensors: Tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self.key_tensor, self.prob_tensor = torch.from_numpy(self.keys), torch.from_numpy(self.probs)


class SequenceTable(Store):
    """The table behind a replay channel of sequences; see ``SequenceOptions`` for what it does.

    A batch is valid until the next ``sample`` of the same size (``spec.batches`` of them: until as many follow), so two
    threads that sample must use different sizes or copy.
    """

    def __init__(self, spec: SequenceOptions, unroll: Spec, writers: int, seed: int):
        super().__init__(spec, "items", unroll, writers, seed)
        self.spec = spec
        self._r = _arrays.Rows(*(self._arrays[f"rows/{name}"] for name in _arrays.Rows._fields))
        self._i = _arrays.Items(*(self._arrays[f"items/{name}"] for name in _arrays.Items._fields))
        self._s = _arrays.Streams(*(self._arrays[f"streams/{name}"] for name in _arrays.Streams._fields))
        self._u = _steps.Unroll(*(self._arrays[f"scratch/{name}"] for name in _steps.Unroll._fields))
        self._i.free[:] = np.arange(len(self._i.free))
        self._counters[SLOTS] = len(self._i.free)
        self._cut = _arrays.Cut(
            spec.length, spec.stride, spec.burn_in, spec.n_step, float(spec.gamma), float(spec.eta),
            -1.0 if spec.rescale is None else float(spec.rescale), spec.stack, self.layout.same_step,
        )  # fmt: skip
        self.states: list[tuple[int, str, Field]] = []  # (offset in a slot's states, name in a batch, of one sequence)
        offset = 0
        for part in ("", *(PROBES if spec.probes else ())):
            for name, f in spec.states(unroll).items():
                one = Field(f.shape[2:], f.dtype)
                self.states.append((offset, part + name.removeprefix(STATE) if part else name, one))
                offset += one.nbytes
        self._buffers: dict[int, deque[_Buffers]] = {}

    # ------------------------------------------------------------------------------------ in
    def add(self, unroll: Arrays, writer: int = 0, generation: int = 0) -> int:
        """Append ``T`` steps (at most those of the spec) to the streams of a writer; how many sequences they completed.
        A writer of another generation than before starts new streams."""
        layout, spec, a = self.layout, self.spec, self._arrays
        steps = self._check(unroll, writer)
        with self._lock:
            n = steps * layout.envs
            u = self._take(unroll, self._u, n, spec.initial == "given")
            begin = writer * layout.envs
            if self._generation[writer] != generation:
                _rows.close_streams(self._r, self._i, self._s, begin, begin + layout.envs, self._counters)
                self._generation[writer] = generation
            need = n
            if layout.same_step:
                need += int(np.count_nonzero((u[1] | u[2]) & u[3]))
            while (short := need - int(self._counters[FREE])) > 0:  # a sequence holds at most so many for itself
                self._remove(min(-(-short // (spec.steps + spec.stack)), int(self._counters[SIZE])))
            row_of, final_of, *slots_of = (
                a[f"scratch/{name}_of"][:n] for name in ("row", "final", "begin", "first", "last")
            )
            begin_of, first_of, last_of = slots_of
            new, priorities = a["scratch/new"], a["scratch/new_priorities"]
            count = _rows.ingest(
                self._r, self._i, self._s, _steps.Unroll(*u), self._counters, begin, layout.envs, steps, self._cut,
                row_of, final_of, begin_of, first_of, last_of, a["scratch/window"], new, priorities,
            )  # fmt: skip
            self._store(unroll, n, need > n, row_of, final_of, slots_of)
            if count:
                self._set(new[:count], priorities[:count], spec.initial == "given")
            self._remove(int(self._counters[SIZE]) - spec.capacity)
            self._count()
            return int(count)

    def _store(
        self, unroll: Arrays, n: int, finals: bool, row_of: np.ndarray, final_of: np.ndarray, slots_of: list[np.ndarray]
    ) -> None:
        """Copy steps, final observations and recurrent states to where they belong."""
        for column in self.layout.obs + self.layout.rest:
            copies.scatter(self._data, column.offset, as_bytes(unroll[column.name], n, column.nbytes), row_of)
        for column in self.layout.obs if finals else ():
            source = as_bytes(unroll[f"final/{column.name}"], n, column.nbytes)
            copies.scatter(self._data, column.offset, source, final_of)
        sources = list(self.spec.states(self.fields))
        for i, (offset, _, f) in enumerate(self.states):
            source = as_bytes(unroll[sources[i % len(sources)]], n, f.nbytes)
            copies.scatter(self._i.states, offset, source, slots_of[i // len(sources)])

    def _remove(self, count: int) -> None:
        if count <= 0:
            return
        victims = self._arrays["scratch/victims"][:count]
        _steps.oldest(self._order, self._counters, victims)
        self.sampler.remove(victims)
        _rows.remove(self._r, self._i, victims, self._counters)

    # ----------------------------------------------------------------------------------- out
    def sample(self, n: int) -> Batch:
        """``n`` sequences, and their keys and probabilities; the memory is reused by the next batch of that size."""
        with self._lock:
            if not self.size:
                raise ShoalError("A replay table was sampled before it held an item.")
            b = self._buffer(n)
            self.sampler.draw(b.slots, b.probs)
            self._fill(b)
            self._counters[SAMPLED] += n
            self.sampled += n
            return Batch(b.tensors, b.key_tensor, b.prob_tensor, self.size)

    def _buffer(self, n: int) -> _Buffers:
        if n not in self._buffers:
            self._buffers[n] = deque(_Buffers(self, n) for _ in range(self.spec.batches))
        self._buffers[n].rotate(-1)
        return self._buffers[n][-1]

    def _fill(self, b: _Buffers) -> None:
        """Unfold the sequences in ``b.slots``."""
        r = self._r
        _rows.unfold(r, self._i, b.slots, self.spec.burn_in, b.keys, b.chosen, b.valid, b.first, b.terminated, b.reward)
        chosen = b.chosen.reshape(-1)
        for offset, out in b.stacks:
            copies.gather_stack(self._data, offset, r.previous, r.depth, self.spec.pad == "zero", chosen, out)
        for offset, out in b.copies:
            copies.gather(self._data, offset, chosen, out)
        for offset, out in b.states:
            copies.gather(self._i.states, offset, b.slots, out)

    # --------------------------------------------------------------------------------- state
    def check_valid(self) -> tuple[bool, str]:
        """Slow self-check: rows, references, free lists, open and whole sequences, streams and samplers agree."""
        with self._lock:
            r, i, s, spec = self._r, self._i, self._s, self.spec
            live = live_rows(i.order, self._counters)
            if len(np.unique(live)) != len(live) or not np.array_equal(np.sort(live), np.flatnonzero(i.key >= 0)):
                return False, "sequences: the slots with keys are not the live items"
            if (i.key[live] % len(i.key) != live).any() or (np.diff(i.key[live] // len(i.key)) <= 0).any():
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
