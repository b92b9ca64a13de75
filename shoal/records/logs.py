"""The log files of a run: ``logs/run.log`` by the supervisor, ``logs/ROLE-INDEX.log`` by each replica."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import sys
import time
from pathlib import Path

from shoal.untrusted import printable

LIMIT = 8 * 2**20  # bytes of a log: of a replica's, only the last quarter is kept beyond it; the run's is rotated once
FORMAT = "%(asctime)s %(levelname)s %(message)s"

root = logging.getLogger("shoal")


class RoleLog:
    """Takes over the standard output and error of this process, so that what C libraries print lands there too.

    A rotating handler of ``logging`` sees only what passes through ``logging``, so the file is trimmed here.
    """

    def __init__(self, run_dir: Path, role: str, index: int) -> None:
        self.path = run_dir / "logs" / f"{role.replace('/', '.')}-{index}.log"
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        logging.basicConfig(stream=sys.stderr, format=FORMAT)

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk costs the log, not the training
            os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())

    def trim(self) -> None:
        """Keep the file below ``LIMIT``: a loop of crashes or a talkative environment must not fill the disk."""
        with contextlib.suppress(OSError):
            size = os.fstat(2).st_size
            if size <= LIMIT:
                return
            with open(self.path, "rb") as file:
                file.seek(size - LIMIT // 4)
                tail = file.read()
            os.ftruncate(2, 0)
            self.note(f"(what was here before is left out: the log had {size:,} bytes)")
            os.write(2, tail)


class RunLog:
    """While open, messages of Shoal go to ``logs/run.log`` (older ones: ``run.log.1``), warnings also to stderr."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / "logs" / "run.log"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = _File(path, maxBytes=LIMIT, backupCount=1, encoding="utf-8", delay=True)
        self._file.setFormatter(logging.Formatter(FORMAT))
        self._terminal = _Terminal()
        self._level = root.level
        root.setLevel(logging.INFO)
        for handler in (self._file, self._terminal):
            root.addHandler(handler)

    def close(self) -> None:
        for handler in (self._file, self._terminal):
            root.removeHandler(handler)
        root.setLevel(self._level)
        with contextlib.suppress(OSError):
            self._file.close()


class _File(logging.handlers.RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk costs the log, not the training; the metric files report it."""


class _Terminal(logging.Handler):
    """Shows warnings; the exception that ends the run reports errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            print(f"shoal: {printable(record.getMessage())}", file=sys.stderr)
