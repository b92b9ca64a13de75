"""Parameters of a run that goes on can be evaluated, long before its first checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.records.param_files import NEWEST, load_params
from shoal.records.publication import Publication
from shoal.records.report import Report

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", actors=1, envs=2, unroll=5, hidden=(8,), device="cpu", checkpoint_every=0.0
)  # fmt: skip


def report(updates: int, value: float) -> Report:
    return Report("", 10 * updates, updates, 1.0, 1.0, 1, {"params": {"w": torch.full((2,), value)}})


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_the_newest_parameters_of_a_run_that_goes_on_are_played(runtime: str, tmp_path: Path) -> None:
    path, found = tmp_path / "r", []

    def look(row: Any) -> bool:
        if (path / NEWEST / "params.json").is_file():
            found.append(shoal.evaluate(path, episodes=1, envs=1))
        return bool(found)

    run = shoal.train("impala", run_dir=path, runtime=runtime, steps=10**7, observers=look, **SMALL)
    assert len(found[0]) == 1 and run.report is not None and run.report.reason == "observer"
    assert not (path / NEWEST).exists() and run.policy().version == run.report.updates


def test_what_is_newer_is_read_of_a_run_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "r"
    shoal.train("impala", run_dir=path, runtime="serial", steps=100, **SMALL)
    (path / "params.json").unlink()  # as before its end; its checkpoint is there
    of_checkpoint = load_params(path, "params")[0]
    for newer in (True, False):
        updates = of_checkpoint + (1 if newer else -1)
        Publication(path).look(lambda n=updates: report(n, 3.0))  # type: ignore[misc]
        version, params = load_params(path, "params")
        assert version == max(updates, of_checkpoint) and ("w" in params) == newer
        shutil.rmtree(path / NEWEST)


def test_a_run_that_goes_on_again_forgets_what_it_published_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "r"
    shoal.train("impala", run_dir=path, runtime="serial", steps=100, **SMALL)
    Publication(path).look(lambda: report(9_999, 3.0))
    run = shoal.resume(path, steps=200)
    assert run.report is not None and run.policy().version == run.report.updates != 9_999


def test_nothing_is_published_before_there_are_parameters(tmp_path: Path) -> None:
    Publication(tmp_path).look(lambda: Report("", 0, 0, 0.0, 0.0, 0))
    assert not (tmp_path / NEWEST).exists()
    with pytest.raises(shoal.UsageError, match="published none yet, and has no checkpoint"):
        load_params(tmp_path)
