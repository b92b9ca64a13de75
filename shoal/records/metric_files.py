"""The metric files of a run, written and read: ``metrics``, ``performance`` and ``episodes``.

``metrics.*`` and ``episodes.csv`` depend on the training alone, so two serial runs with the same seed write the same
bytes. Values that depend on a clock are in ``performance.*``. Rows are numbered, and equal numbers mean the same moment
in all files.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import logging
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from shoal.api import UsageError
from shoal.held import cut, open_to_append
from shoal.metering.aggregator import Snapshot
from shoal.metering.glossary import NAMES
from shoal.paths import require_path, shown
from shoal.records.atomic_write import write_atomic
from shoal.records.damage import reading
from shoal.records.live_file import LiveFile
from shoal.types import Values
from shoal.untrusted import MAX_COUNTER, MAX_LINE, bounded_lines, open_bytes, open_text

TRAINING = ("row", "steps", "updates", "episodes", "episode_return", "episode_length")
PERFORMANCE = ("row", "steps", "seconds", "steps_per_second", "updates_per_second", "memory", "restarts")
EPISODES = ("row", "steps", "return", "length")
TAIL = 1 << 16  # bytes at the end of a file in which the newest row is searched
# names of the run's own metrics, which roles must not use
RESERVED_NAMES = frozenset({*TRAINING, *PERFORMANCE, "bytes_per_second"})
NOTHING: Mapping[str, Any] = {}

log = logging.getLogger("shoal.runtime")


class MetricFiles:
    """Appends snapshots to the metric files. after: continue the existing files behind the row of this number and drop
    later rows."""

    def __init__(self, directory: Path, after: int | None = None) -> None:
        self._tables: list[_Table] = []
        self._live = LiveFile(directory)
        try:
            for name, columns in (("metrics", TRAINING), ("performance", PERFORMANCE), ("episodes", EPISODES)):
                self._tables.append(_Table(directory, name, columns, after, jsonl=name != "episodes"))
        except BaseException:
            self.close()
            raise
        self._training, self._performance, self._episodes = self._tables
        self._told: set[str] = set()

    def update(self, snapshot: Snapshot) -> None:
        for name in sorted(RESERVED_NAMES & snapshot.records.keys() - self._told):
            log.warning("the metric '%s' that a role records is the run's own: written as 'record/%s'", name, name)
            self._told.add(name)
        seen = {name: dict(sorted(tally.items())) for name, tally in snapshot.histograms.items()}
        nested = {f"{name}_histogram": tally for name, tally in seen.items()}
        self._training.write([training_row(snapshot)], nested)
        self._performance.write([performance_row(snapshot)])
        at = {"row": snapshot.row, "steps": snapshot.steps}
        self._episodes.write([{**at, "return": ret, "length": length} for ret, length in snapshot.new_episodes])
        self._live.update(snapshot)

    def close(self) -> None:
        for table in self._tables:
            table.close()


def training_row(snapshot: Snapshot) -> Values:
    """Return the metrics that depend on training alone, as one flat row; unknown values are left out."""
    row: Values = {
        "row": snapshot.row,
        "steps": snapshot.steps,
        "updates": snapshot.updates,
        "episodes": snapshot.episodes,
    }
    if snapshot.episodes:
        row |= {"episode_return": snapshot.episode_return, "episode_length": snapshot.episode_length}
    taken = {*PERFORMANCE, *NAMES, *row, *snapshot.records}
    row |= {f"info/{name}" if name in taken else name: value for name, value in snapshot.infos.items()}
    return row | {
        f"record/{name}" if name in RESERVED_NAMES else name: value for name, value in snapshot.records.items()
    }


def performance_row(snapshot: Snapshot) -> Values:
    """Return the metrics that depend on clock and machine, as one flat row."""
    row: Values = {
        "row": snapshot.row,
        "steps": snapshot.steps,
        "seconds": round(snapshot.seconds, 3),
        "steps_per_second": round(snapshot.step_rate, 3),
        "updates_per_second": round(snapshot.update_rate, 3),
        "restarts": snapshot.restarts,
    }
    if snapshot.byte_rate is not None:
        row["bytes_per_second"] = round(snapshot.byte_rate)
    if snapshot.memory:
        row["memory"] = snapshot.memory
    row |= {f"fill/{name}": round(share, 4) for name, share in snapshot.fill.items()}
    row |= {
        f"time/{role}/{phase}": round(share, 4)
        for role, phases in snapshot.shares.items()
        for phase, share in phases.items()
    }
    return row


def read_curve(run: str | Path) -> list[dict[str, float]]:
    """Return the rows of a run's metric files, training and performance joined. Unknown values are missing from a row.

    ``steps``, ``seconds`` and ``episode_return`` (once an episode has ended) make a learning curve.
    """
    require_path(run, "shoal.read_curve")
    run = Path(run)
    performance = {row["row"]: row for row in _read(run / "performance.csv")}
    return [{**performance.get(row["row"], {}), **row} for row in _read(run / "metrics.csv")]


def newest_steps(run: Path) -> int:
    """Return the steps in the newest complete row of a run's directory without reading earlier rows, or 0 if there is
    none."""
    try:
        with open_bytes(run / "metrics.csv") as file:
            names = file.readline().decode().strip().split(",")
            file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - TAIL))
            rows = file.read().rpartition(b"\n")[0].splitlines()
        return int(float(rows[-1].split(b",")[names.index("steps")])) if rows else 0
    except (OSError, ValueError, IndexError):  # not there yet, or its columns are being rewritten
        return 0


def _read(path: Path) -> list[dict[str, float]]:
    if not path.is_file():
        raise UsageError(f"'{shown(path.parent)}' holds no metrics: there is no {path.name}")
    with reading(path), open_text(path) as file:
        rows = [
            {name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(bounded_lines(file))
        ]
        for row in rows:
            for name in ("steps", "seconds"):
                if not 0 <= row.get(name, 0) <= MAX_COUNTER:
                    raise ValueError(f"'{name}' is {row[name]:g}")
        return [row for row in rows if row["row"] >= 0]


class _Table:
    """NAME.csv, and the same rows in NAME.jsonl. A column is added when its name first appears. Rows that do not fit on
    the disk raise OSError and are removed completely."""

    def __init__(
        self, directory: Path, name: str, columns: tuple[str, ...], after: int | None, jsonl: bool = True
    ) -> None:
        self._path = directory / f"{name}.csv"
        self._lines = directory / f"{name}.jsonl" if jsonl else None
        if after is None:
            self._columns = list(columns)
            self._rewrite([])
            if self._lines is not None:
                write_atomic(self._lines, b"")
        else:
            self._cut(columns, after)
        self._csv = open_to_append(self._path)
        self._jsonl = None if self._lines is None else open_to_append(self._lines)

    def _cut(self, columns: tuple[str, ...], after: int) -> None:
        """Drop the rows behind number ``after``, and columns that no remaining row uses. Raises ShoalError if the files
        are missing or damaged. Only the last remaining row is parsed, because a member of a population is resumed for
        every slice."""
        with reading(self._path):
            with _mapped(self._path) as data:
                first = data.find(b"\n", 0, MAX_LINE) + 1
                last, end = _last(data, first, after, lambda line: int(line.partition(b",")[0]))
                whole = _begin(data, len(data))
                some = io.StringIO((data[:first] + data[last:whole]).decode(), newline="")
            self._columns, *rows = csv.reader(bounded_lines(some))
        used = [{name for name, cell in zip(self._columns, row, strict=False) if cell} for row in rows]
        kept = {*columns}.union(*used[: last < end])
        if self._lines is not None:
            with reading(self._lines), _mapped(self._lines) as lines:
                _, size = _last(lines, 0, after, lambda line: int(json.loads(line)["row"]))
            cut(self._lines, size)
        if kept.issuperset(itertools.chain(*used)):
            cut(self._path, end)
        else:
            self._drop_columns(columns, after)

    def _drop_columns(self, columns: tuple[str, ...], after: int) -> None:
        """Rewrite the CSV up to row ``after``, with ``columns`` and those that are used there."""
        with reading(self._path):
            header, rows = self._rows()
            rows = [row for row in rows if int(row[0]) <= after]
        used = [i for i, c in enumerate(header) if c in columns or any(row[i] for row in rows)]
        self._columns = [header[i] for i in used]
        self._rewrite([[row[i] for i in used] for row in rows])

    def write(self, rows: Sequence[Mapping[str, Any]], nested: Mapping[str, Any] = NOTHING) -> None:
        """Append rows. nested: values that do not fit into a table and are written to the JSON lines only."""
        if not rows:
            return
        new = [name for name in dict.fromkeys(itertools.chain(*rows)) if name not in self._columns]
        if new:
            self._add_columns(new)
        text = io.StringIO()
        csv.writer(text).writerows([_cell(row.get(name)) for name in self._columns] for row in rows)
        append(self._csv, text.getvalue())
        if self._jsonl is not None:
            lines = [json.dumps({k: finite(v) for k, v in row.items()} | dict(nested)) + "\n" for row in rows]
            append(self._jsonl, "".join(lines))

    def close(self) -> None:
        self._csv.close()
        if self._jsonl is not None:
            self._jsonl.close()

    def _add_columns(self, names: list[str]) -> None:
        """Rewrite the CSV with more columns, which are empty in earlier rows."""
        before = self._columns
        _, rows = self._rows()
        self._columns = before + names
        try:
            self._rewrite([row + [""] * len(names) for row in rows])
        except OSError:
            self._columns = before
            raise
        self._csv.close()
        self._csv = open_to_append(self._path)

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the columns and every complete row. A killed run may have left an incomplete last row."""
        with reading(self._path), open_text(self._path) as file:
            header, *rows = list(csv.reader(bounded_lines(file)))
        return header, [row for row in rows if len(row) == len(header)]

    def _rewrite(self, rows: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows([self._columns, *rows])
        write_atomic(self._path, text.getvalue())


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    """Map a file into memory, so that only the parts that are used are read."""
    with open_bytes(path) as file:
        if not os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _last(data: bytes | mmap.mmap, first: int, after: int, number: Callable[[bytes], int]) -> tuple[int, int]:
    """Return where the last complete line with a number of at most ``after`` begins and ends, searching from the end.
    Lines begin at ``first`` and their numbers never decrease. A killed run may have left an incomplete last line."""
    end = _begin(data, len(data))
    while end > first:
        start = _begin(data, end - 1)
        if number(data[start:end]) <= after:
            return start, end
        end = start
    return end, end


def _begin(data: bytes | mmap.mmap, end: int) -> int:
    """Return where the line that ends at ``end`` begins. Raises ValueError if it is longer than ``MAX_LINE``."""
    least = max(0, end - MAX_LINE)
    found = data.rfind(b"\n", least, end)
    if found < 0 < least:
        raise ValueError(f"it has a line of more than {MAX_LINE:,} bytes")
    return found + 1


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a small CSV file, adding a column for each new name. If this raises OSError, the file is
    unchanged."""
    columns, new, text = list(row), list[str](), io.StringIO()
    if path.is_file() and path.stat().st_size:
        with open_text(path) as file:
            reader = csv.DictReader(bounded_lines(file))
            columns = list(reader.fieldnames or ())
            new = [name for name in row if name not in columns]
            before = list(reader) if new else []
    writer = csv.DictWriter(text, columns + new, restval="")
    if new:
        writer.writeheader()
        writer.writerows([*before, row])
        write_atomic(path, text.getvalue())
        return
    with open_to_append(path) as file:
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)
        append(file, text.getvalue())


def append(file: IO[bytes], text: str) -> None:
    """Append the whole text. If this raises OSError, the file is unchanged."""
    data = text.encode()
    size = os.fstat(file.fileno()).st_size
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


def finite(value: Any) -> Any:
    """Return the value with NaN and infinity replaced by None, because JSON lacks them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    return "" if value is None else f"{value:.8g}" if isinstance(value, float) else value
