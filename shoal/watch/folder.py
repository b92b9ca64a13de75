"""Reading below one directory and nowhere else: without following links or waiting for pipes, in bounded sizes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from shoal.held import open_below
from shoal.untrusted import excerpt, parse_json

MAX_BYTES = 16 << 20  # of a file that is read whole


class Refused(OSError):
    """A name that leads out of the directory, through a link, or to what is no file."""


class Folder:
    """The directory ``path``, which may itself be a link. What is below it is reached component by component without
    following links, so whoever changes the directory meanwhile cannot make a reader leave it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def open(self, *parts: str) -> Iterator[BinaryIO]:
        """The file at ``parts``. Refused for a link, a pipe, a device or a name that is no plain component."""
        for part in parts:
            if part in ("", ".", "..") or "/" in part or "\0" in part:
                raise Refused(f"{excerpt(part)!r} is no name of a file")
        directory = open_below(self.path, *parts)
        try:
            if not stat.S_ISREG(os.fstat(directory).st_mode):
                raise Refused(f"{excerpt('/'.join(parts))!r} is no file")
            file = os.fdopen(directory, "rb")
            directory = -1
            with file:
                yield file
        finally:
            if directory >= 0:
                os.close(directory)

    def read(self, *parts: str, most: int = MAX_BYTES) -> bytes:
        """Return the content of a file. ValueError where it has more than ``most`` bytes, OSError where there is none
        or it is refused."""
        with self.open(*parts) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ValueError(f"it has more than {most:,} bytes")
        return data

    def tail(self, *parts: str, most: int) -> tuple[str, bool]:
        """Return the last ``most`` bytes of a text file, from the beginning of a line on, and whether there are
        more."""
        with self.open(*parts) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            data = file.read(most)
        cut = size > most
        if cut:
            data = data[data.find(b"\n") + 1 :]
        return data.decode("utf-8", "replace"), cut

    def json(self, *parts: str) -> dict[str, Any]:
        """Return the object in a JSON file. ValueError where it holds none."""
        data = parse_json(self.read(*parts).decode("utf-8"))
        if not isinstance(data, dict):
            raise ValueError(f"expected an object with names, found {type(data).__name__}")
        return data

    def names(self, *parts: str) -> list[str]:
        """Return the names of the plain files in a folder below, sorted; [] where there is no such folder."""
        return sorted(self._entries(parts, directories=False))

    def folders(self, *parts: str) -> list[str]:
        """Return the names of the plain folders in a folder below, sorted; [] where there is no such folder."""
        return sorted(self._entries(parts, directories=True))

    def _entries(self, parts: tuple[str, ...], directories: bool) -> list[str]:
        descriptor = -1
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in parts:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            with os.scandir(descriptor) as entries:
                kind = os.DirEntry.is_dir if directories else os.DirEntry.is_file
                return [entry.name for entry in entries if kind(entry, follow_symlinks=False)]
        except OSError:
            return []
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def modified(self, *parts: str) -> float | None:
        """Return when a file was written last, in seconds since the epoch; None where there is none."""
        found = self._stat(*parts)
        return None if found is None else found.st_mtime

    def version(self, *parts: str) -> tuple[int, int, int] | None:
        """Return what differs when a file was written again: its inode, size and time; None where there is none."""
        found = self._stat(*parts)
        return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)

    def _stat(self, *parts: str) -> os.stat_result | None:
        try:
            with self.open(*parts) as file:
                return os.fstat(file.fileno())
        except OSError:
            return None
