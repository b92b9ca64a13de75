"""What a run writes as it goes on, by hand: metric files row by row, when a summary and parameters are due, and how
long a log may become."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.metering.aggregator import Snapshot
from shoal.records import logs, metric_files, publication, summary
from shoal.records.evaluation_files import EvaluationFiles
from shoal.records.metric_files import MetricFiles, append, read_curve
from shoal.records.publication import Publication
from shoal.records.report import Report
from shoal.records.summary import Summary


def snapshot(row: int, **given: Any) -> Snapshot:
    zeros = dict.fromkeys(("seconds", "updates", "step_rate", "update_rate", "episodes"), 0)
    fixed = {"row": row, "steps": 10 * row, "episode_return": 0.0, "episode_length": 0.0}
    return Snapshot(**{**zeros, **fixed, **given})


def table(path: Path, name: str) -> list[dict[Any, str]]:
    """The cells that are not empty, by the names of their columns, row by row; first the columns."""
    header, *rows = [line.split(",") for line in (path / f"{name}.csv").read_text().splitlines()]
    return [dict(enumerate(header)), *({c: x for c, x in zip(header, row, strict=True) if x} for row in rows)]


class Clock:
    """In place of ``time`` in a module."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


# ---------------------------------------------------------------------------------- metric files
def written(path: Path, losses: dict[int, float]) -> None:
    """The files of three rows, of which those of ``losses`` have a column more."""
    files = MetricFiles(path)
    for row in (1, 2, 3):
        files.update(snapshot(row, records={"loss": losses[row]} if row in losses else {}))
    files.close()


@pytest.mark.parametrize("row", [1, 2, 3])
def test_a_column_is_kept_as_long_as_a_row_that_is_kept_has_used_it(row: int, tmp_path: Path) -> None:
    """The second row has it: it is the last row that is kept, or lies before that; of the first alone it is gone."""
    written(tmp_path, {2: 0.5})
    MetricFiles(tmp_path, after=row).close()
    columns, *rows = table(tmp_path, "metrics")
    assert [each["row"] for each in rows] == ["1", "2", "3"][:row]
    assert ("loss" in columns.values()) == (row >= 2)
    assert [each.get("loss") for each in rows] == [None, "0.5", None][:row]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == row


def test_a_column_of_later_rows_alone_is_dropped_and_no_row_with_it(tmp_path: Path) -> None:
    for row in (0, 1, 2):
        written(tmp_path, {3: 0.5} if row else {1: 0.5, 2: 0.5, 3: 0.5})
        MetricFiles(tmp_path, after=row).close()
        columns, *rows = table(tmp_path, "metrics")
        assert "loss" not in columns.values()
        assert [each["row"] for each in rows] == ["1", "2"][:row]


def test_a_cell_that_is_empty_is_not_known(tmp_path: Path) -> None:
    written(tmp_path, {2: 0.5})
    assert [row.get("loss") for row in read_curve(tmp_path)] == [None, 0.5, None]
    assert [row["steps"] for row in read_curve(tmp_path)] == [10.0, 20.0, 30.0]


def test_a_metric_with_a_name_of_the_runs_own_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = MetricFiles(tmp_path)
    for row, names in ((1, ("steps", "loss")), (2, ("steps", "memory")), (3, ("memory", "steps"))):
        files.update(snapshot(row, records=dict.fromkeys(names, 7.0)))
    files.close()
    told = [record.getMessage().split("'")[1] for record in caplog.records]
    assert told == ["steps", "memory"]
    assert table(tmp_path, "metrics")[1] == {
        "row": "1", "steps": "10", "updates": "0", "episodes": "0", "record/steps": "7", "loss": "7",
    }  # fmt: skip


class Full:
    """A file on a disk that has room for so many bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room, self.fileno = file, room, file.fileno

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        done: int = self.file.write(data[: self.room])
        self.room -= done
        return done


def test_a_text_that_does_not_fit_on_the_disk_leaves_no_part_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("before\n")
    with open(path, "ab", buffering=0) as file:
        for room in (0, 3, 7):
            with pytest.raises(OSError, match="No space left"):
                append(Full(file, room), "12345678")  # type: ignore[arg-type]
            assert path.read_text() == "before\n"
        append(Full(file, 8), "12345678")  # type: ignore[arg-type]
    assert path.read_text() == "before\n12345678"


def test_a_new_column_that_did_not_fit_on_the_disk_is_added_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files = MetricFiles(tmp_path)
    files.update(snapshot(1))
    with monkeypatch.context() as patch:
        patch.setattr(metric_files, "write_atomic", full)
        with pytest.raises(OSError, match="No space left"):
            files.update(snapshot(2, records={"loss": 0.5}))
    files.update(snapshot(3))
    files.update(snapshot(4, records={"loss": 0.25}))
    files.close()
    rows = [{name: row[name] for name in ("row", "loss") if name in row} for row in table(tmp_path, "metrics")[1:]]
    assert rows == [{"row": "1"}, {"row": "3"}, {"row": "4", "loss": "0.25"}]


# ---------------------------------------------------------------------------- evaluations, the best
def test_of_evaluations_that_are_equally_good_the_later_one_is_the_best(tmp_path: Path) -> None:
    files, best = EvaluationFiles(tmp_path, "params"), []
    for steps, mean in ((10, float("nan")), (20, 1.0), (30, 1.0), (40, 0.5), (50, 1.5), (60, float("nan"))):
        files.add(steps, steps, [mean], {"w": torch.zeros(1)})
        found = tmp_path / "best" / "params.json"
        best.append(json.loads(found.read_text())["steps"] if found.is_file() else None)
    assert best == [None, 20, 30, 30, 50, 50]


# -------------------------------------------------------------------------------- what is due when
def test_a_summary_is_written_every_30_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(), []
    monkeypatch.setattr(summary, "time", clock)
    notes = Summary(tmp_path, "asked for")
    monkeypatch.setattr(notes, "write", lambda state: said.append((clock.now, state)))
    try:
        for clock.now in (1000.0, 1001.0, 1029.0, 1030.0, 1059.0, 1070.0, 1099.0, 1100.0):
            notes.update(snapshot(1))
    finally:
        notes.finish(None)
    assert said == [(1000.0, "running"), (1030.0, "running"), (1070.0, "running"), (1100.0, "running")]


@pytest.mark.parametrize(
    "takes, times",
    # every 10 s; or so seldom that writing takes no more than 1/200 of the time: 0.1 s of 20 s
    [(0.0, [1000.0, 1010.0, 1020.0, 1030.0, 1040.0]), (0.1, [1000.0, 1020.5, 1041.0])],
)
def test_parameters_are_published_seldom_where_it_takes_long(
    takes: float, times: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, done = Clock(), []

    def save(folder: Path, report: Report) -> None:
        done.append(clock.now)
        clock.now += takes

    monkeypatch.setattr(publication, "time", clock)
    monkeypatch.setattr(publication, "save_params", save)
    published, full = Publication(tmp_path), Report("", 0, 0, 0.0, 0.0, 0, {"params": {"w": torch.zeros(1)}})
    for half_seconds in range(2 * 45):
        clock.now = max(clock.now, 1000.0 + half_seconds / 2)
        published.look(lambda: full)
    assert done == times


def test_the_first_parameters_are_looked_for_twice_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = Clock(), []
    monkeypatch.setattr(publication, "time", clock)
    published = Publication(tmp_path)

    def none_yet() -> Report:
        looks.append(clock.now)
        return Report("", 0, 0, 0.0, 0.0, 0)

    for eighths in range(20):
        clock.now = 1000.0 + eighths / 8
        published.look(none_yet)
    assert looks == [1000.0, 1000.5, 1001.0, 1001.5, 1002.0] and not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------- logs
@contextmanager
def role_log(path: Path) -> Iterator[logs.RoleLog]:
    """The log of a replica, which takes standard output and error meanwhile."""
    kept = [os.dup(1), os.dup(2)]
    try:
        yield logs.RoleLog(path, "actor", 3)
    finally:
        for fd, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, fd)
            os.close(copy)


@pytest.mark.parametrize("size", [64, 65, 1000])
def test_of_a_log_beyond_its_limit_the_last_quarter_of_the_limit_is_kept(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LIMIT", 64)
    monkeypatch.setattr(logging, "basicConfig", lambda **given: None)
    text = "".join(str(k % 10) for k in range(size))
    with role_log(tmp_path) as log:
        os.write(1, text.encode())
        log.trim()
        os.write(2, b"|")
    found = (tmp_path / "logs" / "actor-3.log").read_text()
    if size == 64:
        assert found == text + "|"
        return
    note, rest = found.split("\n")
    assert rest == text[-16:] + "|"
    assert note.endswith(f" (what was here before is left out: the log had {size:,} bytes)")


def test_the_log_of_a_run_is_rotated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LIMIT", 100)
    log = logs.RunLog(tmp_path)
    try:
        for number in range(10):  # of some 80 bytes each
            logging.getLogger("shoal.runtime").info("message %d %s", number, "." * 40)
    finally:
        log.close()
    files = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert files.keys() == {"run.log", "run.log.1"}
    assert "message 9" in files["run.log"] and "message 8" in files["run.log.1"]
