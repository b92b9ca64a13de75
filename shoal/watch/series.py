"""A growing file of JSON rows as columns of numbers: read on from where it was read to, thinned to a bounded size."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from shoal.watch.folder import Folder

MOST_ROWS = 2_000  # rows of a table that is full are halved to so many
MOST_COLUMNS = 1_000
MOST_LINE = 1 << 20  # bytes of a line; longer ones are damaged
MOST_ENDLESS = 10  # of these lines in a sample
LARGE = 4 << 20  # bytes of a file of which, but for its end, only lines at even distances are read
SAMPLES = 1_000  # such lines
END = 128 << 10  # bytes of the end, in which the newest value of most metrics is found
RATE_ROWS = 20  # whose mean a rate is: 10 s of most runs
SEAM = 64  # bytes before the place of reading that must still be what they were


class Columns:
    """Rows of named numbers, at most ``2 * MOST_ROWS``: where there are more, every second one is left out, and of what
    follows every 2nd, 4th, ... is kept by its number. The newest row is always there.

    carries: a number of a row that is left out stands in the next one that is kept, where that has none of that name:
    so no metric that few rows have, such as a score of an evaluation, goes missing."""

    def __init__(self, carries: bool = False) -> None:
        self._carries, self._held = carries, dict[str, float]()
        self.names = {"row": 0}  # name -> column; this one has room whatever names a file brings
        self._data = np.full((2 * MOST_ROWS, 16), np.nan)
        self.used, self.stride = 0, 1
        self.last: dict[str, float] = {}  # the newest value of each name
        self.last_row: dict[str, float] = {}  # the newest row, whole
        self.known_at: dict[str, float] = {}  # the row of the newest value of each name

    def add(self, row: dict[str, float]) -> None:
        """Take the next row, which has a number ``row``."""
        number = row["row"]
        if not row.keys() <= self.names.keys():
            row = self._with_room(row)
        self.last_row = row
        self.last.update(row)
        self.known_at.update(dict.fromkeys(row, number))
        if number % self.stride == 0 and self.used == len(self._data):
            self._halve()
        if self._carries:
            row = self._held | row
        if number % self.stride:
            self._held = row
            return
        self._held = {}
        for name, value in row.items():
            self._data[self.used, self.names[name]] = value
        self.used += 1

    def _with_room(self, row: dict[str, float]) -> dict[str, float]:
        """Add columns for the new names of a row, and return the row without those for which there is no room."""
        for name in row:
            if name not in self.names and len(self.names) < MOST_COLUMNS:
                self.names[name] = len(self.names)
                if len(self.names) > self._data.shape[1]:
                    self._data = np.hstack([self._data, np.full_like(self._data, np.nan)])
        return {name: value for name, value in row.items() if name in self.names}

    def _halve(self) -> None:
        """Leave out every second row."""
        self.stride *= 2
        kept, left = self._data[: self.used : 2].copy(), self._data[1 : self.used : 2]
        if self._carries:
            kept[1:] = np.where(np.isnan(kept[1:]), left[: len(kept) - 1], kept[1:])
            last = {name: float(left[-1, at]) for name, at in self.names.items()}
            self._held = {name: value for name, value in last.items() if math.isfinite(value)} | self._held
        self.used = len(kept)
        self._data[: self.used] = kept
        self._data[self.used :] = np.nan

    def column(self, name: str) -> np.ndarray:
        """Return a column [rows], the newest row at its end; nan where it was not known."""
        at = self.names.get(name)
        kept: np.ndarray = np.full(self.used, np.nan) if at is None else self._data[: self.used, at].copy()
        newest = self._data[self.used - 1, self.names["row"]] if self.used else -1.0
        if self.last_row and newest != self.last_row["row"]:
            return np.append(kept, (self._held if self._carries else self.last_row).get(name, math.nan))
        return kept

    def rate(self, name: str) -> float:
        """Return the mean of a rate over the newest ``RATE_ROWS`` rows, as steps are reported in bursts; 0.0 without
        any."""
        values = self.column(name)[-RATE_ROWS:]
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else 0.0

    def interpolated(self, name: str, by: str, at: np.ndarray | float) -> np.ndarray:
        """Return a column where column ``by`` has the values ``at``, along straight lines between the rows that know
        both; nan where none does."""
        known_at, known = self.column(by), self.column(name)
        both = np.isfinite(known_at) & np.isfinite(known)
        found: np.ndarray = np.interp(at, known_at[both], known[both]) if both.any() else np.full(np.shape(at), np.nan)
        return found


class Table:
    """A file of a run with a row of JSON on each line. ``refresh`` reads what is new; a file that was replaced or cut,
    as by a run that was resumed, is read anew. damaged: lines that hold no row. carries: as of ``Columns``."""

    def __init__(self, folder: Folder, name: str, carries: bool = False) -> None:
        self._folder, self.name, self._carries = folder, name, carries
        self._begin()

    def _begin(self) -> None:
        self.columns, self.damaged = Columns(self._carries), 0
        self._inode, self._at, self._seam = -1, 0, b""

    def refresh(self) -> Columns:
        """Return all that is known by now."""
        try:
            with self._folder.open(self.name) as file:
                self._read(file)
        except FileNotFoundError:
            self._begin()
        return self.columns

    def _read(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._at or not self._same(file):
            self._begin()
            self._inode = status.st_ino
            if status.st_size > LARGE:
                self._sample(file, status.st_size)
        file.seek(self._at)
        end = self._at
        for line in _lines(file):
            end += len(line)
            self._take(line)
        self._at = end
        file.seek(max(0, end - SEAM))
        self._seam = file.read(min(SEAM, end))

    def _same(self, file: BinaryIO) -> bool:
        file.seek(max(0, self._at - SEAM))
        return file.read(min(SEAM, self._at)) == self._seam

    def _sample(self, file: BinaryIO, size: int) -> None:
        """Read lines at even distances, up to the last ``END`` bytes, which are then read whole. No byte is read twice,
        however long the lines are."""
        end, read, endless = size - END, 0, 0
        for position in np.linspace(0, end, SAMPLES, endpoint=False).astype(int):
            if position < read:
                continue
            file.seek(int(position))
            if position:
                endless += len(file.readline(MOST_LINE)) == MOST_LINE
            if endless > MOST_ENDLESS:
                break  # it is no table, such as a file with holes, and the rest would take a minute
            if line := file.readline(MOST_LINE):
                self._take(line)
            read = file.tell()
        file.seek(max(end, read))
        if read <= end:
            file.readline(MOST_LINE)
        self._at = file.tell()
        if len(numbers := self.columns.column("row")) > 1:
            distance = max(1.0, (numbers[-1] - numbers[0]) / len(numbers))
            self.columns.stride = 1 << round(math.log2(distance))

    def _take(self, line: bytes) -> None:
        row = row_of(line)
        if row is None:
            self.damaged += 1
        elif row["row"] > self.columns.last_row.get("row", -math.inf):
            self.columns.add(row)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The whole lines from here on: the last one may be half written yet."""
    while (line := file.readline(MOST_LINE)) and (line.endswith(b"\n") or len(line) == MOST_LINE):
        yield line


def row_of(line: bytes) -> dict[str, float] | None:
    """The numbers of a row by their names; None where the line holds none."""
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or type(data.get("row")) is not int or not 0 <= data["row"] < 1 << 53:
        return None
    return {name: float(value) for name, value in data.items() if _finite(value)}


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300
