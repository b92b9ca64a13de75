"""Run directories, progress lines, and policies of finished runs."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import shoal
from shoal.api import EnvSpec, UsageError
from shoal.metering.aggregator import Snapshot
from shoal.metering.bottleneck import bottleneck
from shoal.records.checkpoint import Checkpoint
from shoal.records.metric_files import read_curve
from shoal.records.param_files import load_params
from shoal.records.run_dir import RunDirectory, new_directory
from shoal.run.finished import check_unfinished
from shoal.run.progress import Progress, clock, time_left
from shoal.runtime.launch import Report, Stop


def snapshot(**changes: Any) -> Snapshot:
    values: dict[str, Any] = dict(
        row=1, seconds=10.0, steps=1000, updates=50, step_rate=100.0, update_rate=5.0, episode_return=math.nan,
        episode_length=math.nan, episodes=0, counts={}, records={}, shares={}, fill={}, restarts=0, new_episodes=[],
    )  # fmt: skip
    return Snapshot(**{**values, **changes})


def test_parameters_survive_and_no_temporary_file_does(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r")
    params = {"w": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(3)}
    directory.finish(Report("steps", 10, 5, 1.0, math.nan, 0, {"params": params}))
    directory.close()
    version, loaded = load_params(directory.path)
    assert version == 5 and all(torch.equal(loaded[k], v) for k, v in params.items())
    assert not [p.name for p in directory.path.iterdir() if p.name.startswith(".")]
    assert json.loads((directory.path / "report.json").read_text())["episode_return"] is None


def test_a_run_is_private_and_never_overwrites(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a" / "r")
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    with pytest.raises(UsageError, match="is still going on"):
        RunDirectory(directory.path)
    directory.close()
    with pytest.raises(UsageError, match="never overwrites"):
        RunDirectory(directory.path)
    with new_directory("dqn", "ALE/Pong-v5", 3, tmp_path) as first:
        assert first.name.startswith("dqn-ALE-Pong-v5-") and first.name.endswith("-3")


def test_runs_that_start_together_get_a_directory_each_and_a_refused_one_leaves_none(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with contextlib.ExitStack() as stack:
        three = [stack.enter_context(new_directory("dqn", "CartPole-v1", 0, root)) for _ in range(3)]
        assert len(set(three)) == 3 and all(path.is_dir() for path in three)
        (three[1] / "config.json").write_text("{}")
    assert [path.exists() for path in three] == [False, True, False]
    with new_directory("dqn", "CartPole-v1", 0, tmp_path / "other"):
        pass
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("given", [False, True], ids=["default", "given"])
def test_what_does_not_fit_into_memory_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.runtime.memory.available", lambda: 1 << 20)
    run_dir = tmp_path / "r" if given else None
    with pytest.raises(shoal.UsageError, match="of memory for its channels, replays and processes"):
        shoal.train("dqn", env="CartPole-v1", preset="none", run_dir=run_dir, device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_file_outside_the_run_is_not_read(tmp_path: Path) -> None:
    run = tmp_path / "r"
    run.mkdir()
    (tmp_path / "x.safetensors").write_bytes(b"")
    facts = {"format": 2, "updates": 1, "channels": {"params": {"file": "../x.safetensors"}}}
    (run / "params.json").write_text(json.dumps(facts))
    with pytest.raises(shoal.ShoalError, match=r"lacks the file 'x\.safetensors'"):
        load_params(run)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    path = tmp_path_factory.mktemp("runs") / "r"
    system = str(Path(__file__).with_name("fake_system.py"))
    return shoal.train(system, env="CartPole-v1", runtime="serial", run_dir=path, steps=800, seed=7)


def test_train_leaves_a_complete_run(run: shoal.Run) -> None:
    names = {p.name for p in run.path.iterdir()}
    assert names == {
        "config.json", "program.json", "program.mmd", "program.txt", "metrics.csv", "metrics.jsonl", "performance.csv",
        "performance.jsonl", "episodes.csv", "logs", "checkpoints", "run.lock", "summary.md",
        "params-params.safetensors", "params.json", "report.json", "live.json",
    }  # fmt: skip
    facts = json.loads((run.path / "config.json").read_text())
    assert facts["origins"]["steps"] == "argument" and facts["origins"]["envs"] == "preset classic"
    assert facts["seed"] == 7 and facts["environment"]["backend"] and facts["versions"]["torch"]
    assert facts["hardware"]["cores"] >= 1
    assert read_curve(run.path)[-1]["steps"] >= 800


def test_an_opened_run_is_the_same(run: shoal.Run) -> None:
    again = shoal.Run.open(run.path)
    assert again.config == run.config and again.report is not None and run.report is not None
    assert (again.report.steps, again.report.reason) == (run.report.steps, "steps")


def test_policy_acts_on_one_observation(run: shoal.Run) -> None:
    policy = run.policy()
    assert policy.act(np.zeros(4, np.float64)) == 1
    policy.reset()
    with pytest.raises(UsageError, match="'obs' should have shape"):
        policy.act(np.zeros(3))


def test_a_policy_that_remembers_action_and_reward(tmp_path: Path) -> None:
    run = shoal.train(
        "impala", env="CartPole-v1", runtime="serial", run_dir=tmp_path / "r", preset="none", steps=200, actors=1,
        envs=2, unroll=5, core="lstm", core_size=8, hidden=(8,), last_action_reward=True,
    )  # fmt: skip
    policy = run.policy()
    assert policy.act(np.zeros(4)) in (0, 1) and policy.act(np.ones(4), reward=1.0) in (0, 1)
    assert len(policy.evaluate(2)) == 2


@pytest.mark.parametrize("episodes", [1, 5, 11])
def test_evaluation_plays_as_many_episodes_as_asked(run: shoal.Run, episodes: int) -> None:
    returns = run.policy().evaluate(episodes, seed=1)
    assert len(returns) == episodes and all(5 < r < 30 for r in returns)
    assert returns == run.policy().evaluate(episodes, seed=1)


@pytest.mark.parametrize(
    "actor, learner, expected",
    [
        ({"env": 0.6, "inference": 0.35}, {"learn": 0.4, "wait:unrolls": 0.6}, ("actor", "actor")),
        ({"env": 0.3, "inference": 0.65}, {"learn": 0.4, "wait:unrolls": 0.6}, ("inference", "actor")),
        ({"env": 0.3, "wait:unrolls": 0.6}, {"learn": 0.9, "wait:unrolls": 0.01}, ("learner", "learner")),
        ({"env": 0.3, "wait:unrolls": 0.6}, {"learn": 0.4, "sample": 0.3, "insert": 0.2}, ("replay", "learner")),
        ({"env": 0.3, "wait:turn": 0.7}, {"learn": 0.7, "wait:turn": 0.3}, ("learner", "learner")),
        ({"start": 0.9, "env": 0.1}, {"start": 0.1, "learn": 0.4, "wait:unrolls": 0.5}, ("actor", "actor")),
        ({"start": 1.0}, {"wait:unrolls": 0.99, "batch": 0.01}, None),
        ({"pray": 0.9}, {"learn": 0.4, "wait:unrolls": 0.6}, ("actor", "actor")),  # a phase of one's own
    ],
)
def test_the_role_that_waits_least_is_the_bottleneck(
    actor: dict[str, float], learner: dict[str, float], expected: tuple[str, str] | None
) -> None:
    found = bottleneck({"actor": actor, "learner": learner, "evaluator": {"evaluate": 1.0}})
    assert (found and (found.kind, found.role)) == expected


def test_time_left_is_that_of_the_nearest_limit() -> None:
    assert time_left(Stop(steps=3000), snapshot()) == 20.0
    assert time_left(Stop(steps=3000, seconds=12.0), snapshot()) == 2.0
    assert time_left(Stop(), snapshot()) is None
    assert (clock(3725), clock(65), clock(None)) == ("1:02:05", "1:05", "?")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [io.StringIO(), Terminal()], ids=["plain", "terminal"])
def test_progress_says_what_matters(file: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    env = EnvSpec("ALE/Pong-v5", {}, None, frames_per_step=4, backend="ale", why="fastest")  # type: ignore[arg-type]
    progress = Progress("impala", env, Stop(steps=3000), file=file)
    figures = dict(
        episodes=120, episode_return=-20.5, fill={"queue": 0.5}, restarts=2, memory=50_000_000,
        records={"policy_lag_p50": 1, "policy_lag_p95": 4, "policy_lag_max": 9, "own": 3.0},
        shares={"actor": {"env": 0.7}, "learner": {"learn": 0.2, "wait:queue": 0.8}},
    )  # fmt: skip
    for _ in range(3):
        progress.update(snapshot(**figures))
    progress.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    for part in (
        "ale (fastest)", "1,000 of 3,000", "400 frames/s", "-20.5 (mean of 100, 120 episodes)", "policy lag",
        "1 p50, 4 p95, 9 max (updates)", "own", "queue 50%", "actor-bound (actor: 70% of its time in env)", "restarts",
        "0:10, 0:20 left", "MB",
    ):  # fmt: skip
        assert part in shown, part
    if not file.isatty():
        assert shown.count("1,000 of 3,000") == 2 and "\x1b" not in file.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal], ids=["plain", "terminal"])
def test_nobody_needs_to_read_it(kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that is closed, a terminal that is gone: nothing is shown any more, and no run ends of it."""
    monkeypatch.setenv("TERM", "xterm-256color")
    env = EnvSpec("ALE/Pong-v5", {}, None)  # type: ignore[arg-type]
    progress = Progress("impala", env, Stop(steps=3000), file=(file := kind()))
    monkeypatch.setattr(file, "write", Mock(side_effect=BrokenPipeError))
    for _ in range(2):
        progress.update(snapshot())
    progress.close()
    assert file.write.call_count >= 1  # type: ignore[attr-defined]


def test_a_run_gives_its_metrics_as_columns_and_says_what_it_is(tmp_path: Path) -> None:
    run = shoal.train(
        "impala", env="CartPole-v1", runtime="serial", actors=1, envs=2, unroll=8, hidden=(8,), steps=2_000,
        run_dir=tmp_path / "r",
    )  # fmt: skip
    columns, rows = run.metrics(), read_curve(run.path)
    assert columns["steps"].tolist() == [row["steps"] for row in rows]
    assert {len(column) for column in columns.values()} == {len(rows)} and "loss" in columns
    missing = [name for row in rows for name in columns if name not in row]
    assert all(math.isnan(columns[name][i]) for i, row in enumerate(rows) for name in columns if name not in row), (
        missing
    )
    assert re.fullmatch(r"<Run '.*r': impala on CartPole-v1, [\d,]+ steps \(ended: steps\), return [\d.]+>", repr(run))
    Path(run.path / "report.json").unlink()
    assert "running, or killed" in repr(shoal.Run.open(run.path))
    assert len(run.evaluate(2)) == 2


def test_a_run_needs_a_library_for_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shoal.Run(tmp_path, "dqn", {"env": "CartPole-v1"})
    monkeypatch.setattr(shoal.Run, "metrics", lambda self: {"steps": np.zeros(2)})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs pandas or polars"):
        run.frame()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "polars" or None)
    monkeypatch.setattr("importlib.import_module", lambda name: Mock(DataFrame=lambda columns: (name, columns)))
    name, columns = run.frame()
    assert name == "polars" and columns["steps"].tolist() == [0, 0]


def test_only_what_is_public_is_listed() -> None:
    assert set(dir(shoal)) == {*shoal.__all__, "__version__"}


def test_windows_is_told_where_shoal_runs() -> None:
    code = "import sys; sys.platform = 'win32'; import shoal"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith("(the Windows Subsystem for Linux)")


def test_the_progress_shows_steps_as_they_are_made_and_when_the_first_update_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, file = EnvSpec("Slow-v0", {}, None), io.StringIO()  # type: ignore[arg-type]
    monkeypatch.setattr("shoal.run.progress.PLAIN_EVERY", 0.0)
    progress = Progress("recurrent-ppo", env, Stop(steps=3000), file=file, first=1000.0)
    for seconds, steps, making in ((10.0, 0, 100), (20.0, 0, 200), (30.0, 250, 0), (40.0, 250, 150)):
        progress.update(snapshot(seconds=seconds, steps=steps, making=making, updates=0, step_rate=0.0))
    progress.update(snapshot(seconds=200.0, steps=1_000, making=0, updates=1))
    first, second, third, fourth, last = file.getvalue().splitlines()[-5:]
    assert first.startswith("steps 100 of 3,000 ") and "first update after about 1,000 steps, in 1:30 at" in first
    assert second.startswith("steps 200 of 3,000 (3/s)"), "10 a second, smoothed"
    assert third.startswith("steps 250 of 3,000") and fourth.startswith("steps 400 of 3,000")
    assert "first update" not in last


@pytest.mark.parametrize(
    "limit, finished",
    [(Stop(steps=100), True), (Stop(steps=101), False), (Stop(seconds=9.0), True), (Stop(seconds=9.5), False)],
)
def test_a_run_is_finished_at_its_limit(limit: Stop, finished: bool, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, {"steps": 100, "seconds": 9.0})
    if finished:
        with pytest.raises(UsageError, match="is finished: it has reached its"):
            check_unfinished(tmp_path, checkpoint, limit, None)
    else:
        check_unfinished(tmp_path, checkpoint, limit, None)


@pytest.mark.parametrize("wanted, more", [(200.0, "220"), (-200.0, "-180")])
def test_a_run_that_reached_its_return_is_told_to_want_a_higher_one(
    wanted: float, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = SimpleNamespace(reason="episode_return", steps=100)
    monkeypatch.setattr("shoal.run.finished.read_report", lambda path: report)
    checkpoint = Checkpoint(tmp_path, {"steps": 100, "seconds": 9.0})
    with pytest.raises(UsageError, match=rf"its return of {wanted:g}; .* --until-return {more}$"):
        check_unfinished(tmp_path, checkpoint, Stop(episode_return=wanted), wanted)
    report.steps = 99
    check_unfinished(tmp_path, checkpoint, Stop(episode_return=wanted), wanted)
