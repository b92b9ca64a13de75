"""What goes beside a training: a command that is told of its end and of its troubles, and a page."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import shoal
from shoal.cli.main import main
from shoal.records.metric_files import newest_steps
from shoal.run import alerts
from shoal.run.alerts import Alarm
from shoal.run.population.slots import Slots

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


def eventually(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def row(seconds: float, steps: int, **more: Any) -> dict[str, Any]:
    return {"seconds": seconds, "steps": steps, **more}


def kinds(tmp_path: Path, rows: list[dict[str, Any]], after: float = 10.0) -> list[str]:
    """What is told of a run with such rows, in order."""
    alarm = Alarm(command(tmp_path / "noted"), tmp_path / "run", after)
    with alarm:
        for each in rows:
            alarm(each)
            for process, _ in [*alarm._running]:
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


@pytest.mark.parametrize("looks, expected", [
    ([{}, {}], []),
    ([{"actor[1]": "restarted"}] * 5, ["restarted|actor[1] failed and was restarted, at 7 steps"]),
    ([{"actor[1]": "restarted"}, {"actor[1]": "restarted", "actor[0]": "restarted"}],
     [f"restarted|actor[{i}] failed and was restarted, at 7 steps" for i in (1, 0)]),
    ([{f"actor[{i}]": "restarted" for i in range(5)}],
     ["restarted|actor[0], actor[1], actor[2] and 2 more failed and were restarted, at 7 steps"]),
    ([{"evaluator[0]": "restarted"}, {"evaluator[0]": "lost"}, {"evaluator[0]": "lost"}],
     [f"{kind}|evaluator[0] failed and was {fate}, at 7 steps"
      for kind, fate in (("restarted", "restarted"), ("lost", "given up"))]),
])  # fmt: skip
def test_each_replica_that_fails_is_told_of_once_and_those_of_one_look_together(
    tmp_path: Path, looks: list[dict[str, str]], expected: list[str]
) -> None:
    with Alarm(command(tmp_path / "noted"), tmp_path / "run") as alarm:
        alarm(row(0, 7))
        for failed in looks:
            alarm.failed(failed)
            for process, _ in [*alarm._running]:
                process.wait()
    found = [line.split("|") for line in noted(tmp_path / "noted")]
    assert [f"{kind}|{told.removeprefix('run: ')}" for kind, _, told in found] == expected


@pytest.mark.parametrize("bad, said", [("exit 3;", "exit code 3"), ("no_such_command_anywhere", "exit code 127")])
def test_a_command_that_fails_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str, said: str
) -> None:
    with caplog.at_level(logging.WARNING, "shoal"), Alarm(bad, tmp_path) as alarm:
        alarm.failed({"actor[0]": "restarted"})
    assert said in caplog.text


@pytest.mark.parametrize("ended", [False, True])
def test_a_command_that_hangs_is_killed_with_what_it_started_and_told_of(
    ended: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs while the run goes on, or at its end, when the run waits for it."""
    monkeypatch.setattr(alerts, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(alerts, "PATIENCE_SECONDS", 0.1)
    noting = tmp_path / "noted"
    hanging = f"echo $$ > {shlex.quote(str(noting))}; sleep 1000 | sleep 1001; true"
    with caplog.at_level(logging.WARNING, "shoal"), Alarm(hanging, tmp_path) as alarm:
        if ended:
            alarm.ended = "steps"
        else:
            with alarm.listening(time.monotonic):
                alarm.failed({"actor[0]": "restarted"})
                eventually(lambda: noted(noting))

                def quiet() -> bool:
                    alarm(row(1, 2))
                    return not alarm._running

                eventually(quiet)
    assert "had not ended after 0 s and was killed" in caplog.text
    assert ("waiting at most 0 s" in caplog.text) == ended
    eventually(lambda: not _members(int(noted(noting)[0])))


def _members(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    out = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                out.append(process.pid)
    return out


def test_a_command_that_ends_soon_is_not_said_to_be_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING, "shoal"), Alarm("true", tmp_path) as alarm:
        alarm.ended = "steps"
    assert not caplog.text + capsys.readouterr().err


def test_a_command_that_cannot_be_started_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with caplog.at_level(logging.WARNING, "shoal"), Alarm("true", tmp_path) as alarm:
        alarm.failed({"actor[0]": "restarted"})
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
    from shoal.watch.page_process import Page

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
    assert main([*TRAIN, "--quiet", "--run-dir", str(tmp_path / "alone")]) == 0
    names = [
        sorted(p.relative_to(run).as_posix() for p in run.rglob("*")) for run in (tmp_path / "one", tmp_path / "alone")
    ]
    assert names[0] == names[1], "a run with a page writes what one without writes"
    for name in ("metrics.csv", "performance.csv"):
        assert len({(tmp_path / run / name).read_text().partition("\n")[0] for run in ("one", "alone")}) == 1
    code = f"import os; os.kill({seen[1]}, 0)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0


# ------------------------------------------------------------------ all that trains, by one mechanism
SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", runtime="serial", actors=1, envs=2, unroll=5, hidden=(8,), seed=1, quiet=True
)
PBT = [
    "train", "pbt", "--of", "impala", "--env", "CartPole-v1", "--mutate", "learning_rate", "--population", "2",
    "--interval", "150", "--unroll", "5", "--envs", "2", "--hidden", "8", "--slots", "1", "--quiet",
]  # fmt: skip


def test_a_training_and_a_resumed_one_from_python_tell_of_their_ends(tmp_path: Path) -> None:
    told = command(tmp_path / "noted")
    run = shoal.train("impala", run_dir=tmp_path / "run", steps=300, alert=told, **SMALL)
    shoal.resume(run.path, steps=600, alert=told, quiet=True)
    assert main(["resume", str(run.path), "--steps", "900", "--quiet", "--alert", told]) == 0
    lines = noted(tmp_path / "noted")
    assert [line.partition(",")[0] for line in lines] == [f"ended|{run.path}|run: ended: steps"] * 3
    assert [int(line.split(", ")[1].split()[0]) // 300 for line in lines] == [1, 2, 3]


def test_a_resumed_run_that_fails_tells_of_it(tmp_path: Path) -> None:
    told = command(tmp_path / "noted")
    run = shoal.train("impala", run_dir=tmp_path / "run", steps=300, **SMALL)

    def fail(row: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(shoal.ShoalError, match="enough"):
        shoal.resume(run.path, steps=600, alert=told, observers=fail, quiet=True)
    (line,) = noted(tmp_path / "noted")
    assert line.startswith("failed|") and "ValueError: enough" in line


def test_a_population_tells_of_its_end_and_of_its_resumed_end(tmp_path: Path) -> None:
    told, path = command(tmp_path / "noted"), tmp_path / "pbt"
    assert main([*PBT, "--steps", "300", "--run-dir", str(path), "--alert", told]) == 0
    assert main(["resume", str(path), "--steps", "450", "--quiet", "--alert", told]) == 0
    told_of = rf"ended\|{re.escape(str(path))}\|pbt: ended: steps, (\d+) steps of all members, best score [\d.]+"
    first, second = (re.fullmatch(told_of, line) for line in noted(tmp_path / "noted"))
    assert first is not None and second is not None
    assert 600 <= int(first[1]) < 900 <= int(second[1]) < 1_000


def test_a_population_shows_those_beside_it_its_steps_and_failed_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, torn = list[dict[str, Any]](), list[int]()
    show, wait = Alarm.__call__, Slots.wait

    def shown(self: Alarm, row: dict[str, Any]) -> None:
        rows.append(row)
        show(self, row)

    def waited(self: Slots, **limits: Any) -> list[Any]:
        """The first slice that is done counts as failed; the first look comes while it goes on, however short it is."""
        done = wait(self, **(limits if rows else {"timeout": 0.0}))
        if torn:
            return done
        torn.extend(index for index, *_ in done)
        return [(index, reached, "RuntimeError: torn") for index, reached, _ in done]

    monkeypatch.setattr(Alarm, "__call__", shown)
    monkeypatch.setattr(Slots, "wait", waited)
    path = tmp_path / "pbt"
    assert main([*PBT, "--steps", "300", "--run-dir", str(path), "--alert", command(tmp_path / "noted")]) == 0
    steps = [row["steps"] for row in rows]
    assert steps[0] < 150 and 600 <= steps[-1] < 700 and 5 < rows[-1]["episode_return"] < 100
    kinds = [line.split("|") for line in noted(tmp_path / "noted")]
    assert [kind for kind, *_ in kinds] == ["restarted", "ended"] and f"member {torn[0]} failed" in kinds[0][2]


@pytest.mark.parametrize("wrong, says", [
    ({"alert": " "}, "'alert' expects a command, found nothing"),
    ({"alert_after": 3.0}, "'alert_after' expects 'alert' COMMAND beside it"),
    ({"alert": "true", "alert_after": 0}, "'alert_after' expects a finite number above 0"),
    ({"alert": 3}, "'alert' expects"), ({"watch": "yes"}, "'watch' expects"),
])  # fmt: skip
def test_alerts_that_make_no_sense_are_refused_in_python(tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(shoal.UsageError, match=says):
        shoal.train("impala", run_dir=tmp_path / "run", steps=300, **SMALL, **wrong)
    with pytest.raises(shoal.UsageError, match=says):
        shoal.resume(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_newest_steps_are_those_of_the_last_whole_row(tmp_path: Path) -> None:
    assert newest_steps(tmp_path) == 0
    (tmp_path / "metrics.csv").write_text("row,steps,updates\n")
    assert newest_steps(tmp_path) == 0
    (tmp_path / "metrics.csv").write_text("row,steps,updates\n" + "0,100,7\n" * 20_000 + "1,2300,8\n2,24")
    assert newest_steps(tmp_path) == 2_300


TUNE = [
    "tune", "impala", "--env", "CartPole-v1", "--runtime", "serial", "--actors", "1", "--envs", "2", "--unroll", "8",
    "--hidden", "8", "--steps", "1200", "--search", "learning_rate=1e-4:1e-2", "--trials", "2", "--quiet",
]  # fmt: skip


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_search_tells_of_its_end_and_not_of_each_trial(slots: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    told, study = command(tmp_path / "noted"), tmp_path / "study"
    assert main([*TUNE, "--study", str(study), "--slots", slots, "--alert", told]) == 0
    (line,) = noted(tmp_path / "noted")
    assert re.fullmatch(rf"ended\|{study}\|study: ended: trials, 2 finished, best score [\d.]+", line)


def test_a_search_whose_trial_fails_tells_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    from shoal.run import tuning

    def fail(*_: Any, **__: Any) -> None:
        raise shoal.ShoalError("no room is left")

    monkeypatch.setattr(tuning, "start", fail)
    told = command(tmp_path / "noted")
    assert main([*TUNE, "--study", str(tmp_path / "study"), "--alert", told]) == 1
    assert noted(tmp_path / "noted") == [f"failed|{tmp_path / 'study'}|study: failed: no room is left"]


@pytest.mark.parametrize("slots", [1, 2])
def test_those_beside_a_search_hear_of_the_steps_of_all_trials(
    slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(Alarm, "__call__", lambda self, row: rows.append(row))
    assert main([*TUNE, "--study", str(tmp_path / "s"), "--slots", str(slots), "--alert", "true"]) == 0
    steps = [row["steps"] for row in rows]
    assert steps == sorted(steps) and steps[0] == 0 and steps[-1] > 1200, "more than one trial makes"


@pytest.mark.parametrize("seconds, told", [(309.0, []), (310.0, ["stalled"])])
def test_a_run_has_stalled_as_soon_as_the_time_is_over(tmp_path: Path, seconds: float, told: list[str]) -> None:
    assert kinds(tmp_path, [row(0.0, 5), row(300.0, 6), row(seconds, 6)]) == told


@pytest.mark.parametrize("seconds, told", [(309.0, []), (310.0, ["fell"])])
def test_a_return_has_fallen_as_soon_as_the_time_is_over(tmp_path: Path, seconds: float, told: list[str]) -> None:
    """It had gained 10, from -4 to 6, and lost more than 5 of them."""
    returns = ((0.0, -4.0), (290.0, 6.0), (300.0, 1.0), (305.0, 0.9), (seconds, 0.9))
    rows = [row(when, i, episode_return=score) for i, (when, score) in enumerate(returns)]
    assert kinds(tmp_path, rows) == told


HANGING = """
import sys
import time

import gymnasium as gym

import shoal


class Hanging(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        time.sleep(10_000)


if __name__ == "__main__":
    shoal.train("dqn", Hanging, runtime="serial", hidden=(8,), run_dir="run", alert=sys.argv[1], alert_after=1.0)
"""


def test_a_run_that_hangs_tells_of_it_and_its_killed_process_too(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    noting = tmp_path / "noted"
    with subprocess.Popen([sys.executable, "hanging.py", command(noting)], cwd=tmp_path) as process:
        try:
            eventually(lambda: noted(noting))
        finally:
            process.kill()
    eventually(lambda: len(noted(noting)) > 1)
    stalled, failed = noted(noting)
    assert re.fullmatch(r"stalled\|.*/run\|run: no step for \d+ s, after 0 steps", stalled)
    assert failed.endswith("/run|run: failed: its process was killed")


def test_a_runtime_that_goes_on_without_rows_tells_of_nothing(tmp_path: Path) -> None:
    with Alarm(command(tmp_path / "noted"), tmp_path, after=0.2) as alarm, alarm.listening(time.monotonic):
        time.sleep(0.6)
    assert noted(tmp_path / "noted") == []


def test_a_runtime_that_hangs_tells_of_it_once_and_not_after_its_end(tmp_path: Path) -> None:
    with Alarm(command(tmp_path / "noted"), tmp_path, after=0.2) as alarm:
        alarm(row(0, 7))
        with alarm.listening(lambda: time.monotonic() - 5):
            eventually(lambda: noted(tmp_path / "noted"))
            time.sleep(0.5)
        alarm._told.clear()
        time.sleep(0.5)
    assert noted(tmp_path / "noted") == [f"stalled|{tmp_path}|{tmp_path.name}: no step for 5 s, after 7 steps"]
