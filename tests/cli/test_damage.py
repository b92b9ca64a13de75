"""Files of a run that are damaged or gone: one sentence each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from restated import put, restate

import shoal
from shoal.analysis.directories import load as load_curve
from shoal.api import RoleFailed, ShoalError
from shoal.records import checkpoint
from shoal.records.run_dir import RunDirectory

from .conftest import FAKE


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "r"
    shoal.train(FAKE, env="CartPole-v1", runtime="serial", run_dir=path, steps=800, seed=7)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "r"))


def policy(run: Path) -> None:
    shoal.Run.open(run).policy(trust=True)


def resume(run: Path) -> None:
    shoal.resume(run, steps=900, trust=True)


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    "name, values, use",
    [
        ("config.json", {"system": 5}, policy),
        ("config.json", {"config": [1]}, policy),
        ("config.json", {"config": {"env": 3}}, policy),
        ("config.json", {"config": {"env": "CartPole-v1", "envs": "many"}}, policy),
        ("config.json", {"stop": {}}, resume),
        ("config.json", {"evaluation": {"when": 3}}, resume),
        ("config.json", {"checkpoint": 3}, resume),
        ("config.json", {"origins": 3}, resume),
        ("config.json", {"actors": "two"}, resume),
        ("report.json", {"steps": "many"}, shoal.Run.open),
        ("report.json", {"reason": None}, shoal.Run.open),
        ("params.json", {"channels": 5}, policy),
        ("params.json", {"channels": {"params": {"file": 5}}}, policy),
        ("params.json", {"updates": "x"}, policy),
    ],
)
def test_damaged_values(run: Path, name: str, values: dict[str, Any], use: Any) -> None:
    change(run / name, **values)
    with pytest.raises(ShoalError) as caught:
        use(run)
    told = str(caught.value)
    assert name in told and "\n" not in told


@pytest.mark.parametrize("name", ["config.json", "report.json", "params.json"])
@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"null"])
def test_files_that_hold_something_else(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    with pytest.raises(ShoalError, match=rf"{name} is damaged") as caught:
        policy(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["metrics.csv", "metrics.jsonl", "performance.csv", "episodes.csv"])
@pytest.mark.parametrize("content", [None, b"", b"row\nx\n", b"\xff\xfe\n{]\n"])
def test_metric_files(run: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    damaged = content is None or not name.endswith("jsonl") or content.endswith(b"{]\n")
    if damaged:
        with pytest.raises(ShoalError, match=name.replace(".", r"\.")) as caught:
            resume(run)
        assert "\n" not in str(caught.value)
        assert (run / "params.json").exists(), "nothing else of the run has changed"
    if name in ("metrics.csv", "performance.csv"):
        with pytest.raises(ShoalError, match=r"no learning curve|metrics\.csv|performance\.csv"):
            load_curve(run)


def test_a_checkpoint_without_its_manifest_is_named_and_set_aside(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path,) = (run / checkpoint.FOLDER).iterdir()
    (path / "manifest.json").unlink()
    with pytest.raises(ShoalError, match="has no checkpoint to resume from: all 1 are damaged"):
        resume(run)
    assert f"'{path}' is damaged: it has no manifest.json" in caplog.text
    assert [p.name.startswith("damaged-") for p in path.parent.iterdir()] == [True]


def newest(run: Path) -> checkpoint.Checkpoint:
    return checkpoint.newest(run / checkpoint.FOLDER)


STATES: dict[str, tuple[str, Any]] = {
    "a count that is text": ("run", put("aggregator", "counts", "env_steps", "many")),
    "a negative count": ("run", put("aggregator", "counts", "env_steps", -1)),
    "a count beyond all": ("run", put("aggregator", "counts", "env_steps", 2**100)),
    "a total that is a list": ("run", put("totals", "learner", {"updates": [1]})),
    "no counts": ("run", put("aggregator", 5)),
    "a window that is a number": ("run", put("aggregator", "window", 5)),
    "the seconds of a string": ("run", put("aggregator", "seconds", "long")),
    "no list": ("run", lambda state: state.clear()),
    "random numbers of nobody": ("run", put("random", "python", [3, [1, 2], None])),
    "a generator of another shape": ("run", put("random", "torch", torch.zeros(3))),
    "parameters of another shape": ("params-params", put("tensors", {"w": torch.zeros(2, 2)})),
    "a version below none": ("params-params", put("version", -3)),
    "versions of nothing": ("params-params", put("older", [5])),
}


@pytest.mark.parametrize("part, change", STATES.values(), ids=STATES)
def test_a_state_that_fits_its_manifest_and_means_nothing_is_told_of_in_a_sentence(
    run: Path, part: str, change: Any
) -> None:
    before = restate(run, part, change)
    with pytest.raises(ShoalError) as caught:
        resume(run)
    told = str(caught.value)
    assert f"the checkpoint '{before}' is damaged: '{part}'" in told and "\n" not in told and len(told) < 600
    assert not isinstance(caught.value, shoal.UsageError)
    assert before.is_dir(), "where none can be loaded, none is set aside"


def test_where_a_state_cannot_be_loaded_the_run_goes_on_from_the_one_before(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resume(run)
    assert newest(run).steps >= 900
    rows = (run / "metrics.csv").read_bytes()
    path = restate(run, "run", put("aggregator", "counts", {"env_steps": -1}))
    again = shoal.resume(run, steps=1000, trust=True)
    assert f"'{path}' is damaged: 'run'" in caplog.text and "trying the one before" in caplog.text
    assert again.report is not None and again.report.steps >= 1000 and newest(run).steps >= 1000
    assert not path.exists() and [*path.parent.glob(f"damaged-{path.name}-*")]
    found = [line.split(",")[0] for line in (run / "metrics.csv").read_text().splitlines()]
    assert found == ["row", *map(str, range(1, len(found)))], rows


def test_a_role_that_fails_from_a_checkpoint_on_is_told_of_in_a_sentence(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state may have been loaded, and mean nothing."""

    def sweep(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("shoal.serial.runtime._Run._sweep", sweep)
    with pytest.raises(ShoalError, match=r"cannot go on from the checkpoint '.*': KeyError: 'x' \(") as caught:
        resume(run)
    assert "\n" not in str(caught.value) and "Traceback" in (run / "logs" / "run.log").read_text()


def test_a_failed_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its directory, with what it had done."""
    cause = RoleFailed("learner", 0, 0, -9, "killed by SIGKILL")

    def update(self: RunDirectory, snapshot: Any) -> None:
        before(self, snapshot)
        if snapshot.steps >= 500:
            raise cause

    before = RunDirectory.update
    monkeypatch.setattr(RunDirectory, "update", update)
    with pytest.raises(RoleFailed):
        shoal.train(FAKE, env="CartPole-v1", runtime="serial", run_dir=tmp_path / "r", steps=4_000)
    report = shoal.Run.open(tmp_path / "r").report
    assert report is not None and report.reason == "failed" and report.steps >= 500
    assert report.error.startswith("learner[0] (generation 0) failed with exit code -9")
