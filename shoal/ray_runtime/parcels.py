"""An item of a queue as one array of bytes, for the way from one arena to another."""

from __future__ import annotations

import numpy as np

from shoal import api
from shoal.shm.fields import ALIGN, FieldLayout, up
from shoal.shm.layout import RingLayout
from shoal.shm.ring import Consumer, Producer

HEADER = 3  # int64 in front of the fields: version, generation, sequence


class Parcels:
    """Packs and unpacks the items of one ring layout: a line of numbers, then the fields, as they lie in a slot."""

    def __init__(self, layout: RingLayout) -> None:
        self._fields = layout.fields
        last = layout.fields[-1] if layout.fields else None
        self.nbytes = ALIGN if last is None else last.offset + up(_nbytes(last))

    def pack(self, consumer: Consumer, ring: int) -> np.ndarray:
        """A copy of the oldest item of a ring, as bytes."""
        flat = np.empty(self.nbytes, np.uint8)
        flat[: HEADER * 8].view(np.int64)[:] = consumer.header(ring)
        arrays = consumer.arrays(ring)
        for f in self._fields:
            _field(flat, f)[...] = arrays[f.name]
        return flat

    @staticmethod
    def header(flat: np.ndarray) -> tuple[int, int]:
        """(version, generation) of a packed item."""
        version, generation, _ = flat[: HEADER * 8].view(np.int64).tolist()
        return version, generation

    def unpack(self, flat: np.ndarray, producer: Producer) -> None:
        """Write a packed item into the next slot of a ring; blocks while that is full."""
        arrays: api.Arrays = producer.reserve()
        for f in self._fields:
            arrays[f.name][...] = _field(flat, f)
        producer.commit(self.header(flat)[0])


def _nbytes(f: FieldLayout) -> int:
    return int(np.prod(f.shape, dtype=np.int64)) * np.dtype(f.dtype).itemsize


def _field(flat: np.ndarray, f: FieldLayout) -> np.ndarray:
    return flat[f.offset : f.offset + _nbytes(f)].view(f.dtype).reshape(f.shape)
