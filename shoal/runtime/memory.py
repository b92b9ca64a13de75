"""Measure available and used memory, of the machine and of control groups."""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import psutil

from shoal.api import UsageError


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
    """Memory of this process and its children, read at most every ``EVERY`` seconds, and in at most ``SHARE`` of the
    time: the kernel walks every page of every process."""

    EVERY, SHARE = 5.0, 0.005

    def __init__(self) -> None:
        self._due, self._bytes = -math.inf, 0

    def __call__(self) -> int:
        began = time.monotonic()
        if began >= self._due:
            self._bytes, now = tree_bytes(), time.monotonic()
            self._due = now + max(self.EVERY, (now - began) / self.SHARE)
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


def give_back(array: np.ndarray) -> None:
    """Return the whole pages of an array in private memory to the kernel; they read as zeros afterwards."""
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (array.ctypes.data + array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0 and hasattr(mmap, "MADV_DONTNEED"):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _size(n: int) -> str:
    return f"{n / 2**30:,.2f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def check_fits(*needs: Mapping[str, int], free: int | None = None) -> None:
    """UsageError unless what a program needs (name -> bytes, of one name in several mappings together) fits into
    memory."""
    sizes: dict[str, int] = {}
    for name, nbytes in (item for need in needs for item in need.items()):
        sizes[name] = sizes.get(name, 0) + nbytes
    total, free = sum(sizes.values()), available() if free is None else free
    if total > free:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{name} {_size(n)}" for name, n in largest)
        raise UsageError(
            f"This program needs {_size(total)} of memory for its channels, replays and processes ({parts}), "
            f"but {_size(free)} is available: make the network or the replay smaller, or lower envs, unroll, batch, "
            f"the capacity of the largest channel, or the number of actors."
        )
