"""An item of a queue as one array of bytes, for the way from one arena to another."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shoal import api
from shoal.shm.fields import ALIGN, FieldLayout, up
from shoal.shm.layout import RingLayout
from shoal.shm.ring import Consumer, Producer

HEADER = 3  # int64 in front of the fields: version, generation, sequence; then how many entries are used, or -1


class Parcels:
    """Packs and unpacks the items of one ring layout: a line of numbers, then the fields, as they lie in a slot. Of
    items that are not all used (``Channel.used``), what is."""

    def __init__(self, layout: RingLayout) -> None:
        self._all, self._used = layout.fields, layout.channel.used
        self._whole, self.nbytes = self._fields(-1)  # of an item that is all used

    def pack(self, consumer: Consumer, ring: int) -> np.ndarray:
        """A copy of the oldest item of a ring, as bytes."""
        arrays = consumer.arrays(ring)
        used = int(arrays[self._used][0]) if self._used else -1
        packed, nbytes = self._fields(used) if self._used else (self._whole, self.nbytes)
        flat = np.empty(nbytes, np.uint8)
        flat[: (HEADER + 1) * 8].view(np.int64)[:] = *consumer.header(ring), used
        for f in packed:
            _field(flat, f)[...] = _part(arrays[f.name], f)
        return flat

    def _fields(self, used: int) -> tuple[list[FieldLayout], int]:
        """Return where each field lies in a parcel, of whose entries along its axis, if it has several, so many are
        used; and the size."""
        out, offset = [], ALIGN
        for f in self._all:
            axis = f.axis % max(1, len(f.shape))
            if used >= 0 and f.shape and f.shape[axis] > 1:
                f = replace(f, shape=(*f.shape[:axis], used, *f.shape[axis + 1 :]))
            out.append(replace(f, offset=offset))
            offset += up(_nbytes(f))
        return out, offset

    @staticmethod
    def header(flat: np.ndarray) -> tuple[int, int, int]:
        """(version, generation, sequence) of a packed item."""
        version, generation, sequence = flat[: HEADER * 8].view(np.int64).tolist()
        return version, generation, sequence

    def unpack(self, flat: np.ndarray, producer: Producer) -> None:
        """Write a packed item into the next slot of a ring; blocks while that is full."""
        arrays: api.Arrays = producer.reserve()
        used = int(flat[: (HEADER + 1) * 8].view(np.int64)[HEADER])
        for f in self._fields(used)[0] if self._used else self._whole:
            _part(arrays[f.name], f)[...] = _field(flat, f)
        producer.commit(self.header(flat)[0])


def _part(array: np.ndarray, f: FieldLayout) -> np.ndarray:
    """As much of the array of a slot as a parcel has."""
    return array[tuple(map(slice, f.shape)) or ...]  # also of an array without axes


def _nbytes(f: FieldLayout) -> int:
    return math.prod(f.shape) * np.dtype(f.dtype).itemsize


def _field(flat: np.ndarray, f: FieldLayout) -> np.ndarray:
    return flat[f.offset : f.offset + _nbytes(f)].view(f.dtype).reshape(f.shape)
