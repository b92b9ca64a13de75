"""Recorder, aggregator and metric files."""

from __future__ import annotations

import csv
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.local.child import _Reporter
from shoal.local.telemetry import Inbox, Outbox
from shoal.metering.aggregator import MOST_INFOS, Aggregator, Snapshot, quantile
from shoal.metering.recorder import Recorder, Telemetry
from shoal.records.metric_files import MetricFiles, read_curve
from shoal.records.run_dir import RunDirectory


def test_a_record_never_takes_the_place_of_a_column_of_the_runs_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Aggregator()
    files = MetricFiles(tmp_path)
    for _ in range(2):
        recorder = Recorder()
        recorder.count("env_steps", 10)
        recorder.episode(1.0, 5)
        for name, value in {"steps": 5.0, "row": 7.0, "seconds": -1.0, "episode_return": 42.0, "loss": 0.5}.items():
            recorder.record(name, value)
        run.add("learner", recorder.drain())
        files.update(run.snapshot({}))
    files.close()
    first, second = read_curve(tmp_path)
    own = [(r["row"], r["steps"], r["seconds"] >= 0, r["episode_return"]) for r in (first, second)]
    assert own == [(1, 10, True, 1.0), (2, 20, True, 1.0)]
    assert {k: v for k, v in second.items() if k.startswith("record/")} == {
        "record/steps": 5.0, "record/row": 7.0, "record/seconds": -1.0, "record/episode_return": 42.0,
    }  # fmt: skip
    assert second["loss"] == 0.5
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4 and any("'row' that a role records is the run's own" in line for line in told)
    MetricFiles(tmp_path, after=1).close()  # a run that goes on behind its first row
    assert [r["row"] for r in read_curve(tmp_path)] == [1]


# -------------------------------------------------------------------------------------- recorder
def test_phases_add_up_and_an_inner_one_stops_the_outer() -> None:
    recorder = Recorder()
    with recorder.phase("get"):
        time.sleep(0.02)
        with recorder.phase("wait:q"):
            time.sleep(0.05)
        time.sleep(0.02)
    recorder.enter("learn")
    time.sleep(0.03)
    told = recorder.drain()
    assert told.phases["get"] >= 0.04 and told.phases["wait:q"] >= 0.05 and told.phases["learn"] >= 0.03
    assert sum(told.phases.values()) == pytest.approx(told.seconds, abs=1e-9)
    time.sleep(0.01)
    again = recorder.drain()
    assert set(again.phases) == {"learn"} and again.phases["learn"] == pytest.approx(again.seconds)


def test_a_phase_that_raises_gives_the_time_back() -> None:
    recorder = Recorder()
    recorder.enter("other")
    with pytest.raises(ValueError, match="no"), recorder.phase("env"):
        raise ValueError("no")
    assert recorder.enter("x") == "other"


def test_quantiles_of_a_tally_are_exact() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 19, 20, 1000):
        values = rng.integers(0, 30, n)
        tally: dict[int, int] = {}
        for v in values.tolist():
            tally[v] = tally.get(v, 0) + 1
        for q in (0.5, 0.95, 1.0):
            assert quantile(tally, q) == np.quantile(values, q, method="inverted_cdf"), (n, q)


# ------------------------------------------------------------------------------------ aggregator
def fed() -> Aggregator:
    run = Aggregator()
    recorder = Recorder()
    for i in range(130):
        recorder.count("env_steps", 3)
        recorder.record("loss", 0.1 * i)
        recorder.tally("policy_lag", [i % 7, 2])
        recorder.episode(i / 3, i)
    run.add("actor", recorder.drain())
    run.restarts = 2
    return run


def clockless(snapshot: Snapshot) -> dict[str, Any]:
    timed = ("seconds", "step_rate", "update_rate", "shares", "phase_seconds")
    return {k: v for k, v in vars(snapshot).items() if k not in timed}


def test_a_saved_aggregator_goes_on_where_it_was() -> None:
    run = fed()
    run.snapshot()
    run.add(
        "learner", Telemetry({"updates": 5}, {"loss": (1 / 3, 2)}, {"policy_lag": {4: 2}}, {}, [(0.7, 9)], seconds=0.1)
    )
    run._start -= 100.0  # pretend that it has run for so long
    other = Aggregator()
    other.load_state_dict(json.loads(json.dumps(run.state_dict())))
    assert 100.0 <= other.seconds < 101.0
    assert clockless(other.snapshot()) == clockless(run.snapshot())
    assert other.row == 2 and other.restarts == 2


def test_tallies_become_three_columns() -> None:
    records = fed().snapshot().records
    assert (records["policy_lag_p50"], records["policy_lag_p95"], records["policy_lag_max"]) == (2, 6, 6)


def test_the_json_lines_have_the_histogram_of_a_tally(tmp_path: Path) -> None:
    files = MetricFiles(tmp_path)
    files.update(fed().snapshot())
    files.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["policy_lag_histogram"] == {str(i): 130 // 7 + (i < 130 % 7) + 130 * (i == 2) for i in range(7)}
    assert list(line["policy_lag_histogram"]) == list("0123456") and sum(line["policy_lag_histogram"].values()) == 260
    assert "policy_lag_histogram" not in rows(tmp_path / "metrics.csv")[0]


# ----------------------------------------------------------------------------------------- files
def snapshot(row: int, **changes: Any) -> Snapshot:
    return Snapshot(**{**dict(
        row=row, seconds=0.5 * row, steps=1000 * row, updates=50, step_rate=100.0, update_rate=5.0,
        episode_return=math.nan, episode_length=math.nan, episodes=0,
    ), **changes})  # fmt: skip


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write(directory: Path, numbers: range, after: int | None = None) -> None:
    files = MetricFiles(directory, after)
    for n in numbers:
        some: dict[str, Any] = {}
        if n >= 2:
            some |= dict(episodes=n, episode_return=1.5, episode_length=8.0, new_episodes=[(float(n), 9)])
        if n >= 3:
            some |= dict(records={"loss": 1 / n}, fill={"q": 0.5}, shares={"actor": {"env": 0.75}})
        files.update(snapshot(n, **some))
    files.close()


def test_files_gain_columns_and_hold_no_nan(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    table = rows(tmp_path / "metrics.csv")
    assert [r["steps"] for r in table] == ["1000", "2000", "3000"]
    assert [r["episode_return"] for r in table] == ["", "1.5", "1.5"]
    assert [r["loss"] for r in table] == ["", "", "0.33333333"]
    timed = rows(tmp_path / "performance.csv")
    assert timed[2]["fill/q"] == "0.5" and timed[2]["time/actor/env"] == "0.75" and timed[0]["fill/q"] == ""
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == [1, 2, 3] and "episode_return" not in lines[0]
    assert [(r["row"], r["return"], r["length"]) for r in rows(tmp_path / "episodes.csv")] == [
        ("2", "2", "9"), ("3", "3", "9"),
    ]  # fmt: skip
    assert "nan" not in "".join(p.read_text().lower() for p in tmp_path.iterdir())


def test_what_a_clock_says_is_in_the_performance_files_alone(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    clock = {"seconds", "steps_per_second", "updates_per_second", "memory", "restarts", "fill/q", "time/actor/env"}
    assert clock.isdisjoint(rows(tmp_path / "metrics.csv")[0]) and clock <= rows(tmp_path / "performance.csv")[0].keys()
    curve = read_curve(tmp_path)
    assert [(r["steps"], r["seconds"], r.get("episode_return")) for r in curve] == [
        (1000, 0.5, None), (2000, 1.0, 1.5), (3000, 1.5, 1.5),
    ]  # fmt: skip


@pytest.mark.parametrize("half", ["7,70", "1", "7"])
def test_going_on_behind_a_row_leaves_the_files_of_one_run(half: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    write(tmp_path / "one", range(1, 9))
    write(tmp_path / "two", range(1, 7))  # the checkpoint was made at row 2; rows 3 to 6 were lost
    for name in ("metrics.csv", "metrics.jsonl"):
        with open(tmp_path / "two" / name, "a") as file:
            file.write(half)  # killed while it wrote
    write(tmp_path / "two", range(3, 9), after=2)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("system", ["impala", "recurrent-ppo", "dqn", "apex-dqn", "r2d2", "apex-dpg", "d4pg", "qt-opt"])
def test_two_serial_runs_write_the_same_metric_files(system: str, tmp_path: Path) -> None:
    long = system in ("apex-dpg", "d4pg", "qt-opt")  # their updates
    few: dict[str, Any] = {"batch": 16, "samples_per_insert": 2.0} if long else {}
    for name in ("a", "b"):
        shoal.train(
            system, preset="none", runtime="serial", run_dir=tmp_path / name, steps=2_200, seed=1, actors=1, envs=4,
            hidden=(8,), **few,
        )  # fmt: skip
    for name in ("metrics.csv", "metrics.jsonl", "episodes.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    steps = [int(r["steps"]) for r in rows(tmp_path / "a" / "metrics.csv")]
    assert [s // 1000 for s in steps[:2]] == [1, 2] and steps[-1] >= 2_200 and len({*steps}) == len(steps) <= 3, steps


def test_more_than_the_pipe_holds_is_told_between_two_steps() -> None:
    """With hundreds of small environments a report of episodes is larger than a pipe: it must not wait for the next
    one, half a second later, and again at the next."""
    read, write = os.pipe()
    inbox, recorder = Inbox(read), Recorder()
    reporter = _Reporter(recorder, Outbox(write))
    reporter._due = math.inf  # however slow the machine, no second report
    for _ in range(50_000):
        recorder.episode(1.0, 20)
    recorder.count("env_steps", 1_000_000)
    reporter.last()
    heard: list[Any] = []
    for _ in range(100):  # steps that take no time
        heard += inbox.receive()
        reporter.tick()
    assert [(kind, told.counts["env_steps"], len(told.episodes)) for kind, told in heard] == [
        ("telemetry", 1_000_000, 50_000)
    ]
    os.close(write)
    os.close(read)


def test_an_ever_new_name_in_info_grows_nothing_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory, aggregator = RunDirectory(tmp_path / "r"), Aggregator()
    for i in range(2 * MOST_INFOS):
        telemetry = Telemetry()
        telemetry.counts["env_steps"] = 1
        telemetry.infos = {f"goal_{i}": [1.0], "success": [float(i)]}
        aggregator.add("actor", telemetry)
        if i % 20 == 0:
            directory.update(aggregator.snapshot())
    directory.update(last := aggregator.snapshot())
    directory.close()
    assert len(last.infos) == MOST_INFOS and last.infos["success"] == 2 * MOST_INFOS - 50.5
    told = [record.getMessage() for record in caplog.records if "names of numbers" in record.getMessage()]
    assert len(told) == 1 and f"'goal_{MOST_INFOS - 1}'" in told[0]
    header = (tmp_path / "r" / "metrics.csv").read_text().partition("\n")[0]
    assert len(header.split(",")) < MOST_INFOS + 20
