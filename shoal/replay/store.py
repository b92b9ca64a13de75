"""Store: the base class of the replay tables: arrays of fixed size, a sampler over their slots, and one lock."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Protocol

import numpy as np
import torch

from shoal.api import Arrays, Batch, ShoalError, Spec, Tensors, WiringError
from shoal.replay import copies, rows as _rows
from shoal.replay.layout import SAMPLERS, Arrays as Shapes, Column, Layout, is_frame
from shoal.replay.rows import ALLOCATED, EVICTED, FREE, INSERTED, SAMPLED, SIZE
from shoal.replay.sampler import Sampler
from shoal.replay.samplers import Proportional
from shoal.types import State, Values


class Options(Protocol):
    """The options that all tables have."""

    @property
    def capacity(self) -> int: ...
    @property
    def sampler(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def stack(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def initial(self) -> str: ...
    def layout(self, unroll: Spec) -> Layout: ...
    def arrays(self, unroll: Spec, writers: int = 1) -> Shapes: ...


class BatchMemory(ABC):
    """Memory of one batch of ``n`` items, which is reused. slots: of the sampled items; tensors: the fields to learn
    from."""

    tensors: Tensors

    def __init__(self, n: int) -> None:
        self.slots, self.keys = np.empty(n, np.int32), np.empty(n, np.int64)
        self.probs = np.empty(n, np.float32)
        self.key_tensor, self.prob_tensor = torch.from_numpy(self.keys), torch.from_numpy(self.probs)

    @abstractmethod
    def fill(self) -> None:
        """Copy ``keys`` and ``tensors`` of the items in ``slots`` out of the table."""


class Store(ABC):
    """Base class of the replay tables; a subclass defines what an item is. ``slots`` is the prefix of the arrays that
    have one element for each possible item (``SLOTS/key``, ``SLOTS/priority``, ``SLOTS/order``). ``rows/data`` holds
    the steps.

    Any thread may call any method at any time: a lock makes each call atomic, and compiled code releases the
    interpreter lock. A batch is valid until the next ``sample`` of the same size (with ``batches`` > 1, until that many
    more), so two threads that sample must use different sizes or copy.
    """

    def __init__(self, options: Options, slots: str, unroll: Spec, writers: int, seed: int):
        self.writers, self.layout, self.fields = writers, options.layout(unroll), dict(unroll)
        self._lock = threading.RLock()
        self._arrays = {n: np.zeros(shape, dtype) for n, (shape, dtype) in options.arrays(unroll, writers).items()}
        self._data, self._generation = self._arrays["rows/data"], self._arrays["streams/generation"]
        self._counters, self._largest, rng = (self._arrays[name] for name in ("counters", "scalars", "rng"))
        self._key, self._priority, self._order = (self._arrays[f"{slots}/{n}"] for n in ("key", "priority", "order"))
        free = self._arrays["rows/free"]
        free[:] = np.arange(len(free))
        self._counters[FREE] = len(free)
        self._key[:] = -1
        self._generation[:] = -1
        self._largest[0] = 1.0
        rng[:] = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        self._rng, self._eps, self._stack = rng, options.eps, options.stack
        self._given, self._batches = options.initial == "given", options.batches
        self._scratch = _rows.Unroll(*(self._arrays[f"scratch/{name}"] for name in _rows.Unroll._fields))
        self._row_of, self._final_of = self._arrays["scratch/row_of"], self._arrays["scratch/final_of"]
        kind = SAMPLERS.find(options.sampler)
        own = self._arrays_of("sampler"), self._order, self._counters, rng, options.alpha
        self.sampler: Sampler = kind.load()(*own)
        self._has_mass = kind.has_mass
        self._evictor: Proportional | None = None
        self._prioritised = options.sampler != "uniform"
        self._changed, self._recent = 0, 0.0  # the number of recent priority updates, and the largest priority of them
        self._updates = np.empty(0, np.int32), np.empty(0, np.float32)  # scratch memory of ``reprioritise``
        self._batch_memory: dict[int, deque[BatchMemory]] = {}  # memory of batches, by their size
        self.inserted = self.sampled = self.size = 0

    def mass(self) -> float:
        """Return the sum of the weights in proportion to which items are drawn. If several tables are sampled as one,
        each gets a share of the draws in proportion to this sum. Raises ShoalError for a sampler without such
        weights."""
        if self._has_mass:
            return float(self.sampler.mass())  # type: ignore[attr-defined]
        raise ShoalError(f"The {type(self.sampler).__name__.lower()} sampler does not draw in proportion to weights.")

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays whose size grows with the capacity."""
        return list(self._arrays.values())

    def _arrays_of(self, part: str) -> dict[str, np.ndarray]:
        """Return the arrays ``part/NAME`` by NAME."""
        return {name.partition("/")[2]: a for name, a in self._arrays.items() if name.startswith(f"{part}/")}

    def stacked(self, column: Column) -> bool:
        """Return True if this observation is a frame that is stacked when sampled."""
        return self._stack > 1 and is_frame(column)

    @property
    def evicted(self) -> int:
        """Number of items that were ever removed."""
        return int(self._counters[EVICTED])

    def _check(self, unroll: Arrays, writer: int) -> int:
        """Return the number of steps of the unroll. Raises WiringError if it does not match the spec."""
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

    def add(self, unroll: Arrays, writer: int = 0, generation: int = 0) -> int:
        """Append ``T`` steps (at most as many as in the spec) to the streams of a writer and return how many items they
        completed. If a writer's generation has changed, its streams start anew."""
        layout = self.layout
        steps = self._check(unroll, writer)
        with self._lock:
            n, begin = steps * layout.envs, writer * layout.envs
            fields = self._take(unroll, n)
            if self._generation[writer] != generation:
                self._close(begin, begin + layout.envs)
                self._generation[writer] = generation
            finals = 0  # observations that ended an episode and belong to no step
            if layout.same_step:
                finals = int(np.count_nonzero((fields.terminated | fields.truncated) & fields.valid))
            while (short := n + finals - int(self._counters[FREE])) > 0:
                self._remove(min(self._holders(short), int(self._counters[SIZE])))
            count = int(self._ingest(fields, begin, steps))
            self._copy_in(unroll, n, finals > 0)
            self._insert(count)
            self._count()
            return count

    def _take(self, unroll: Arrays, n: int) -> _rows.Unroll:
        """Copy the per-step fields of ``n`` steps to scratch memory; the actor's values only if it sends priorities."""
        parts = [array[:n] for array in self._scratch]
        for name, target in zip(_rows.Unroll._fields, parts, strict=True):
            source = {"final_q": "final/q_max" if self.layout.final_q else "q_max"}.get(name, name)
            if source in unroll and (self._given or not source.endswith(("q_max", "q_taken"))):
                target[:] = unroll[source].reshape(n)
        return _rows.Unroll(*parts)

    def _copy_in(self, unroll: Arrays, n: int, finals: bool) -> None:
        """Copy observations, and other fields of items, to the rows that ``_ingest`` has chosen."""
        for column in self.layout.obs + self.layout.rest:
            source = as_bytes(unroll[column.name], n, column.nbytes)
            copies.scatter(self._data, column.offset, source, self._row_of[:n])
        for column in self.layout.obs if finals else ():
            source = as_bytes(unroll[f"final/{column.name}"], n, column.nbytes)
            copies.scatter(self._data, column.offset, source, self._final_of[:n])

    def _insert_into_samplers(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Insert new items into the samplers, with the actor's priorities or with the largest recent one."""
        if not self._prioritised or not len(slots):
            return
        if self._given:
            values += self._eps
            top = float(values.max())
            self._largest[0] = max(self._largest[0], top)
            self._record_changes(len(values), top)
        else:
            values[:] = self._largest[0]
        self._priority[slots] = values
        self.sampler.insert(slots, values)
        if self._evictor is not None:
            self._evictor.insert(slots, values)

    def _record_changes(self, count: int, top: float) -> None:
        """Record that ``count`` priorities have changed, to at most ``top``, and update the largest recent priority.

        It is the largest of the last changes, at least as many as there are slots and at most twice as many. Older
        priorities are forgotten, so that a large error from early training does not set the priority of new items for
        ever. The largest priority of all live items would not fall either, because items that were never sampled keep
        their initial one.
        """
        self._changed += count
        self._recent = max(self._recent, top)
        if self._changed >= len(self._key):
            self._largest[0] = self._recent
            self._changed, self._recent = 0, 0.0

    def _count(self) -> None:
        self.inserted, self.sampled = int(self._counters[INSERTED]), int(self._counters[SAMPLED])
        self.size = int(self._counters[SIZE])

    def sample(self, n: int) -> Batch:
        """Draw ``n`` items with their keys and probabilities. The batch's memory is reused by a later batch of that
        size. Raises ShoalError if the table is empty."""
        with self._lock:
            if not self.size:
                raise ShoalError("A replay table was sampled before it held an item.")
            if n not in self._batch_memory:
                self._batch_memory[n] = deque(self._new_batch(n) for _ in range(self._batches))
            drawn = self._batch_memory[n][0]
            self._batch_memory[n].rotate(-1)
            self.sampler.draw(drawn.slots, drawn.probs)
            drawn.fill()
            self._counters[SAMPLED] += n
            self.sampled += n
            return Batch(drawn.tensors, drawn.key_tensor, drawn.prob_tensor, self.size)

    def reprioritise(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of items to ``|priority| + eps``. The last of several values for a key counts. Keys of
        removed items and priorities that are not finite are ignored. Raises ShoalError if shapes differ."""
        if not self._prioritised:
            return
        keys = np.ascontiguousarray(keys, np.int64)
        deltas = np.ascontiguousarray(priorities, np.float32)
        if keys.shape != deltas.shape or keys.ndim != 1:
            raise ShoalError(f"A replay table needs one priority per key, got {keys.shape} and {deltas.shape}.")
        with self._lock:
            if len(keys) > len(self._updates[0]):
                self._updates = np.empty(len(keys), np.int32), np.empty(len(keys), np.float32)
            out, values = self._updates
            count, top = _rows.resolve(self._key, self._priority, keys, deltas, self._eps, self._largest, out, values)
            if count:
                self._record_changes(count, top)
                self.sampler.update(out[:count], values[:count])
                if self._evictor is not None:
                    self._evictor.update(out[:count], values[:count])

    def rehearse(self) -> None:
        """Call every compiled function once, with a stream of zeros, on a small table that is then thrown away. Tables
        of the same kind then find their functions compiled."""
        unroll = {name: np.zeros(f.shape, f.dtype) for name, f in self.fields.items()}
        unroll["valid"][:] = True
        for generation in (0, 1):
            for ends in (True, False):  # an episode, and the row of its final observation
                unroll["truncated"][-1], unroll["valid"][0] = ends, ends or self.layout.same_step
                self.add(unroll, 0, generation)
        if not self.size:
            return
        batch = self.sample(1)
        assert batch.keys is not None
        self.reprioritise(batch.keys.numpy(), np.ones(1, np.float32))
        self._remove(1)
        self.sampler.rehearse()

    @abstractmethod
    def _close(self, begin: int, end: int) -> None:
        """Drop the open windows of streams ``begin`` to ``end``."""

    @abstractmethod
    def _ingest(self, fields: _rows.Unroll, begin: int, steps: int) -> int:
        """Link an unroll into its streams, the first of which is ``begin``, make the items that it completes, and
        return their number."""

    @abstractmethod
    def _insert(self, count: int) -> None:
        """Insert the new items into the samplers and evict those above the capacity."""

    @abstractmethod
    def _remove(self, count: int) -> None:
        """Evict ``count`` items."""

    @abstractmethod
    def _holders(self, rows: int) -> int:
        """Return how many items hold at least ``rows`` rows. As many may be evicted at once when rows are short."""

    @abstractmethod
    def _new_batch(self, n: int) -> BatchMemory:
        """Return memory for a batch of ``n`` items."""

    def state(self) -> State:
        """Return everything that a restored table needs to continue identically: numbers and views of arrays, which
        must be saved before the next call. Rows that were never used are left out."""
        with self._lock:
            used = min(int(self._counters[ALLOCATED]), len(self._data))
            out: Values = {n: a for n, a in self._arrays.items() if not n.startswith("scratch/")}
            out["rows/data"] = self._data[:used]
            return out | {"changed": self._changed, "recent": self._recent}

    def restore(self, state: State) -> None:
        """Continue from ``state()``. Raises ShoalError if the saved table had another size."""
        with self._lock:
            kept = {n: a for n, a in self._arrays.items() if not n.startswith("scratch/")}
            for name, array in kept.items():
                found = np.asarray(state[name])
                wanted = (min(len(found), len(array)), *array.shape[1:]) if name == "rows/data" else array.shape
                if found.shape != wanted or found.dtype != array.dtype:
                    raise ShoalError(f"Replay state {name!r} has shape {found.shape}, the table needs {array.shape}.")
            for name, array in kept.items():
                array[: len(state[name])] = state[name]
            self._changed, self._recent = int(state.get("changed", 0)), float(state.get("recent", 0.0))
            self._count()

    def _samplers_valid(self) -> tuple[bool, str]:
        for sampler in (self.sampler, self._evictor):
            ok, why = sampler.check_valid() if sampler is not None else (True, "")
            if not ok:
                return False, why
        return True, ""


def as_bytes(array: np.ndarray, n: int, width: int) -> np.ndarray:
    """Return ``n`` steps as bytes [n, width]."""
    return np.ascontiguousarray(array).reshape(n, -1).view(np.uint8).reshape(n, width)
