"""The lock of a run directory: only one process at a time runs in it, and launches are numbered."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import UsageError
from shoal.held import guarded
from shoal.untrusted import counter, parse_json

NAME = "run.lock"


def is_held(descriptor: int) -> bool:
    """Return True if a process of this machine holds the lock on an open file. If the system lists its locks, the list
    is read. Trying the lock would hold it for a moment, in which a run could not start."""
    inode = f":{os.fstat(descriptor).st_ino} "
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            return any("FLOCK" in line and inode in line for line in locks)
    except OSError:
        return not _is_free(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def is_locked(run_dir: Path) -> bool:
    """Return True if a process of this machine runs in ``run_dir`` now."""
    with _opened(run_dir) as descriptor:
        return descriptor is not None and is_held(descriptor)


def require_unlocked(run_dir: Path) -> None:
    """Raise UsageError that names the process if one runs in ``run_dir``."""
    with _opened(run_dir) as descriptor:
        if descriptor is not None and is_held(descriptor):
            raise _going_on(run_dir, descriptor)


@contextlib.contextmanager
def _opened(run_dir: Path) -> Iterator[int | None]:
    """Yield the descriptor of the lock file, opened for reading, or None if there is no such file."""
    try:
        descriptor = os.open(run_dir / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _going_on(run_dir: Path, descriptor: int) -> UsageError:
    return UsageError(f"the run in '{run_dir}' is still going on (process {_facts(descriptor).get('pid', 'unknown')})")


def _facts(descriptor: int) -> dict[str, int]:
    with contextlib.suppress(ValueError, AttributeError):
        found = parse_json(os.pread(descriptor, 4096, 0).decode())
        return {name: counter(n) for name, n in found.items()}
    return {}


class RunLock:
    """A lock that is held for as long as this process lives; the kernel releases it however the process ends.

    ``launch``: 0 for a new run, then one more each time it is resumed. The number is written to disk before anything
    starts, so that no two launches of a run share it (replicas derive their seeds from it).
    """

    def __init__(self, run_dir: Path) -> None:
        with guarded(run_dir) as there:
            self._descriptor = os.open(there / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            error = _going_on(run_dir, self._descriptor)
            os.close(self._descriptor)
            raise error from None
        self.launch = _facts(self._descriptor).get("launch", -1) + 1
        self._write()

    def at_least(self, launch: int) -> None:
        """Raise the launch number to ``launch``, which a checkpoint stores, in case the lock file was lost."""
        if launch > self.launch:
            self.launch = launch
            self._write()

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self) -> None:
        text = json.dumps({"pid": os.getpid(), "launch": self.launch}).encode().ljust(64) + b"\n"
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))  # another user may have written to it
        os.fsync(self._descriptor)
