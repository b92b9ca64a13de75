"""The page's limits on both of their sides: connections, messages of a log, ranges, tokens, rows that are left out."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from noted import noted

from shoal.api import UsageError
from shoal.program.picture import RolePicture
from shoal.watch import page, series, server
from shoal.watch.folder import Folder
from shoal.watch.series import Columns, Table, row_of


# --------------------------------------------------------------------------------- connections, log
def test_connections_leave_descriptors_for_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = pytest.importorskip("shoal.watch.connection", reason="needs the extra watch", exc_type=ImportError)
    for allowed, most in ((1_000_000, 256), (320, 256), (319, 255), (65, 1), (10, 1)):
        monkeypatch.setattr(connection.resource, "getrlimit", lambda which, allowed=allowed: (allowed, allowed))
        assert connection.most_connections() == most


def test_a_message_is_shown_a_minute_after_it_was_last_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it came meanwhile; what was held back is counted once."""
    connection = pytest.importorskip("shoal.watch.connection", reason="needs the extra watch", exc_type=ImportError)
    now, sparse = [1_000.0], connection.Sparse()
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    shown: list[tuple[float, str]] = []

    def say(text: str) -> None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, text, (), None)
        if sparse.filter(record):
            shown.append((now[0] - 1_000.0, record.getMessage()))

    for _ in range(130):
        say("bad")
        now[0] += 1.0
    more = " ({} more like it since the last line)".format
    assert shown == [(0.0, "bad"), (60.0, "bad" + more(59)), (120.0, "bad" + more(59))]
    for number in range(connection.MOST_MESSAGES - 1):
        say(f"new {number}")
    assert len(sparse._seen) == connection.MOST_MESSAGES
    say("one more")
    assert len(sparse._seen) == 1


# -------------------------------------------------------------------------------------------- requests
@pytest.mark.parametrize(
    "wanted, first, last",
    [("", 0, 99), ("bytes=0-", 0, 99), ("bytes=10-19", 10, 19), ("bytes=99-", 99, 99), ("bytes=100-", 0, 99),
     ("bytes=10-5", 10, 10), ("bytes=10-500", 10, 99), ("bytes=-5", 0, 99), ("lines=1-2", 0, 99)],
)  # fmt: skip
def test_a_range_of_a_film_is_within_it(wanted: str, first: int, last: int) -> None:
    assert server._range(wanted, 100) == (first, last)


def test_so_many_bytes_of_a_film_are_sent_at_once() -> None:
    most = server.CHUNK
    assert server._range("", most) == (0, most - 1) and server._range("", most + 1) == (0, most - 1)
    assert server._range("bytes=7-", 2 * most) == (7, most + 6)


@pytest.mark.parametrize("given, smooth", [("0.5", 0.5), ("1", 0.999), ("-1", 0.0), ("nope", 0.0)])
def test_what_is_asked_for_of_a_curve(given: str, smooth: float) -> None:
    assert server._smooth({"smooth": given}) == smooth and server._smooth({}) == 0.0
    assert [server._axis({"x": x}) for x in ("seconds", "steps", "x")] == ["seconds", "steps", "steps"]


@pytest.mark.parametrize("length, good", [(15, False), (16, True), (17, True)])
def test_a_token_has_sixteen_characters(monkeypatch: pytest.MonkeyPatch, length: int, good: bool) -> None:
    monkeypatch.setenv(server.TOKEN, "a" * length)
    if good:
        assert server.token() == "a" * length
    else:
        with pytest.raises(UsageError, match="expects 16 or more"):
            server.token()


# ----------------------------------------------------------------------------------------------- tables
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of at most eight rows."""
    monkeypatch.setattr(series, "MOST_ROWS", 4)


@pytest.mark.parametrize("carries", [False, True])
def test_of_rows_that_do_not_fit_every_second_fourth_and_eighth_is_kept(small: None, carries: bool) -> None:
    columns, rows = Columns(carries), []
    for number in range(40):
        columns.add({"row": float(number), **({"score": 10.0 + number} if number % 10 == 3 else {})})
        rows.append(columns.column("row").tolist())
    assert rows[7] == [0, 1, 2, 3, 4, 5, 6, 7] and rows[8] == [0, 2, 4, 6, 8] and rows[9] == [0, 2, 4, 6, 8, 9]
    assert rows[16] == [0, 4, 8, 12, 16] and rows[39] == [0, 8, 16, 24, 32, 39]
    score = columns.column("score")
    known = {row: value for row, value in zip(rows[39], score.tolist(), strict=True) if math.isfinite(value)}
    assert known == ({8.0: 13.0, 16.0: 23.0, 24.0: 33.0, 39.0: 43.0} if carries else {})


def test_what_the_last_row_that_is_left_out_knew_is_carried_on(small: None) -> None:
    columns = Columns(carries=True)
    for number in range(8):
        columns.add({"row": float(number), **({"score": 7.0} if number == 7 else {})})
    columns.add({"row": 8.0})
    assert columns.column("row").tolist() == [0, 2, 4, 6, 8] and columns.column("score")[-1] == 7.0


def test_there_are_so_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_COLUMNS", 3)
    columns = Columns()
    for number in range(3):
        columns.add({"a": 1.0, "b": 2.0, "c": 3.0, f"new_{number}": 4.0, "row": float(number)})
    assert list(columns.names) == ["row", "a", "b"] and columns.column("row").tolist() == [0.0, 1.0, 2.0]
    assert columns.last == {"a": 1.0, "b": 2.0, "row": 2.0} and columns.known_at.keys() == columns.last.keys()


@pytest.mark.parametrize(
    "line, row",
    [('{"row": 0, "a": 1.5}', {"row": 0.0, "a": 1.5}), ('{"row": -1}', None), ('{"row": true}', None), ("[1]", None),
     (f'{{"row": {2**53}}}', None), (f'{{"row": {2**53 - 1}, "b": "x", "c": null}}', {"row": 2.0**53 - 1}),
     ("{", None)],
)  # fmt: skip
def test_a_row_is_an_object_with_its_number(line: str, row: dict[str, float] | None) -> None:
    assert row_of(line.encode()) == row


def lines(*rows: int, **more: float) -> str:
    return "".join(json.dumps({"row": row, **more}) + "\n" for row in rows)


def test_a_file_is_read_on_and_anew_where_it_is_another(tmp_path: Path) -> None:
    """One that is shorter, one of another text, one that was put in its place; and no row twice."""
    file, table = tmp_path / "m.jsonl", Table(Folder(tmp_path), "m.jsonl")

    def read() -> list[float]:
        found: np.ndarray = table.refresh().column("row")
        return [float(row) for row in found]

    file.write_text(lines(1, 2, 2, 3) + '{"row": 4')
    assert read() == [1, 2, 3] and table.damaged == 0, "the last line is half written"
    with file.open("a") as more:
        more.write("}\n" + lines(5))
    assert read() == [1, 2, 3, 4, 5]
    file.write_text(lines(1, 2))
    assert read() == [1, 2]
    file.write_text(lines(7, 8, 9))
    assert read() == [7, 8, 9], "as long or longer, and another"
    (tmp_path / "new").write_text(lines(7, 8, 9, a=1.0))
    (tmp_path / "new").replace(file)
    assert read() == [7, 8, 9] and table.columns.last == {"row": 9.0, "a": 1.0}
    file.unlink()
    assert read() == []


def test_a_file_is_read_whole_up_to_its_limit_and_its_end_from_a_line_on(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "log").write_text("one\ntwo\nthree\n")
    assert folder.read("log", most=14) == b"one\ntwo\nthree\n"
    with pytest.raises(ValueError, match="more than 13 bytes"):
        folder.read("log", most=13)
    assert folder.tail("log", most=14) == ("one\ntwo\nthree\n", False)
    assert folder.tail("log", most=13) == ("two\nthree\n", True) and folder.tail("log", most=7) == ("three\n", True)


def test_a_picture_tells_rates_in_bytes_and_names_some_of_those_that_are_down() -> None:
    from shoal.watch import moving

    run = SimpleNamespace(
        performance=SimpleNamespace(columns=SimpleNamespace(last={})),
        metrics=SimpleNamespace(columns=SimpleNamespace(last={})),
    )
    channel = SimpleNamespace(kind="queue", nbytes=2_000_000, name="c", target=None)
    assert moving._figures(channel, run, 0.5, 3.0) == ["50% full", "3.0 items/s, 6.0 MB/s"]  # type: ignore[arg-type]
    assert moving._shares({"a": 0.9, "b": 0.006, "c": 0.004}, 9) == "a 90%, b 1%"
    role = cast(RolePicture, SimpleNamespace(name="actor", title="t", detail="d"))
    for down, more in ((19, ""), (20, ""), (21, " and 1 more")):
        (told,) = (text for what, text in moving._role(role, {}, ["dead"] * down) if what == "not at work")
        assert told.count("dead") == min(down, 20) and told.endswith("dead" + more)


@pytest.mark.parametrize("content", [
    b'{"row": 1, "x": "' + b"a" * 100_000 + b'"}\n',
    b"".join(b'{"row": %d, "x": "' % row + b"a" * 700 + b'"}\n' for row in range(100)),
    b'{"row": 1}\n' * 10_000,
])  # fmt: skip
def test_a_large_file_is_read_once_however_long_its_lines_are(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LARGE", 10_000), ("SAMPLES", 1_000), ("END", 1_000), ("MOST_LINE", 1_000)):
        monkeypatch.setattr(series, name, value)
    parsed: list[int] = []
    monkeypatch.setattr(series, "row_of", lambda line: noted(parsed, len(line), row_of(line)))
    (tmp_path / "metrics.jsonl").write_bytes(content)
    table = Table(Folder(tmp_path), "metrics.jsonl")
    table.refresh()
    assert 0 < sum(parsed) <= len(content)
    parsed.clear()
    table.refresh()
    assert not parsed, "nothing of it is read again"
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"row": 100000, "x": 5}\n')
    assert table.refresh().last["x"] == 5.0 and len(parsed) == 1


def test_a_rate_is_the_mean_of_the_rows_that_know_it() -> None:
    columns = Columns()
    for number, rate in enumerate((2.0, None, 4.0)):
        columns.add({"row": float(number)} | ({} if rate is None else {"rate": rate}))
    assert columns.rate("rate") == 3.0


@pytest.mark.parametrize("value, told", [(1234.5, "1,234"), (999.96, "1000"), (12.0, "12"), (0.123456, "0.1235")])
def test_large_numbers_have_separators_and_small_ones_four_digits(value: float, told: str) -> None:
    assert page.short(value) == told
