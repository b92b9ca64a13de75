"""The SAC and TD3 of ``examples/``: their first actions and first updates, in seconds. tests/docs/test_examples.py, of
the long tier, checks that they learn."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import shoal

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("example", ["own_sac.py", "own_td3.py"])
def test_an_example_acts_and_updates(example: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(
        env="Pendulum-v1", preset="none", runtime="serial", total_envs=1, unroll=8, hidden=(8,), batch=8, min_replay=16,
        replay=200, samples_per_insert=8.0, device="cpu", seed=1,
    )  # fmt: skip
    first = shoal.train(str(EXAMPLES / example), steps=8, run_dir=tmp_path / "acted", **settings)
    assert first.report is not None and first.report.updates == 0
    run = shoal.train(str(EXAMPLES / example), steps=256, run_dir=tmp_path / "updated", **settings)
    before, after = (load_file(tmp_path / name / "params-params.safetensors") for name in ("acted", "updated"))
    assert run.report is not None and run.report.steps >= 256 and run.report.updates >= 100
    trained = {"policy", "critics", "log_alpha"} & {name.split(".")[0] for name in before}
    assert {"policy", "critics"} <= trained
    for part in trained:
        assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith(part)), part
    assert all(bool(torch.isfinite(value).all()) for value in after.values())
    with (tmp_path / "updated" / "episodes.csv").open(encoding="utf-8") as file:
        returns = [float(row["return"]) for row in csv.DictReader(file)]
    assert len(returns) == 1 and -2_000.0 < returns[0] < 0.0  # Pendulum's range, of an episode of 200 steps
    played = run.policy().evaluate(1, seed=3)
    assert len(played) == 1 and np.isfinite(played).all()
