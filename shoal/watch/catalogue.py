"""The runs below the directories that somebody asked to watch, each under a name that a page may ask for."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.api import UsageError
from shoal.paths import fixed, shown
from shoal.watch.folder import Folder

DEEPEST = 3  # levels of folders below a directory of runs: of populations, studies and several seeds
MOST_RUNS = 2_000
MARKS = ("config.json", "population.json")  # a directory with one of these is a run, a population


class Catalogue:
    """The runs in ``directories``: themselves, or what is below them, as it is now. Links are not followed."""

    def __init__(self, directories: list[Path]) -> None:
        self.directories = [fixed(path) for path in directories]
        for path in self.directories:
            if not path.is_dir():
                raise UsageError(f"no such directory: '{shown(path)}'")
        self._one = len(self.directories) == 1

    @property
    def single(self) -> str | None:
        """The name of the run where one was asked for and that is all; None: there is a list of them."""
        return self.name(self.directories[0]) if self._one and _is_run(self.directories[0]) else None

    def name(self, path: Path) -> str:
        """The name of the run in ``path``: its place below the directory that was asked for."""
        for root in self.directories:
            if path == root:
                return root.name or "/"
            if path.is_relative_to(root):
                below = str(path.relative_to(root))
                return below if self._one else f"{root.name}/{below}"
        return path.name

    def find(self) -> dict[str, Path]:
        """Return name -> directory of every run and population there is, ``MOST_RUNS`` at most."""
        out: dict[str, Path] = {}
        for root in self.directories:
            self._walk(root, DEEPEST, out)
        return out

    def _walk(self, path: Path, deep: int, out: dict[str, Path]) -> None:
        if len(out) >= MOST_RUNS:
            return
        run = _is_run(path)
        if run:
            name, n = self.name(path), 2
            while out.get(name, path) != path:
                name, n = f"{self.name(path)} ({n})", n + 1
            out[name] = path
        if deep and (not run or _is_population(path)):
            for name in Folder(path).folders():
                if not name.startswith("."):
                    self._walk(path / name, deep - 1, out)


def _is_run(path: Path) -> bool:
    return any(os.path.lexists(path / mark) for mark in MARKS)


def _is_population(path: Path) -> bool:
    return os.path.lexists(path / "population.json")
