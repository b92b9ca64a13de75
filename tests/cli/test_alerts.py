"""What goes beside a training: a command that is told of its end and of its troubles, and a page."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import main
from shoal.run.alerts import Alarm

TRAIN = [
    "train",
    "impala",
    "--env",
    "CartPole-v1",
    "--runtime",
    "serial",
    "--actors",
    "1",
    "--envs",
    "2",
    "--unroll",
    "5",
    "--steps",
    "300",
    "--hidden",
    "8",
]


def noted(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def command(file: Path) -> str:
    """Notes its kind and its sentence; the latter comes behind it."""
    return f'f() {{ echo "$SHOAL_ALERT|$SHOAL_RUN|$1" >> {shlex.quote(str(file))}; }}; f'


def row(seconds: float, steps: int, **more: Any) -> dict[str, Any]:
    return {"seconds": seconds, "steps": steps, "restarts": 0, **more}


def kinds(tmp_path: Path, rows: list[dict[str, Any]], after: float = 10.0) -> list[str]:
    """What is told of a run with such rows, in order."""
    alarm = Alarm(command(tmp_path / "noted"), tmp_path / "run", after)
    with alarm:
        for each in rows:
            alarm(each)
            for process in [*alarm._running]:
                process.wait()
    return [line.partition("|")[0] for line in noted(tmp_path / "noted")]


def test_a_run_without_steps_is_told_of_once_for_each_stall(tmp_path: Path) -> None:
    rows = [row(0, 5), row(9, 5), row(11, 5), row(30, 5), row(31, 6), row(40, 6), row(42, 6), row(50, 6)]
    assert kinds(tmp_path, rows) == ["stalled", "stalled"]
    assert "no step for 11 s, at 5 steps" in noted(tmp_path / "noted")[0]


@pytest.mark.parametrize("returns, expected", [
    ([0, 100, 40, 40, 40], ["fell"]), ([0, 100, 60, 60, 60], []), ([0, 100, 40, 90, 40], []),
    ([-20, 20, -5, -5, -5], ["fell"]), ([-20, 20, 5, 5, 5], []), ([-20, -20, -20, -20, -20], []),
    ([5, 3, 2, 1, 0], []), ([50, 0, 100, 40, 40, 40, 40], ["fell"]),
    ([float("nan")] * 5, []), ([0, 100, *[40] * 20], ["fell"]),
])  # fmt: skip
def test_a_return_that_has_lost_half_of_its_gain_for_long_is_told_of_once(
    tmp_path: Path, returns: list[float], expected: list[str]
) -> None:
    rows = [row(6.0 * i, i, episode_return=score) for i, score in enumerate(returns)]
    assert kinds(tmp_path, rows) == expected


def test_replicas_that_fail_again_and_again_are_told_of_once(tmp_path: Path) -> None:
    assert kinds(tmp_path, [row(i, i, restarts=i) for i in range(5)]) == ["restarted"]


@pytest.mark.parametrize("bad, said", [("exit 3;", "exit code 3"), ("no_such_command_anywhere", "exit code 127")])
def test_a_command_that_fails_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str, said: str
) -> None:
    with caplog.at_level(logging.WARNING, "shoal"), Alarm(bad, tmp_path) as alarm:
        alarm(row(0, 1, restarts=1))
    assert said in caplog.text


def test_a_command_that_cannot_be_started_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with caplog.at_level(logging.WARNING, "shoal"), Alarm("true", tmp_path) as alarm:
        alarm(row(0, 1, restarts=1))
    assert "cannot be started" in caplog.text


@pytest.mark.parametrize("error, told", [
    (ValueError("it\nhas lines"), "failed|{}|run: failed: it"),
    (KeyboardInterrupt("terminated"), "ended|{}|run: ended: terminated"),
])  # fmt: skip
def test_the_end_of_a_run_that_ends_otherwise_is_told_of(tmp_path: Path, error: BaseException, told: str) -> None:
    path = tmp_path / "run"
    with pytest.raises(type(error)), Alarm(command(tmp_path / "noted"), path):
        raise error
    assert noted(tmp_path / "noted") == [told.format(path)]


def test_a_sentence_is_one_argument_and_no_program(tmp_path: Path) -> None:
    path = tmp_path / "$(touch hacked); `touch hacked`"
    with pytest.raises(ValueError, match="touch"), Alarm(command(tmp_path / "noted"), path):
        raise ValueError("'; touch hacked #")
    (line,) = noted(tmp_path / "noted")
    assert line.endswith("failed: '; touch hacked #") and not list(tmp_path.glob("hacked"))


def test_a_training_tells_of_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--quiet", "--alert", command(tmp_path / "noted"), "--seeds", "0", "1"]) == 0
    lines = noted(tmp_path / "noted")
    assert len(lines) == 2 and all(line.startswith("ended|") and "ended: steps" in line for line in lines)
    assert len({line.split("|")[1] for line in lines}) == 2, "each of its runs"


def test_a_training_that_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "impala", "--env", "CartPole-v1", "--unroll", "0", "--alert", "true"]) == 2
    assert main([*TRAIN, "--alert-after", "3"]) == 2 and main([*TRAIN, "--alert", " "]) == 2
    assert not [*tmp_path.iterdir()]


def test_the_page_beside_a_training_answers_while_it_goes_on_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("starlette", reason="needs the extra watch")
    pytest.importorskip("plotly", reason="needs the extra watch")
    from shoal.watch.beside import Page

    seen: list[str] = []
    start = Page.__call__

    def look(self: Page, row: dict[str, Any]) -> None:
        start(self, row)
        if not seen:
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            opener.open(self.address, timeout=60).read()
            base = self.address.partition("?")[0]
            seen.append(opener.open(f"{base}api/runs", timeout=60).read().decode())
            seen.append(str(self._process.pid if self._process else ""))

    monkeypatch.setattr(Page, "__call__", look)
    assert main([*TRAIN, "--quiet", "--watch", "--run-dir", str(tmp_path / "one")]) == 0
    assert '"single":"one"' in seen[0] and '"state":"running"' in seen[0]
    assert "watch this run at http://127.0.0.1:" in capsys.readouterr().err
    code = f"import os; os.kill({seen[1]}, 0)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0
