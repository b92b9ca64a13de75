"""A checkpoint that matches its manifest and whose state means nothing, in runs of several processes: one sentence, and
the run goes on from the checkpoint before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from restated import put, restate

import shoal
from shoal.api import ShoalError
from shoal.records import checkpoint
from shoal.records.checkpoint import Checkpoint, Unloadable
from shoal.records.report import Report
from shoal.runtime.launch import CannotGoOn, Launch, run_from_newest

SMALL: dict[str, Any] = dict(env="CartPole-v1", runtime="local", preset="none", actors=1, envs=2, hidden=(4,), unroll=5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints."""
    path = tmp_path_factory.mktemp("runs") / "r"
    shoal.train("impala", run_dir=path, steps=300, **SMALL)
    shoal.resume(path, steps=600)
    assert len([*(path / checkpoint.FOLDER).iterdir()]) == 2
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose parameters no replica saves."""
    path = tmp_path_factory.mktemp("runs") / "s"
    shoal.train("a3c", run_dir=path, steps=300, **{**SMALL, "actors": 2, "envs": 1})
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "r"))


AVERAGES = "role", "learner", "optimiser", "state", 0
STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a negative count": ("run", put("counts", "actor", 0, 0, -1)),
    "counts of too few replicas": ("run", put("counts", "actor", [])),
    "no learner": ("role-learner-0", put("role", {})),
    "averages of another shape": ("role-learner-0", put(*AVERAGES, "exp_avg", torch.zeros(3))),
    "averages that are a list": ("role-learner-0", put(*AVERAGES, [1])),
    "parameters of another shape": ("params-params", lambda state: state["tensors"].update(
        {name: torch.zeros(2) for name in state["tensors"]})),
}  # fmt: skip


@pytest.mark.parametrize("part, change", STATES.values(), ids=STATES)
def test_a_run_of_processes_goes_on_from_the_checkpoint_before_one_that_means_nothing(
    run: Path, part: str, change: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = restate(run, part, change)
    again = shoal.resume(run, steps=700, trust=True)
    assert f"the checkpoint '{path}' is damaged: '{part}'" in caplog.text and "trying the one before" in caplog.text
    assert "Traceback" not in caplog.text
    assert again.report is not None and again.report.steps >= 700
    assert not path.exists() and [*path.parent.glob(f"damaged-{path.name}-*")]
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()[1:]]
    steps = [int(row[1]) for row in rows]
    assert [row[0] for row in rows] == [str(n) for n in range(1, len(rows) + 1)] and steps == sorted(steps)


@pytest.mark.parametrize("part", ["role-learner-0", "run", "params-params"])
def test_where_no_checkpoint_can_be_loaded_there_is_one_sentence_and_none_is_set_aside(run: Path, part: str) -> None:
    older = min((run / checkpoint.FOLDER).iterdir())
    shutil.rmtree(older)
    path = restate(run, part, put("role", {}) if part.startswith("role") else lambda state: state.clear())
    with pytest.raises(ShoalError) as caught:
        shoal.resume(run, steps=700, trust=True)
    told = str(caught.value)
    assert f"the checkpoint '{path}' is damaged: '{part}'" in told and "\n" not in told and len(told) < 600
    assert [*path.parent.iterdir()] == [path]


def test_a_checkpoint_that_lacks_what_a_role_had_saved_is_not_a_beginning(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = checkpoint.newest(run / checkpoint.FOLDER)
    for name in [name for name in found.manifest["files"] if name.startswith("role-learner")]:
        del found.manifest["files"][name]
    (found.path / "manifest.json").write_text(json.dumps(found.manifest))
    assert shoal.resume(run, steps=700, trust=True).report is not None
    assert "it has no part 'role-learner-0'" in caplog.text and not found.path.exists()


@pytest.mark.parametrize(
    "change",
    [
        put("steps", [1] * 100), put("steps", [-5, 1]), put("steps", ["x", 1]), put("statistics", {}),
        lambda state: state["tensors"].update({name: torch.zeros(()) for name in state["tensors"]}),
    ],
)  # fmt: skip
def test_shared_parameters_are_loaded_only_where_they_fit(
    shared: Path, change: Callable[[Any], Any], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(shared, tmp_path / "s"))
    restate(run, "params-params", change)
    with pytest.raises(Unloadable, match=r"'params-params' does not fit: \w+: "):
        shoal.resume(run, steps=700, trust=True)


def test_a_role_that_fails_in_its_process_from_a_checkpoint_on_is_told_of_in_a_sentence(run: Path) -> None:
    """Its state was loaded, and may mean nothing; its traceback is in its log."""
    restate(run, "role-learner-0", put("role", "learner", "step", "x"))
    with pytest.raises(ShoalError) as caught:
        shoal.resume(run, steps=700, trust=True)
    told = str(caught.value)
    assert "the run cannot go on from the checkpoint '" in told and "Traceback" not in told
    assert "Traceback" in (run / "logs" / "learner-0.log").read_text()


def test_a_run_does_not_go_back_once_its_state_is_loaded(run: Path) -> None:
    newest = checkpoint.newest(run / checkpoint.FOLDER)
    backs: list[Checkpoint] = []
    launch = Launch(resume=newest, went_back=backs.append)

    def late(from_this: Launch) -> Report:
        from_this.loaded()
        raise Unloadable(newest, "late")

    with pytest.raises(Unloadable, match="late"):
        run_from_newest(launch, late)
    assert not backs and newest.path.is_dir()

    def first(from_this: Launch) -> Report:
        if from_this.resume is newest:
            raise Unloadable(newest, "early")
        assert not backs and newest.path.is_dir(), "nothing is done before another is loaded"
        from_this.loaded()
        assert [back.path for back in backs] == [newest.before().path] and not newest.path.exists()  # type: ignore[union-attr]
        return replace(Report("steps", 0, 0, 0.0, 0.0, 0), steps=5)

    assert run_from_newest(launch, first).steps == 5
    assert not isinstance(CannotGoOn(newest, KeyError("x")), Unloadable)
