"""A run that ends without a single update says so, and what would have sufficed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal

DQN: dict[str, Any] = dict(envs=2, unroll=8, hidden=(8,), batch=8)


@pytest.mark.parametrize(
    ("system", "fields", "says"),
    [
        ("dqn", dict(DQN, min_replay=5_000), "updates begin with 5,000 items in the replay"),
        (
            "impala",
            dict(envs=2, unroll=64, hidden=(8,), actors=1, batch=8),
            "smaller values of unroll, batch, envs or total_envs",
        ),
        ("es", dict(pairs=64, envs=4), "more steps, or fewer pairs, make some"),
        ("dqn", dict(DQN, min_replay=100), None),
    ],
)
def test_a_run_without_an_update_says_what_would_have_sufficed(
    system: str, fields: dict[str, Any], says: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shoal.train(system, env="CartPole-v1", runtime="serial", steps=300, run_dir=tmp_path / "r", **fields)
    told = [record.getMessage() for record in caplog.records if "nothing was learned" in record.getMessage()]
    assert run.report is not None and bool(run.report.updates) == (says is None)
    assert len(told) == (says is not None) and all(str(says) in line for line in told)
