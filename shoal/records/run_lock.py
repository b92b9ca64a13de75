"""One process at a time runs in a run directory, and each knows how many did before."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path

from shoal.api import UsageError
from shoal.untrusted import counter, parse_json

NAME = "run.lock"


def is_locked(run_dir: Path) -> bool:
    """Return True if some process runs in ``run_dir`` at this moment."""
    try:
        descriptor = os.open(run_dir / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class RunLock:
    """Held as long as this process lives: the kernel gives it back however the process dies.

    ``launch``: 0 for a new run, then one more each time it is resumed. It is on disk before anything starts, so no two
    launches of a run share a number (replicas make their seeds of it).
    """

    def __init__(self, run_dir: Path) -> None:
        self._descriptor = os.open(run_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = self._read().get("pid", "unknown")
            os.close(self._descriptor)
            raise UsageError(f"the run in '{run_dir}' is still going on (process {pid})") from None
        self.launch = self._read().get("launch", -1) + 1
        self._write()

    def at_least(self, launch: int) -> None:
        """Where the file was lost: the number that a checkpoint knows of."""
        if launch > self.launch:
            self.launch = launch
            self._write()

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> dict[str, int]:
        with contextlib.suppress(ValueError, AttributeError):
            found = parse_json(os.pread(self._descriptor, 4096, 0).decode())
            return {name: counter(n) for name, n in found.items()}
        return {}

    def _write(self) -> None:
        text = json.dumps({"pid": os.getpid(), "launch": self.launch}).encode().ljust(64) + b"\n"
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))  # of what somebody else has put there
        os.fsync(self._descriptor)
