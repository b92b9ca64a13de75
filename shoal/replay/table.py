"""Table: a replay of n-step transitions that stores every step of every stream once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from shoal.api import Arrays, Batch, ShoalError, Spec, Tensors, WiringError
from shoal.replay import copies, rows as _rows
from shoal.replay.layout import Column
from shoal.replay.options import TableOptions
from shoal.replay.rows import ALLOCATED, EVICTED, FREE, INSERTED, SAMPLED, SIZE
from shoal.replay.samplers import Greedy, Proportional, Rank, Sampler, Uniform, live_rows


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


class Table:
    """The table behind a replay channel; see ``TableOptions`` for what it does.

    Any thread may call any method at any time: a lock inside makes each call atomic, and the interpreter lock is
    released meanwhile. A batch is valid until the next ``sample`` of the same size (``spec.batches`` of them: until
    as many follow), so two threads that sample must use different sizes or copy.
    """

    def __init__(self, spec: TableOptions, unroll: Spec, writers: int, seed: int):
        self.spec, self.writers, self.layout = spec, writers, spec.layout(unroll)
        self.fields = dict(unroll)
        self._lock = threading.RLock()
        self._arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.arrays(unroll, writers).items()}
        self._data = self._arrays["rows/data"]
        self._r = _rows.Rows(*(self._arrays[f"rows/{name}"] for name in _rows.Rows._fields))
        self._s = _rows.Streams(*(self._arrays[f"streams/{name}"] for name in _rows.Streams._fields))
        self._u = _rows.Unroll(*(self._arrays[f"scratch/{name}"] for name in _rows.Unroll._fields))
        self._counters, self._largest, rng = (self._arrays[name] for name in ("counters", "scalars", "rng"))
        self._generation = self._arrays["streams/generation"]
        self._row_of, self._final_of = self._arrays["scratch/row_of"], self._arrays["scratch/final_of"]
        self._new_rows, self._new_deltas = self._arrays["scratch/new_rows"], self._arrays["scratch/new_deltas"]
        self._victims = self._arrays["scratch/victims"]
        self._r.key[:] = -1
        self._r.free[:] = np.arange(len(self._r.free))
        self._counters[FREE] = len(self._r.free)
        self._largest[0] = 1.0
        self._generation[:] = -1
        rng[:] = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        own = {name.partition("/")[2]: a for name, a in self._arrays.items() if name.startswith("sampler/")}
        common = (self._r.order, self._counters, rng)
        self.sampler: Sampler
        if spec.sampler == "uniform":
            self.sampler = Uniform(*common)
        else:
            kinds: dict[str, Callable[..., Sampler]] = {"proportional": Proportional, "rank": Rank, "greedy": Greedy}
            self.sampler = kinds[spec.sampler](own, *common, spec.alpha)
        self._evictor: Proportional | None = None
        if spec.evict == "proportional":
            own = {name.partition("/")[2]: a for name, a in self._arrays.items() if name.startswith("evictor/")}
            self._evictor = Proportional(own, *common, spec.alpha_evict)
        self._prioritised = spec.sampler != "uniform" or self._evictor is not None
        self._since_evict = 0
        self._buffers: dict[int, deque[_Buffers]] = {}
        self._few = np.empty(0, np.int32), np.empty(0, np.float32)  # of ``reprioritise``
        self.inserted = self.sampled = self.size = 0

    def stacked(self, column: Column) -> bool:
        return self.spec.stack > 1 and len(column.shape) == 3 and column.shape[0] == 1

    @property
    def evicted(self) -> int:
        """Items removed, ever."""
        return int(self._counters[EVICTED])

    # ------------------------------------------------------------------------------------ in
    def add(self, unroll: Arrays, writer: int = 0, generation: int = 0) -> int:
        """Append ``T`` steps (at most those of the spec) to the streams of a writer; how many items they completed.
        A writer of another generation than before starts new streams."""
        layout, spec = self.layout, self.spec
        steps = self._check(unroll, writer)
        with self._lock:
            n = steps * layout.envs
            u = [array[:n] for array in self._u]
            for name, target in zip(_rows.Unroll._fields, u, strict=True):
                source = {"final_q": "final/q_max"}.get(name, name)
                if name == "final_q" and not layout.final_q:
                    source = "q_max"
                if source in unroll and (spec.initial == "given" or not source.endswith(("q_max", "q_taken"))):
                    target[:] = unroll[source].reshape(n)
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
                copies.scatter(self._data, column.offset, _bytes(unroll[column.name], n, column), row_of)
            if layout.same_step and need > n:
                for column in layout.obs:
                    final = unroll[f"final/{column.name}"]
                    copies.scatter(self._data, column.offset, _bytes(final, n, column), final_of)
            if count:
                self._insert(count)
            self._count()
            return int(count)

    def _check(self, unroll: Arrays, writer: int) -> int:
        if not 0 <= writer < self.writers:
            raise WiringError(f"Replay table got an unroll of writer {writer}, it was built for {self.writers}.")
        steps = len(unroll["reward"])
        for name, f in self.fields.items():
            shape = (steps, *f.shape[1:])
            if name not in unroll or unroll[name].shape != shape or steps > self.layout.steps:
                found = unroll[name].shape if name in unroll else "nothing"
                raise WiringError(f"Replay table expected {name!r} of shape {f.shape}, writer {writer} sent {found}.")
            if unroll[name].dtype != f.dtype:
                raise WiringError(f"Replay table expected {name!r} as {f.dtype}, got {unroll[name].dtype}.")
        return steps

    def _insert(self, count: int) -> None:
        new, values = self._new_rows[:count], self._new_deltas[:count]
        if self._prioritised:
            if self.spec.initial == "given":
                values += self.spec.eps
                self._largest[0] = max(self._largest[0], values.max())
            else:
                values[:] = self._largest[0]
            self._r.priority[new] = values
            self.sampler.insert(new, values)
            if self._evictor is not None:
                self._evictor.insert(new, values)
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

    def _count(self) -> None:
        self.inserted, self.sampled = int(self._counters[INSERTED]), int(self._counters[SAMPLED])
        self.size = int(self._counters[SIZE])

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

    def reprioritise(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of items to ``|priority| + eps``. The last of a duplicate wins; keys of items that are
        gone, and priorities that are not finite, are ignored."""
        if not self._prioritised:
            return
        keys = np.ascontiguousarray(keys, np.int64)
        deltas = np.ascontiguousarray(priorities, np.float32)
        if keys.shape != deltas.shape or keys.ndim != 1:
            raise ShoalError(f"A replay table needs one priority per key, got {keys.shape} and {deltas.shape}.")
        with self._lock:
            if len(keys) > len(self._few[0]):
                self._few = np.empty(len(keys), np.int32), np.empty(len(keys), np.float32)
            out, values = self._few
            r = self._r
            count = _rows.resolve(r.key, r.priority, keys, deltas, self.spec.eps, self._largest, out, values)
            if count:
                self.sampler.update(out[:count], values[:count])
                if self._evictor is not None:
                    self._evictor.update(out[:count], values[:count])

    # --------------------------------------------------------------------------------- state
    def state(self) -> dict[str, Any]:
        """Everything a restored table needs to go on identically: arrays (views, to be written before the next call)
        and numbers. Rows never used are left out."""
        with self._lock:
            used = min(int(self._counters[ALLOCATED]), len(self._data))
            out: dict[str, Any] = {n: a for n, a in self._arrays.items() if not n.startswith("scratch/")}
            out["rows/data"] = self._data[:used]
            out["since_evict"] = self._since_evict
            return out

    def restore(self, state: dict[str, Any]) -> None:
        with self._lock:
            kept = {n: a for n, a in self._arrays.items() if not n.startswith("scratch/")}
            for name, array in kept.items():
                found = np.asarray(state[name])
                wanted = (min(len(found), len(array)), *array.shape[1:]) if name == "rows/data" else array.shape
                if found.shape != wanted or found.dtype != array.dtype:
                    raise ShoalError(f"Replay state {name!r} has shape {found.shape}, the table needs {array.shape}.")
            for name, array in kept.items():
                array[: len(state[name])] = state[name]
            self._since_evict = int(state["since_evict"])
            self._count()

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
            for sampler in (self.sampler, self._evictor):
                ok, why = sampler.check_valid() if sampler is not None else (True, "")
                if not ok:
                    return False, why
            return True, ""


def _bytes(array: np.ndarray, n: int, column: Column) -> np.ndarray:
    """``n`` steps as bytes [n, column.nbytes]."""
    flat = np.ascontiguousarray(array).reshape(n, -1)
    return flat.view(np.uint8)
