"""The shared memory of a program: one anonymous arena that cannot outlive its processes.

It has no name in any file system: children get a file descriptor. However processes die, the kernel
frees it with the last of them; the size of /dev/shm does not matter.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from shoal import api
from shoal.runtime.layout import FieldLayout, Plan, needed


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


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable(group: Path) -> int:
    """File cache that a control group counts as used and gives up when asked."""
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(stat.get("inactive_file", 0))


def _groups(own: Path, root: Path) -> Iterator[tuple[Path, str, str]]:
    """This process's control group and those around it, in versions 2 and 1: folder, file of the limit, of the use."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = top / path.strip("/") if ".." not in path else top  # a group outside of this name space
        for folder in (group, *group.parents):
            yield folder, *names
            if folder == top:
                break


def available(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may still use: the machine's free memory or, if lower, what its control groups leave."""
    free = int(psutil.virtual_memory().available)
    for group, limit, used in _groups(own, root):
        most, now = _read_int(group / limit), _read_int(group / used)
        if most is not None and now is not None:
            free = min(free, most - now + _reclaimable(group))
    return max(free, 0)


class _Used:
    """Memory of this process and its children, read at most every ``EVERY`` seconds: the kernel walks every page."""

    EVERY = 5.0

    def __init__(self) -> None:
        self._at, self._bytes = -math.inf, 0

    def __call__(self) -> int:
        if time.monotonic() - self._at >= self.EVERY:
            self._bytes, self._at = tree_bytes(), time.monotonic()
        return self._bytes


def tree_bytes() -> int:
    """Bytes used by this process and its children; shared pages are counted once where the system can (PSS)."""
    total = 0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            info = process.memory_full_info()
        except psutil.Error:
            continue
        total += getattr(info, "pss", 0) or info.rss
    return total


used = _Used()


def _size(n: int) -> str:
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def check_fits(plan: Plan, free: int | None = None) -> None:
    """UsageError unless the channels of a program and their replay tables fit into memory."""
    sizes = needed(plan)
    total, free = sum(sizes.values()), available() if free is None else free
    if total > free:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{name} {_size(n)}" for name, n in largest)
        raise api.UsageError(
            f"This program needs {_size(total)} of memory for its channels and replays ({parts}), "
            f"but {_size(free)} is available: lower the replay size, the capacity of the largest channel, "
            f"or the number of actors."
        )
