"""Writing and reading below one directory and nowhere else: a folder of a run is held open while it is written to, and
what is read is reached name by name, so that a link that somebody puts in its place meanwhile is not followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

# ------------------------------------------------------------------- directories that follow no links
_plain: dict[str, bool] = {}  # directories that were looked at -> whether no link below them is followed


def stay_below(path: Path, plain: bool = True) -> None:
    """From now on, what is read below the directory ``path`` (which may itself be a link) is reached without following
    links, whatever is put there meanwhile. ``plain`` False: its links are followed, as the user says that it is
    theirs. Below a directory that follows none, ``path`` may be no link either."""
    _plain.pop(os.path.abspath(path), None)
    if not plain or follows_links(path):
        _plain[os.path.abspath(path)] = plain


def rules() -> dict[str, bool]:
    """Return what ``stay_below`` was told, for a process that this one starts (``adopt``)."""
    return dict(_plain)


def adopt(rules: Mapping[str, bool]) -> None:
    """Read as the process does that has these ``rules``."""
    _plain.update(rules)


def follows_links(path: Path) -> bool:
    """Return False if links below the directory ``path``, or below the nearest one around it that was looked at, are
    not followed."""
    return near_of(Path(os.path.abspath(path)) / "x") is None


def near_of(path: Path) -> Path | None:
    """The directory above ``path`` below which no link is followed, if there is one."""
    near = next((above for above in path.parents if str(above) in _plain), None)
    return near if near is not None and _plain[str(near)] else None


# ------------------------------------------------------------------------------ writing and reading
_HELD = "/proc/self/fd"  # the folders and files that this process has open, by their descriptors


@contextlib.contextmanager
def held(folder: Path, *below: str, make: bool = False) -> Iterator[Path]:
    """Give ``folder``, or the one that ``below`` names in it, by a path that leads to the same place within the block,
    whatever is renamed meanwhile. What ``folder`` lies in may be a link, unless it lies below a directory that follows
    none (``stay_below``); itself and what is below may not: OSError.
    make: of these, what is not there is made, with mode 0700. A path in an OSError of the block is the plain one."""
    plain, descriptor = folder.joinpath(*below), -1
    there, base, names = "", folder.parent, (folder.name, *below)
    if (near := near_of(whole := Path(os.path.abspath(folder)))) is not None:
        base, names = near, (*whole.relative_to(near).parts, *below)
    try:
        descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for i, name in enumerate(names):
            if make and i >= len(names) - len(below) - 1:
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


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[Path]:
    """Give ``folder`` itself, or, below a directory that follows no links (``stay_below``), as ``held`` does."""
    near = near_of(Path(os.path.abspath(folder)) / "x")
    if near is None:
        yield folder
        return
    with held(near.resolve(), *Path(os.path.abspath(folder)).relative_to(near).parts) as there:
        yield there


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
    with guarded(path.parent) as folder:
        return open(os.open(folder / path.name, flags, 0o666), "ab", buffering=0)


def cut(path: Path, size: int) -> None:
    """Cut a file of a run to ``size`` bytes. OSError for a link, and for what is no file."""
    with guarded(path.parent) as folder:
        descriptor = os.open(folder / path.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
