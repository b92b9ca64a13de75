"""A ring buffer of plain items that are sampled uniformly. New items overwrite the oldest."""

from __future__ import annotations

import threading

import numpy as np
import torch

from shoal.api import Arrays, Batch, ShoalError, Spec
from shoal.types import State


class ItemTable:
    """The table behind a channel of items (``api.Replay``). A sampled batch is a copy, valid for as long as it is
    kept. rows: the items of one message; fields: of the ``capacity`` items that the table holds."""

    def __init__(self, rows: int, capacity: int, fields: Spec, seed: int) -> None:
        self.rows, self.capacity = rows, capacity
        self._arrays: Arrays = {name: np.zeros(f.shape, f.dtype) for name, f in fields.items()}
        self._lock, self._rng = threading.Lock(), np.random.default_rng(seed)
        self.inserted = self.sampled = self.size = 0

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays whose size grows with the capacity."""
        return list(self._arrays.values())

    def mass(self) -> float:
        """Return the number of items, as all of them have weight 1."""
        return float(self.size)

    def add(self, unroll: Arrays, writer: int = 0, generation: int = 0) -> int:
        """Add the items of one message and return their number."""
        with self._lock:
            begin = self.inserted % self.capacity
            first = min(self.rows, self.capacity - begin)  # the number of items that fit before the end of the ring
            for name, kept in self._arrays.items():
                kept[begin : begin + first] = unroll[name][:first]
                kept[: self.rows - first] = unroll[name][first:]
            self.inserted += self.rows
            self.size = min(self.inserted, self.capacity)
            return self.rows

    def sample(self, n: int) -> Batch:
        """Draw ``n`` items uniformly, with replacement. Raises ShoalError if the table is empty."""
        with self._lock:
            if not self.size:
                raise ShoalError("A table of items was sampled before it held one.")
            chosen = self._rng.integers(self.size, size=n)
            self.sampled += n
            items = {name: torch.from_numpy(kept[chosen]) for name, kept in self._arrays.items()}
            return Batch(items)  # no size: importance weights do not apply to plain items

    def reprioritise(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Do nothing, as items have no priorities."""

    def state(self) -> State:
        """Return everything that a restored table needs to continue identically. Items that were never written are left
        out."""
        counts = {"inserted": self.inserted, "sampled": self.sampled}
        kept = {name: array[: self.size] for name, array in self._arrays.items()}
        return {**counts, "items": kept, "rng": self._rng.bit_generator.state}

    def restore(self, state: State) -> None:
        """Continue from ``state()``. Raises ShoalError if the saved table had another size."""
        self.inserted, self.sampled = int(state["inserted"]), int(state["sampled"])
        self.size = min(self.inserted, self.capacity)
        for name, array in self._arrays.items():
            found = np.asarray(state["items"][name])
            if found.shape != (self.size, *array.shape[1:]) or found.dtype != array.dtype:
                raise ShoalError(f"The items {name!r} have shape {found.shape}, the table holds {array.shape}.")
            array[: self.size] = found
        self._rng.bit_generator.state = state["rng"]
