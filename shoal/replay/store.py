"""Store: what every replay table is made of: arrays of known size, a sampler over its slots, one lock."""

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
    """What the options of all tables have."""

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


class Drawn(ABC):
    """Memory of one batch of ``n`` items, reused. ``slots``: of the items drawn; ``tensors``: what is learned from."""

    tensors: Tensors

    def __init__(self, n: int) -> None:
        self.slots, self.keys = np.empty(n, np.int32), np.empty(n, np.int64)
        self.probs = np.empty(n, np.float32)
        self.key_tensor, self.prob_tensor = torch.from_numpy(self.keys), torch.from_numpy(self.probs)

    @abstractmethod
    def fill(self) -> None:
        """Copy ``keys`` and ``tensors`` of the items in ``slots`` out of the table."""


class Store(ABC):
    """A subclass says what an item is. ``slots`` names the arrays with one element for each place an item may have
    (``SLOTS/key``, ``SLOTS/priority``, ``SLOTS/order``); ``rows/data`` holds the steps.

    Any thread may call any method at any time: a lock inside makes each call atomic, and the interpreter lock is
    released meanwhile. A batch is valid until the next ``sample`` of the same size (``batches`` of them: until as many
    follow), so two threads that sample must use different sizes or copy.
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
        own = self._own("sampler"), self._order, self._counters, rng, options.alpha
        self.sampler: Sampler = kind.load()(*own)
        self._weighed = kind.weighed
        self._evictor: Proportional | None = None
        self._prioritised = options.sampler != "uniform"
        self._changed, self._recent = 0, 0.0  # priorities learned of late, and the largest of them
        self._few = np.empty(0, np.int32), np.empty(0, np.float32)  # of ``reprioritise``
        self._drawn: dict[int, deque[Drawn]] = {}  # memory of batches by their size
        self.inserted = self.sampled = self.size = 0

    def mass(self) -> float:
        """Sum of the weights in proportion to which items are drawn: so many of a table's items are drawn where several
        tables are drawn from as if they were one. ShoalError for a sampler that has no such weights."""
        if self._weighed:
            return float(self.sampler.mass())  # type: ignore[attr-defined]
        raise ShoalError(f"The {type(self.sampler).__name__.lower()} sampler does not draw in proportion to weights.")

    def arrays(self) -> list[np.ndarray]:
        """All memory that grows with the capacity."""
        return list(self._arrays.values())

    def _own(self, part: str) -> dict[str, np.ndarray]:
        """The arrays ``part/NAME`` by their names."""
        return {name.partition("/")[2]: a for name, a in self._arrays.items() if name.startswith(f"{part}/")}

    def stacked(self, column: Column) -> bool:
        """Return whether this observation is a frame of which a stack is shown."""
        return self._stack > 1 and is_frame(column)

    @property
    def evicted(self) -> int:
        """Items removed, ever."""
        return int(self._counters[EVICTED])

    def _check(self, unroll: Arrays, writer: int) -> int:
        """Return how many steps the unroll has. Raises WiringError where it is not one of the spec's."""
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
        """Append ``T`` steps (at most those of the options) to the streams of a writer; how many items they completed.
        A writer of another generation than before starts new streams."""
        layout = self.layout
        steps = self._check(unroll, writer)
        with self._lock:
            n, begin = steps * layout.envs, writer * layout.envs
            fields = self._take(unroll, n)
            if self._generation[writer] != generation:
                self._close(begin, begin + layout.envs)
                self._generation[writer] = generation
            finals = 0  # observations that ended an episode and are not those of a step
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
        """Copy the per-step fields of ``n`` steps to scratch memory; the actor's values only if they are given."""
        parts = [array[:n] for array in self._scratch]
        for name, target in zip(_rows.Unroll._fields, parts, strict=True):
            source = {"final_q": "final/q_max" if self.layout.final_q else "q_max"}.get(name, name)
            if source in unroll and (self._given or not source.endswith(("q_max", "q_taken"))):
                target[:] = unroll[source].reshape(n)
        return _rows.Unroll(*parts)

    def _copy_in(self, unroll: Arrays, n: int, finals: bool) -> None:
        """Copy observations, and whatever else items show, to the rows that ``_ingest`` has chosen."""
        for column in self.layout.obs + self.layout.rest:
            source = as_bytes(unroll[column.name], n, column.nbytes)
            copies.scatter(self._data, column.offset, source, self._row_of[:n])
        for column in self.layout.obs if finals else ():
            source = as_bytes(unroll[f"final/{column.name}"], n, column.nbytes)
            copies.scatter(self._data, column.offset, source, self._final_of[:n])

    def _set(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Tell the samplers of new items and their priorities: given ones, or the largest of late."""
        if not self._prioritised or not len(slots):
            return
        if self._given:
            values += self._eps
            top = float(values.max())
            self._largest[0] = max(self._largest[0], top)
            self._learned(len(values), top)
        else:
            values[:] = self._largest[0]
        self._priority[slots] = values
        self.sampler.insert(slots, values)
        if self._evictor is not None:
            self._evictor.insert(slots, values)

    def _learned(self, count: int, top: float) -> None:
        """``count`` priorities were changed, to ``top`` at most. The largest priority is that of the last changes, at
        least as many as there are slots and at most twice as many: what was learned long ago does not hold for new
        items for ever. Items that were never learned from have it themselves, so the largest of all live items would
        not fall either."""
        self._changed += count
        self._recent = max(self._recent, top)
        if self._changed >= len(self._key):
            self._largest[0] = self._recent
            self._changed, self._recent = 0, 0.0

    def _count(self) -> None:
        self.inserted, self.sampled = int(self._counters[INSERTED]), int(self._counters[SAMPLED])
        self.size = int(self._counters[SIZE])

    def sample(self, n: int) -> Batch:
        """``n`` items, and their keys and probabilities; the memory is reused by a later batch of that size."""
        with self._lock:
            if not self.size:
                raise ShoalError("A replay table was sampled before it held an item.")
            if n not in self._drawn:
                self._drawn[n] = deque(self._memory(n) for _ in range(self._batches))
            drawn = self._drawn[n][0]
            self._drawn[n].rotate(-1)
            self.sampler.draw(drawn.slots, drawn.probs)
            drawn.fill()
            self._counters[SAMPLED] += n
            self.sampled += n
            return Batch(drawn.tensors, drawn.key_tensor, drawn.prob_tensor, self.size)

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
            count, top = _rows.resolve(self._key, self._priority, keys, deltas, self._eps, self._largest, out, values)
            if count:
                self._learned(count, top)
                self.sampler.update(out[:count], values[:count])
                if self._evictor is not None:
                    self._evictor.update(out[:count], values[:count])

    def rehearse(self) -> None:
        """Call every kernel once, with a stream of zeros. For a small table that nobody uses: those of the same kind
        then find their kernels compiled."""
        unroll = {name: np.zeros(f.shape, f.dtype) for name, f in self.fields.items()}
        unroll["valid"][:] = True
        for generation in (0, 1):
            for ends in (True, False):  # an episode, and the row of its last observation
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
        """Forget the open windows of these streams."""

    @abstractmethod
    def _ingest(self, fields: _rows.Unroll, begin: int, steps: int) -> int:
        """Link an unroll into its streams, from number ``begin`` on, and make the items it completes; how many."""

    @abstractmethod
    def _insert(self, count: int) -> None:
        """Tell the samplers of the items that were just made, and remove those above the capacity."""

    @abstractmethod
    def _remove(self, count: int) -> None:
        """Remove so many items."""

    @abstractmethod
    def _holders(self, rows: int) -> int:
        """Return how many items hold so many rows at least: that many may go at once where rows are short."""

    @abstractmethod
    def _memory(self, n: int) -> Drawn:
        """Memory of a batch."""

    def state(self) -> State:
        """Everything a restored table needs to go on identically: arrays (views, to be written before the next call)
        and numbers. Rows never used are left out."""
        with self._lock:
            used = min(int(self._counters[ALLOCATED]), len(self._data))
            out: Values = {n: a for n, a in self._arrays.items() if not n.startswith("scratch/")}
            out["rows/data"] = self._data[:used]
            return out | {"changed": self._changed, "recent": self._recent}

    def restore(self, state: State) -> None:
        """Go on from ``state()``. Raises ShoalError where it is of a table of another size."""
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
    """``n`` steps as bytes [n, width]."""
    return np.ascontiguousarray(array).reshape(n, -1).view(np.uint8).reshape(n, width)
