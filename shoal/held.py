"""Writing and reading below one directory and nowhere else: a folder of a run is held open while it is written to, and
what is read is reached name by name, so that a link that somebody puts in its place meanwhile is not followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_HELD = "/proc/self/fd"  # the folders and files that this process has open, by their descriptors


@contextlib.contextmanager
def held(folder: Path, *below: str, make: bool = False) -> Iterator[Path]:
    """Give ``folder``, or the one that ``below`` names in it, by a path that leads to the same place within the block,
    whatever is renamed meanwhile. What ``folder`` lies in may be a link, itself and what is below may not: OSError.
    make: those that are not there are made, with mode 0700. A path in an OSError of the block is the plain one."""
    plain, descriptor = folder.joinpath(*below), -1
    there = ""
    try:
        descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in (folder.name, *below):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        there = f"{_HELD}/{descriptor}"
        yield Path(there if os.path.exists(there) else plain)  # a system without /proc
    except NotADirectoryError:
        raise OSError(errno.ELOOP, "it is a link, or no folder, and so nothing is written there", str(plain)) from None
    except OSError as error:
        if there and isinstance(error.filename, str) and error.filename.startswith(f"{there}/"):
            error.filename = f"{plain}{error.filename.removeprefix(there)}"
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def open_below(folder: str | Path, *names: str) -> int:
    """Open what ``names`` lead to from ``folder``, for reading; returns its descriptor. ``folder`` itself may be a
    link, what is below may not: OSError (ELOOP, or ENOTDIR for a folder). Nothing waits for
    whoever writes into a pipe."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for i, name in enumerate(names):
        kind = os.O_NONBLOCK if i == len(names) - 1 else os.O_DIRECTORY
        try:
            inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file of a run, which is made if there is none, to write behind its end. OSError for a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o666), "ab", buffering=0)


def cut(path: Path, size: int) -> None:
    """Cut a file of a run to ``size`` bytes. OSError for a link, and for what is no file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
