"""The panel of a run in a terminal: what matters stays in sight, where it was, with the last value that is known."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from watch.runs import snapshot, write_run

from shoal.cli.main import main
from shoal.metering.aggregator import Snapshot
from shoal.records.metric_files import MetricFiles
from shoal.run import elsewhere, panel
from shoal.run.progress import Played, Progress, packed
from shoal.runtime.launch import Stop
from shoal.watch.files import RunFiles

ENV = Played("CartPole-v1", "toy", "fastest")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    return Terminal()


def looks(progress: Progress, file: Terminal, snapshots: list[Snapshot]) -> list[list[str]]:
    """The lines of the panel after each snapshot."""
    out = []
    for each in snapshots:
        file.seek(0)
        file.truncate()
        progress.update(each)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
        out.append([line for line in text.replace("\r", "\n").split("\n") if line.strip()])
    progress.close()
    return out


MANY = {f"a_metric_with_a_long_name_{i}": i / 7 for i in range(40)}


def test_a_small_window_keeps_time_left_and_bottleneck(window: Terminal, tmp_path: Path) -> None:
    progress = Progress("impala", ENV, Stop(steps=10_000), path=tmp_path / ("x" * 200), file=window)
    busy = {f"role-{i}": {"env": 0.9, "wait:q": 0.1} for i in range(12)}
    (shown,) = looks(progress, window, [snapshot(10, records=MANY, shares=busy)])
    assert len(shown) <= 24 and max(map(cell_len, shown)) <= 80
    text = "\n".join(shown)
    for part in ("0:05, 0:45 left", "actor-bound (role-0: 90% of its time in env)", "1,000 of 10,000", "more figures"):
        assert part in text, part


def test_the_last_value_stays_where_it_was_and_says_its_age(window: Terminal) -> None:
    progress = Progress("impala", ENV, Stop(steps=10_000), file=window)
    quiet = [snapshot(row, records={"entropy": 0.5} if row == 1 else {}) for row in (1, 2, 80)]
    first, second, last = looks(progress, window, quiet)
    where = [next(i for i, line in enumerate(look) if "entropy" in line) for look in (first, second, last)]
    assert len({*where}) == 1 and len({len(first), len(second), len(last)}) == 1, "the layout stays"
    assert "0.5" in second[where[1]] and "ago" not in second[where[1]]
    assert "0.5 (0:39 ago)" in last[where[2]]


def test_a_warning_is_a_line_that_stays(window: Terminal) -> None:
    progress = Progress("impala", ENV, Stop(), file=window)
    logging.getLogger("shoal.runtime").warning("actor[0] failed, restarting in 0.1 s: Traceback\nof many lines")
    shown = looks(progress, window, [snapshot(1), snapshot(2)])
    assert all(any("alert" in line and "actor[0] failed, restarting" in line for line in look) for look in shown)
    assert progress.alerts not in logging.getLogger("shoal").handlers, "it ends with the panel"


def test_the_return_has_a_curve(window: Terminal) -> None:
    progress = Progress("impala", ENV, Stop(), file=window)
    *_, last = looks(progress, window, [snapshot(row) for row in range(1, 9)])
    assert any("▁▂▃▄▅▆▇█" in line for line in last)


def test_the_curve_of_the_return_has_the_room_that_is_left(window: Terminal) -> None:
    progress = Progress("impala", ENV, Stop(), file=window)
    *_, last = looks(
        progress, window, [snapshot(row, episode_return=row + 0.25, episodes=123_456) for row in range(100, 150)]
    )
    (line,) = [line for line in last if "return" in line]
    assert "…" not in line and "▁" in line and "█" in line and cell_len(line) == 80


def test_a_number_that_does_not_fit_is_left_out_rather_than_cut() -> None:
    (one,) = panel.lines([], [("steps", "5,041,559 of 1,000,000,000 (24,662/s)")], {}, "", 36, 1)
    assert one[1].split() == ["steps", "5,041,559", "of…"]


@pytest.mark.parametrize("n", [2, 64, 65, 1_000, 10_007])
def test_a_sparkline_is_of_bounded_length_from_the_lowest_to_the_highest(n: int) -> None:
    spark = panel.Spark()
    for value in range(n):
        spark.add(float(value))
        spark.add(math.nan)
    text = spark.text(24)
    assert len(text) == min(n, 24) and text[0] == "▁" and text[-1] == "█" and [*text] == sorted(text)


@pytest.mark.parametrize("values", [[], [1.0], [math.nan, 1.0]])
def test_one_point_is_no_curve(values: list[float]) -> None:
    spark = panel.Spark()
    for value in values:
        spark.add(value)
    assert spark.text(24) == ""


@pytest.mark.parametrize("width, height", [(80, 24), (40, 10), (200, 60), (20, 1), (76, 3)])
def test_a_panel_fits_its_window(width: int, height: int) -> None:
    figures = [
        ("time", "0:05"),
        ("alert", "word " * 100),
        ("bottleneck", "x" * 300),
        *((k, f"{v}") for k, v in MANY.items()),
    ]
    shown = panel.lines([("run", "y" * 300)], figures, {"actor": "env 100%"}, "actor", width, height)
    assert 1 <= len(shown) <= height and all(len(text) <= width for _, text in shown)
    assert "time" in shown[0 if height < panel.TALL else 2][1]


def test_a_narrow_window_gives_less_room_to_names() -> None:
    shown = panel.lines([], [("steps", "1,970,516 of 5,000,000")], {}, "", 36, 20)
    assert shown == [("", "steps       1,970,516 of 5,000,000")]


def test_off_a_terminal_lines_are_short_and_name_nothing_twice() -> None:
    file = io.StringIO()
    progress = Progress("impala", ENV, Stop(steps=10_000), file=file)
    taken = {"return": 7.0, "memory": 8.0, "time": 9.0, "n" * 300: 1.0}
    progress.update(snapshot(1, records={**MANY, **taken}))
    progress.close()
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 160
    keys = [re.split(r" (?=\S+$| )", field)[0] for field in " ".join(lines[2:]).split(" | ")]
    starts = [key.split()[0] for key in keys]
    assert starts.count("return") == starts.count("memory") == starts.count("time") == 1
    assert {"record/return", "record/memory", "record/time"} <= {*starts}


def test_figures_are_packed_whole() -> None:
    assert packed([("a", "1 2"), ("b", "3"), ("c", "4 5 6")], 11) == ["a 1 2 | b 3", "    | c 4 5", "      6"]


def test_the_panel_of_a_run_that_was_started_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "one", ended="steps")
    (path / "logs" / "run.log").write_text("2026-01-02 03:04:05,678 WARNING actor[1] failed\nTraceback\n")
    assert main(["watch", "--terminal", str(path)]) == 0
    shown = capsys.readouterr().out
    for part in ("impala", "steps 300 of 1,000", "return 3 (mean of 3", "learner-bound", "actor[1] failed", "steps: "):
        assert part in shown, part


def test_the_panel_follows_a_run_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "one")
    looked = iter([True, True, False])
    monkeypatch.setattr(elsewhere.RunFiles, "running", lambda self: next(looked, False))
    monkeypatch.setattr(elsewhere.time, "sleep", lambda seconds: None)
    assert elsewhere.show(path) == 0 and next(looked, None) is None


@pytest.mark.parametrize("words, expected", [
    ([], "'{}' holds no run: there is no config.json"), (["--port", "1"], "--port is of the page"),
    (["--prot", "1"], "did you mean '--port'"),
])  # fmt: skip
def test_what_cannot_be_shown_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert main(["watch", str(tmp_path), "--terminal", *words]) == 2
    assert expected.format(tmp_path) in capsys.readouterr().err


def test_the_panel_of_a_run_elsewhere_has_what_any_of_its_rows_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.watch.files.FRESH", 0.0)
    path = write_run(tmp_path / "run", rows=1)
    files = MetricFiles(path, 1)
    for row in range(2, 101):
        files.update(snapshot(row, records={"evaluation_return": 77.0} if row == 3 else {"loss": float(row)}))
    files.close()
    run = RunFiles(path)
    run.refresh()
    assert elsewhere.records(run) == {"loss": (100.0, 50.0), "evaluation_return": (77.0, 1.5)}
    assert elsewhere.returns(run, 97.0) == [98.0, 99.0], "the newest is the snapshot's"
    assert elsewhere.show(path) == 0
    assert "evaluation 77 (0:48 ago)" in capsys.readouterr().out.replace("\n    |", " |")


def test_the_panel_of_a_run_elsewhere_goes_on_where_it_was_resumed_from_an_earlier_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "run", rows=9)
    going, shown = iter([True, True, False]), []
    monkeypatch.setattr(elsewhere.RunFiles, "running", lambda self: next(going, False))
    monkeypatch.setattr(Progress, "update", lambda self, snapshot: shown.append(snapshot.row))

    def sleep(_: float) -> None:
        files = MetricFiles(path, 4)
        files.update(snapshot(5))
        files.close()

    monkeypatch.setattr(elsewhere.time, "sleep", sleep)
    assert elsewhere.show(path) == 0
    assert shown[:2] == [9, 5]


def test_names_of_figures_have_room_in_a_window_of_eighty_columns() -> None:
    assert all(panel._row(name, "1", 76).split("  ")[0].rstrip("1 ") == name for name in panel.FIRST)


@pytest.mark.parametrize("steps, told", [
    (0, "after about 100 steps: environments start"), (50, "after about 100 steps, in 0:10 at this pace"),
    (100, "after about 100 steps, which are done"), (1_751, "after about 100 steps, which are done"),
])  # fmt: skip
def test_the_first_update_is_awaited_until_its_steps_are_done(steps: int, told: str) -> None:
    progress = Progress("r2d2", ENV, Stop(), file=io.StringIO(), first=100.0)
    assert progress._awaited(snapshot(1, seconds=10.0, steps=steps)) == told


def test_a_learner_that_starts_is_what_waiting_actors_wait_for() -> None:
    progress = Progress("dqn", ENV, Stop(), file=io.StringIO(), first=100.0)
    for phases, told in (
        ({"start": 0.9, "wait:params": 0.1}, "environments start"),
        ({"wait:params": 1.0}, "the learner starts"),
    ):
        made = dataclasses.replace(snapshot(1, seconds=10.0, steps=0), shares={"actor": phases})
        assert progress._awaited(made) == f"after about 100 steps: {told}"


@pytest.mark.parametrize("text, most, cut", [
    ("fits", 4, "fits"), ("one two three", 8, "one two…"), ("one two three", 9, "one two…"),
    ("a " + "b" * 50, 30, "a " + "b" * 27 + "…"),
])  # fmt: skip
def test_a_line_is_cut_between_words_unless_little_would_be_left(text: str, most: int, cut: str) -> None:
    assert panel._cut(text, most) == cut


def test_three_roles_keep_their_lines_beside_many_figures() -> None:
    figures = [(name, str(value)) for name, value in MANY.items()]
    shown = [text for _, text in panel.lines([], figures, {f"role-{i}": "env 100%" for i in range(5)}, "", 76, 10)]
    assert [text.split()[0] for text in shown[-3:]] == ["role-0", "role-1", "role-2"]
    assert shown[6] == "and 28 more figures", "6 lines of 2 are shown of 40"
