"""The log files of a run: ``logs/run.log`` of the supervisor, ``logs/ROLE-INDEX.log`` of each replica."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import sys
import time
from io import TextIOWrapper
from pathlib import Path

from shoal.held import held
from shoal.untrusted import printable

FOLDER = "logs"
# bytes of a log. Beyond it, a replica's log keeps only its last quarter and the run's log is rotated once
LIMIT = 8 * 2**20
FORMAT = "%(asctime)s %(levelname)s %(message)s"

root = logging.getLogger("shoal")


class RoleLog:
    """Redirects the standard output and error of this process to a file, so that output of C libraries is logged too.

    A rotating handler of ``logging`` sees only records of ``logging``, so the file is trimmed here.
    """

    def __init__(self, run_dir: Path, role: str, index: int) -> None:
        with held(run_dir / FOLDER, make=True) as folder:
            fd = _opened(folder / f"{role.replace('/', '.')}-{index}.log")
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        logging.basicConfig(stream=sys.stderr, format=FORMAT)

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not stop training
            os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())

    def trim(self) -> None:
        """Keep the file below ``LIMIT``, because a crash loop or a verbose environment must not fill the disk."""
        with contextlib.suppress(OSError):
            size = os.fstat(2).st_size
            if size <= LIMIT:
                return
            tail = os.pread(2, LIMIT // 4, size - LIMIT // 4)
            os.ftruncate(2, 0)
            self.note(f"(what was here before is left out: the log had {size:,} bytes)")
            os.write(2, tail)


class RunLog:
    """While open, writes Shoal's log messages to ``logs/run.log`` (older ones: ``run.log.1``) and warnings also to
    stderr."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / FOLDER / "run.log"
        with held(path.parent, make=True):  # raises OSError now if no log can be written
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


def _opened(path: Path) -> int:
    """Open a log for reading and appending and return its descriptor. Raises OSError for a link."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class _File(logging.handlers.RotatingFileHandler):
    """A rotating file that is opened and renamed relative to its open folder, even if a link replaces the folder's
    path."""

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        with held(path.parent) as folder:
            return open(_opened(folder / path.name), "a", encoding=self.encoding)

    def doRollover(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None  # the next record opens it, as in the base class
        path = Path(self.baseFilename)
        with held(path.parent) as folder:
            os.replace(folder / path.name, folder / f"{path.name}.1")
        self.stream = self._open()

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error, as a full disk must not stop training. The metric files report it."""


class _Terminal(logging.Handler):
    """Prints warnings to stderr. Errors are printed by the exception that ends the run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            print(f"shoal: {printable(record.getMessage())}", file=sys.stderr)
