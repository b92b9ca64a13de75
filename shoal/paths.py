"""Refusals of paths that the user names, before there is anything to write to them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from shoal.errors import UsageError


def working_directory() -> str:
    """Return the working directory. One that was removed is left for the root, where processes can be started from."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        os.chdir("/")
        return "/"


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Return to the working directory at the end: an environment that is made here may leave it for its assets."""
    here = working_directory()
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            os.chdir(here)


def fixed(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` from the root, so that it stays the same place when an environment changes the working
    directory. UsageError for an address."""
    require_local(Path(path))
    return Path(working_directory(), path)


def require_path(path: object, function: str, what: str = "the directory of a run, or a file") -> None:
    """Raise UsageError unless ``path`` is one, or a run, which has one: of ``function``'s first argument, which is
    ``what``."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"{function} expects {what}, found {path!r:.100}")


def shown(path: Path) -> str:
    """Return ``path`` as a person would type it: from the working directory where it lies below."""
    here = Path(working_directory())
    return str(path.relative_to(here) if here.name and path != here and path.is_relative_to(here) else path)


def require_local(path: Path) -> None:
    """Raise UsageError if ``path`` names a place by a scheme (``s3://bucket/run``): Shoal writes to directories. Or if
    no shell has put in its home directory (``~/run``): it would become a directory named ``~``."""
    if path.parts[:1] == ("~",):
        whole = Path(os.path.expanduser(path))
        raise UsageError(f"'{path}' begins with ~, which only a shell replaces: give the whole path, '{whole}'")
    scheme = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]+):", path.parts[0]) if path.parts else None
    if scheme is not None and len(path.parts) > 1:
        raise UsageError(
            f"'{scheme[0]}//{Path(*path.parts[1:])}' is an address, and Shoal writes to directories of this machine: "
            "name one, and copy it afterwards, or mount the storage"
        )


def require_folder(path: Path) -> None:
    """UsageError unless the file ``path`` can be written in a directory that exists. A link there is refused, but for
    those of the system (``/dev/stdout``): in a directory of somebody else it leads to a file of the user's."""
    require_local(path)
    if not path.parent.is_dir():
        raise UsageError(f"no such directory: '{shown(path.parent)}'")
    if path.is_symlink() and path.parent != Path("/dev"):
        raise UsageError(f"'{shown(path)}' is a symbolic link: name the file that it leads to, or remove it")


def require_new(path: Path, why: str = "") -> None:
    """UsageError unless ``path`` is an empty directory or nothing at all. ``why``: ends the sentence."""
    require_local(path)
    if path.is_symlink() and not path.exists():
        raise UsageError(f"'{shown(path)}' is a symbolic link that leads nowhere{why}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"'{shown(path)}' exists and is not empty{why}")
