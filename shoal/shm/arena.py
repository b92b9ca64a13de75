"""The shared memory of a program: one anonymous arena that cannot outlive its processes.

It has no name in any file system: children get a file descriptor. However processes die, the kernel
frees it with the last of them; the size of /dev/shm does not matter.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import numpy as np

from shoal.shm.layout import FieldLayout


def _anonymous_file(nbytes: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("shoal", os.MFD_CLOEXEC)
        os.fchmod(fd, 0o600)  # other users could not reach it anyway: it has no path but /proc/PID/fd
    else:
        fd, path = tempfile.mkstemp(prefix="shoal-")
        os.unlink(path)
    os.ftruncate(fd, nbytes)
    return fd


class Arena:
    """``nbytes`` of zeroed shared memory, seen as int64 (``words``), as uint32 and as arrays.

    ``stacks`` is an empty file beside it, to which C code writes where a replica hangs. Pickles only while a
    child process is being started (the descriptors travel beside it).
    """

    def __init__(self, nbytes: int, fd: int | None = None, stacks: int | None = None) -> None:
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._fd = _anonymous_file(self.nbytes) if fd is None else fd
        self.stacks = _anonymous_file(0) if stacks is None else stacks
        self._map = mmap.mmap(self._fd, self.nbytes)
        self.words = memoryview(self._map).cast("q")
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.nbytes, reduction.DupFd(self._fd), reduction.DupFd(self.stacks))

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        out: np.ndarray = np.ndarray(shape, np.dtype(dtype), buffer=self._map, offset=offset)
        return out

    def field(self, start: int, layout: FieldLayout) -> np.ndarray:
        return self.array(start + layout.offset, layout.shape, layout.dtype)

    def close(self) -> None:
        """Give the descriptors back. The memory itself goes when the last view of it does."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self.stacks)
            self._fd = self.stacks = -1


def _rebuild(nbytes: int, handle: Any, stacks: Any) -> Arena:
    return Arena(nbytes, handle.detach(), stacks.detach())
