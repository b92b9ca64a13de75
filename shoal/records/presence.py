"""Whether a directory that is written to is still the one that it was."""

from __future__ import annotations

from pathlib import Path

from shoal.api import ShoalError


class DirectoryGone(ShoalError):
    """The directory of a run was removed, moved or replaced while it went on: nothing that it learns can be kept."""


class Presence:
    """The directory ``path`` as it is now."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._identity = self._look()

    def require(self) -> None:
        """Raise DirectoryGone unless the same directory is still there. What cannot be told now is not held to be gone:
        a network's disk may be away for a while."""
        try:
            found = self._look()
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError:
            return
        if found != self._identity:
            raise DirectoryGone(
                f"the directory '{self.path}' of the run is {'gone' if found is None else 'another one now'}: it was "
                "removed, moved or replaced, nothing more can be saved there, and so the run ends"
            )

    def holds(self) -> bool:
        """Return whether the same directory is still there, so that what is in it may be removed."""
        try:
            return self._look() == self._identity
        except OSError:
            return False

    def _look(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_dev, status.st_ino
