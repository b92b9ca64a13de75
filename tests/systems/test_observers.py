"""Functions of the user's that see a run's metrics: what they are told, how they end it, and their errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.records.metric_files import read_curve

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", actors=1, envs=4, unroll=5, hidden=(8,), device="cpu", checkpoint_every=0.0
)  # fmt: skip


def test_they_see_the_rows_of_the_metric_files(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    other: list[int] = []

    def spoils(metrics: dict[str, Any]) -> None:
        other.append(metrics.pop("steps"))

    shoal.train(
        "impala", run_dir=tmp_path / "r", runtime="serial", steps=3_000, observers=[spoils, seen.append], **SMALL
    )
    rows = read_curve(tmp_path / "r")
    assert [m["steps"] for m in seen] == [r["steps"] for r in rows] == other and len(rows) >= 3
    for metrics, row in zip(seen, rows, strict=True):
        assert row.items() <= {k: float(f"{v:.8g}" if isinstance(v, float) else v) for k, v in metrics.items()}.items()
    assert {"loss", "episode_return", "steps_per_second", "seconds"} <= seen[-1].keys()


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_one_that_returns_true_ends_the_run_in_order(tmp_path: Path, runtime: str) -> None:
    asked: list[int] = []

    def enough(metrics: dict[str, Any]) -> Any:
        if metrics["steps"] >= 2_000:
            asked.append(metrics["steps"])
        return np.bool_(bool(asked))

    run = shoal.train(
        "impala", run_dir=tmp_path / "r", runtime=runtime, steps=50_000_000, observers=[len, enough], **SMALL
    )
    assert run.report is not None and run.report.reason == "observer"  # a number that is not True ended nothing
    assert asked[0] <= run.report.steps < 50_000_000
    assert json.loads((run.path / "report.json").read_text())["reason"] == "observer"
    again = shoal.resume(run.path, steps=run.report.steps + 200)
    assert again.report is not None and again.report.reason == "steps"


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_one_that_raises_ends_the_run_and_is_named(tmp_path: Path, runtime: str) -> None:
    calls: list[int] = []

    def careless(metrics: dict[str, Any]) -> None:
        calls.append(1)
        raise KeyError("no_such_metric")

    with pytest.raises(shoal.ShoalError, match=r"the observer '.*careless' raised KeyError: 'no_such_metric'") as info:
        shoal.train("impala", run_dir=tmp_path / "r", runtime=runtime, steps=50_000_000, observers=[careless], **SMALL)
    assert isinstance(info.value.__cause__, KeyError) and len(calls) == 1
    assert shoal.resume(tmp_path / "r", steps=10**6, seconds=600.0, observers=[lambda m: True]).report  # it was saved
