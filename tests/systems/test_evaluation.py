"""A run that evaluates itself: the file, the best parameters, determinism, and an evaluator that dies."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from helpers import signalled

import shoal
from shoal.api import Episode, UsageError
from shoal.records.evaluation_files import EvaluationFiles, forget_after
from shoal.records.param_files import load_params
from shoal.records.tensor_files import save_tensors
from shoal.roles.evaluator import Returns
from shoal.run.evaluation import MAX_EVALUATION_SECONDS, Evaluation, _play_both
from shoal.topology.config import SystemConfig

SMALL: dict[str, dict[str, Any]] = {
    "impala": dict(hidden=(16,), unroll=8, envs=4, core="lstm", core_size=8, last_action_reward=True),
    "recurrent-ppo": dict(hidden=(16,), unroll=8, envs=4, minibatches=2, epochs=1, normalise_obs=True),
    "dqn": dict(hidden=(16,), unroll=8, envs=4, batch=16, min_replay=64, replay=1_000),
    "r2d2": dict(hidden=(16,), core_size=8, unroll=8, envs=4, batch=4, sequence=8, overlap=4, burn_in=4, min_replay=16),
    "apex-dqn": dict(hidden=(16,), unroll=8, envs=4, batch=16, min_replay=64, replay=1_000),
}
NO_CONFIG = cast(SystemConfig, None)  # of what does not look at it


def train(system: str, path: Path, **settings: Any) -> shoal.Run:
    torch.set_num_threads(1)
    settings = {"runtime": "serial", "env": "CartPole-v1", "preset": "none", "steps": 600, "actors": 1, **settings}
    return shoal.train(system, run_dir=path, **{**SMALL[system], **settings})


def table(run: shoal.Run) -> list[dict[str, float]]:
    with open(run.path / "evaluations.csv", newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize("system", SMALL)
def test_serial_runs_evaluate_at_fixed_steps_and_repeat_exactly(system: str, tmp_path: Path) -> None:
    how = Evaluation(every=200, episodes=3)
    runs = [train(system, tmp_path / name, evaluation=how, seed=4) for name in "ab"]
    a, b = (run.path for run in runs)
    assert (a / "evaluations.csv").read_bytes() == (b / "evaluations.csv").read_bytes()
    rows = table(runs[0])
    assert [int(r["steps"]) // 200 for r in rows] == [1, 2, 3] and all(r["episodes"] == 3 for r in rows)
    assert all(r["min"] <= r["mean"] <= r["max"] for r in rows)
    facts = json.loads((a / "best" / "params.json").read_text())
    best = max(r["mean"] for r in rows)
    assert facts["score"] == pytest.approx(best, abs=1e-5)
    assert facts["steps"] == [int(r["steps"]) for r in rows if r["mean"] == best][-1]
    assert [p.name for p in (a / "best").glob("*.safetensors")] == [f"params-{facts['steps']}.safetensors"]
    assert runs[0].policy(which="best").act(np.zeros(4)) in (0, 1)


def test_evaluating_does_not_change_the_training(tmp_path: Path) -> None:
    with_it = train("impala", tmp_path / "a", evaluation=Evaluation(every=100, episodes=2))
    without = train("impala", tmp_path / "b")
    (_, a), (_, b) = load_params(with_it.path), load_params(without.path)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not (without.path / "evaluations.csv").exists() and not (without.path / "best").exists()
    with pytest.raises(UsageError, match="no best parameters"):
        without.policy(which="best")
    with pytest.raises(UsageError, match="did you mean 'best'"):
        without.policy(which="beast")


def test_only_a_better_or_equal_score_replaces_the_best(tmp_path: Path) -> None:
    results = EvaluationFiles(tmp_path, "params")
    for steps, score in ((10, 1.0), (20, 3.0), (30, 2.0), (40, 3.0), (50, 2.9)):
        results.add(steps, steps, [score, score], {"w": torch.full((2,), score)})
        if steps == 30:
            assert load_params(tmp_path / "best")[0] == 20
    version, params = load_params(tmp_path / "best")
    assert version == 40 and results.best() == 3.0 and params["w"].tolist() == [3.0, 3.0]
    assert sorted(p.name for p in (tmp_path / "best").iterdir()) == ["params-40.safetensors", "params.json"]


def test_a_number_that_comes_later_is_a_column_and_no_mean_is_not_the_best(tmp_path: Path) -> None:
    results, params = EvaluationFiles(tmp_path, "params"), {"w": torch.ones(2)}
    results.add(10, 10, [math.nan], params)
    assert results.best() is None
    results.add(20, 20, [1.0], params)
    results.add(30, 30, [0.5], params, {"success": 0.25})
    results.add(40, 40, [0.5], params)
    with open(tmp_path / "evaluations.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["steps"], row["success"]) for row in rows] == [("10", ""), ("20", ""), ("30", "0.25"), ("40", "")]
    assert results.best() == 1.0 and results.last() == 40


def test_a_file_without_a_row_takes_new_columns_too(tmp_path: Path) -> None:
    """As of a run that goes on from before its first evaluation."""
    results, params = EvaluationFiles(tmp_path, "params"), {"w": torch.ones(2)}
    results.add(20, 20, [1.0], params)
    forget_after(tmp_path, 10)
    results.add(20, 20, [1.0], params, {"success": 0.25})
    with open(tmp_path / "evaluations.csv", newline="", encoding="utf-8") as file:
        assert [(row["steps"], row["success"]) for row in csv.DictReader(file)] == [("20", "0.25")]


def test_a_disk_that_is_full_leaves_files_that_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of evaluations, which a run that is resumed goes on with, and of parameters."""
    results, params = EvaluationFiles(tmp_path, "params"), {"w": torch.ones(2)}
    (tmp_path / "evaluations.csv").touch()  # of a run whose disk was full at the first one
    forget_after(tmp_path, 10)
    results.add(10, 10, [1.0], params)
    results.add(20, 20, [2.0], params)
    with open(tmp_path / "evaluations.csv", "a", encoding="utf-8") as file:
        file.write("3")  # killed in the middle of a row
    before = (tmp_path / "best" / "params-20.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", Mock(side_effect=OSError("no space left on device")))
        with pytest.raises(OSError, match="no space left"):
            save_tensors(params, tmp_path / "best" / "params-20.safetensors")
    assert (tmp_path / "best" / "params-20.safetensors").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["params-20.safetensors", "params.json"]
    forget_after(tmp_path, 20)
    assert [line[:2] for line in (tmp_path / "evaluations.csv").read_text().splitlines()] == ["st", "10", "20"]


@pytest.mark.parametrize(
    "how, says",
    [
        (dict(every=-1), "'every' of an Evaluation expects an integer of at least 0, found -1"),
        (dict(every=5, episodes=0), "'episodes' of an Evaluation expects an integer from 1 to 1000000, found 0"),
        (dict(every=5, max_steps=-1), "'max_steps' of an Evaluation expects an integer of at least 0, found -1"),
        (dict(episodes=10), r"Evaluation\(episodes=10\) expects every=N beside it"),
        (dict(episodes=5), r"Evaluation\(episodes=5\) expects every=N beside it"),
        (dict(max_steps=5), r"Evaluation\(max_steps=5\) expects every=N beside it"),
        (dict(sampled=True), "nothing is evaluated"),
        (dict(video=True), "nothing is evaluated"),
    ],
)
def test_a_wrong_evaluation_is_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Evaluation(**how)


def test_a_killed_evaluator_comes_back_and_the_training_goes_on(tmp_path: Path) -> None:
    """Its process is killed for real, while the run goes on in the main thread."""
    file = tmp_path / "r" / "evaluations.csv"
    killed: list[int] = []

    def evaluations() -> int:
        return len(file.read_text().splitlines()) - 1 if file.exists() else 0

    def assassin() -> None:
        """Kills once there is an evaluation, and ends the run once there is another."""
        normal, before = psutil.Process().nice(), 0
        while not ended.wait(0.05):
            if killed and evaluations() > before:
                os.kill(os.getpid(), signal.SIGINT)
                return
            if not killed and evaluations():
                for child in psutil.Process().children(recursive=True):
                    if child.nice() > normal:
                        before = evaluations()
                        os.kill(child.pid, signal.SIGKILL)
                        killed.append(child.pid)

    ended = threading.Event()
    thread = threading.Thread(target=assassin)
    thread.start()
    how = Evaluation(every=100, episodes=2)
    run = train("impala", file.parent, runtime="local", steps=10**8, seconds=100, evaluation=how)
    ended.set()
    thread.join()
    assert killed, "no process at low priority was found"
    assert run.report is not None and run.report.reason == "interrupted" and run.report.restarts == 1


def test_a_resumed_run_evaluates_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    from shoal.run import resume

    how, a, b = Evaluation(every=500, episodes=1), tmp_path / "a", tmp_path / "b"
    train("impala", a, evaluation=how, steps=3_000)

    with signalled((b / "evaluations.csv").exists, signal.SIGINT):
        run = train("impala", b, evaluation=how, steps=3_000)
    assert run.report is not None and run.report.reason == "interrupted" and run.report.steps < 3_000
    resume(b)
    assert (a / "evaluations.csv").read_bytes() == (b / "evaluations.csv").read_bytes()
    (scores, first), (again, second) = load_params(a / "best"), load_params(b / "best")
    assert scores == again and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize(
    ("samples", "sampled", "gap", "episodes", "told"),
    [
        (True, False, 5.0, 20, {"sampled_mean": 5.0}),
        (True, True, 5.0, 20, {"greedy_mean": 10.0}),
        (True, False, 0.1, 20, {}),
        (True, False, 5.0, 9, {}),
        (False, False, 5.0, 20, {}),
    ],
)
def test_the_last_evaluation_tells_the_other_actions_where_they_differ(
    monkeypatch: pytest.MonkeyPatch, samples: bool, sampled: bool, gap: float, episodes: int, told: dict[str, float]
) -> None:
    def play(make_agent: Any, cfg: Any, how: Evaluation, *rest: Any) -> Returns:
        best = 10.0 - gap * how.sampled
        return Returns([Episode(best + (-1.0) ** k, 1) for k in range(how.episodes)])

    monkeypatch.setattr("shoal.run.evaluation._play", play)
    how = Evaluation(every=1, episodes=episodes, sampled=sampled)
    returns = _play_both(lambda seed: SimpleNamespace(samples=samples), NO_CONFIG, how, {}, 0, 0)
    assert len(returns) == episodes and returns.info == pytest.approx(told)


@pytest.mark.parametrize("took, told", [(200.0, {"sampled_mean": 5.0}), (400.0, {})])
def test_the_last_evaluation_has_one_time_limit_for_both_kinds_of_actions(
    monkeypatch: pytest.MonkeyPatch, took: float, told: dict[str, float]
) -> None:
    clock, limits = [0.0], []

    def play(make_agent: Any, cfg: Any, how: Evaluation, params: Any, *rest: Any) -> Returns:
        limits.append(rest[2:])
        clock[0] += took
        return Returns([Episode(5.0 if how.sampled else 10.0, 1)] * how.episodes)

    monkeypatch.setattr("shoal.run.evaluation._play", play)
    monkeypatch.setattr("shoal.run.evaluation.time", SimpleNamespace(monotonic=lambda: clock[0]))
    returns = _play_both(
        lambda seed: SimpleNamespace(samples=True), NO_CONFIG, Evaluation(every=1, episodes=20), {}, 0, 0
    )
    assert limits == [(), (MAX_EVALUATION_SECONDS - took,)] and returns.info == told
