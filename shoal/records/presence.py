"""Detection of a run directory that was removed, moved or replaced."""

from __future__ import annotations

from pathlib import Path

from shoal.api import ShoalError


class DirectoryGone(ShoalError):
    """Raised if the directory of a run was removed, moved or replaced while it was going on, so that nothing can be
    saved."""


class Presence:
    """The identity of the directory ``path`` when this object was made."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._identity = self._look()

    def require(self) -> None:
        """Raise DirectoryGone unless the same directory is still there. Other errors are ignored, because a network
        disk may be unavailable for a while."""
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
        """Return True if the same directory is still there, so that its contents may be removed."""
        try:
            return self._look() == self._identity
        except OSError:
            return False

    def _look(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_dev, status.st_ino
