"""Files of a run are written whole or not at all, and read as they were written."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from shoal import untrusted
from shoal.api import ShoalError, UsageError
from shoal.metering.aggregator import Aggregator
from shoal.metering.recorder import Telemetry
from shoal.records import param_files, run_dir
from shoal.records.atomic_write import write_atomic
from shoal.records.evaluation_files import EvaluationFiles
from shoal.records.param_files import load_params, save_params
from shoal.records.report import Report
from shoal.records.run_dir import RunDirectory
from shoal.untrusted import require_plain


def report() -> Report:
    run = Aggregator()
    run.add("actor", Telemetry(counts={"env_steps": 30, "updates": 4}, episodes=[(2.0, 7), (4.0, 8)]))
    run.restarts = 1
    return Report.of("steps", run, {"params": {"w": torch.arange(3.0)}})


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_whole_or_what_it_was(tmp_path: Path, sync: bool) -> None:
    file = tmp_path / "file"
    write_atomic(file, "one\n", sync)
    write_atomic(file, b"\x00two", sync)
    assert file.read_bytes() == b"\x00two"
    with pytest.raises(UnicodeEncodeError):
        write_atomic(file, "\ud800", sync)
    assert file.read_bytes() == b"\x00two" and list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_leaves_no_part_of_itself(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    for name in ("config.json", "params.json", "best"):
        (directory.path / name).mkdir()
    (directory.path / "best" / "params.json").mkdir()
    with pytest.raises(ShoalError, match=r"cannot write '.*config\.json'"):
        directory.describe({}, {}, {})
    with pytest.raises(ShoalError, match="what was learnt cannot be saved"):
        directory.finish(report())
    with pytest.raises(IsADirectoryError):
        EvaluationFiles(directory.path, "params").add(1, 1, [1.0], {"w": torch.zeros(1)})
    directory.close()
    assert not [path for path in directory.path.rglob("*") if path.suffix == ".tmp"]


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    ended = report()
    assert (ended.steps, ended.updates, ended.episodes, ended.restarts) == (30, 4, 2, 1) and ended.episode_return == 3.0
    facts = json.loads(json.dumps(ended.to_json()))
    found = Report.from_json(facts)
    assert found.to_json() == facts and "error" not in facts
    none = Report("failed", 0, 0, 0.0, math.nan, 0, error="why")
    assert none.to_json()["episode_return"] is None and Report.from_json(none.to_json()).error == "why"


def test_parameters_and_the_best_ones_have_one_kind_of_index(tmp_path: Path) -> None:
    ended = report()
    save_params(tmp_path, ended)
    EvaluationFiles(tmp_path, "params").add(30, 4, [1.0, 2.0], ended.params["params"])
    last, best = (json.loads((path / "params.json").read_text()) for path in (tmp_path, tmp_path / "best"))
    assert (
        last["channels"]["params"]["tensors"] == best["channels"]["params"]["tensors"] == {"w": ["torch.float32", [3]]}
    )
    assert last.keys() < best.keys() and best.keys() - last.keys() == {"score", "episodes"}
    for path in (tmp_path, tmp_path / "best"):
        updates, params = load_params(path)
        assert updates == 4 and params["w"].tolist() == [0.0, 1.0, 2.0]


# ------------------------------------------------------------------- read while a run goes on
def test_parameters_that_a_run_has_moved_meanwhile_are_read_where_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends between the look at ``newest`` and the reading of its file."""
    (tmp_path / param_files.NEWEST).mkdir()
    save_params(tmp_path / param_files.NEWEST, report())
    load, ended = param_files._load_params, list[Any]()

    def slowly(path: Path, channel: str | None) -> Any:
        if path.name == param_files.NEWEST and not ended:
            ended.append(True)
            save_params(tmp_path, report())
            shutil.rmtree(path)
        return load(path, channel)

    monkeypatch.setattr(param_files, "_load_params", slowly)
    updates, params = load_params(tmp_path)
    assert ended and updates == 4 and params["w"].tolist() == [0.0, 1.0, 2.0]


def test_parameters_that_are_not_there_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock(side_effect=param_files._load_params)
    monkeypatch.setattr(param_files, "_load_params", calls)
    with pytest.raises(UsageError, match="published none yet"):
        load_params(tmp_path)
    assert calls.call_count == 1


def test_a_directory_may_be_looked_through_while_a_run_removes_files_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "checkpoints" / name for name in ("000000000001", "000000000002")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    (tmp_path / "live.json").touch()
    scan = os.scandir

    def slowly(path: Any) -> Any:
        if isinstance(path, int):  # of what removes
            return scan(path)
        with scan(path) as entries:
            found = list(entries)
        if Path(path) == tmp_path:
            (tmp_path / "live.json").unlink()
        if Path(path) == tmp_path / "checkpoints":
            shutil.rmtree(folders[0])
        return contextlib.nullcontext(found)

    monkeypatch.setattr(untrusted.os, "scandir", slowly)
    require_plain(tmp_path, trust=False)
    assert not folders[0].exists() and folders[1].exists() and not (tmp_path / "live.json").exists()
    with pytest.raises(FileNotFoundError):
        require_plain(tmp_path / "gone", trust=False)


def test_a_new_run_in_the_directory_of_one_that_goes_on_is_told_whose_it_is(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path)
    with pytest.raises(UsageError, match=rf"is still going on \(process {os.getpid()}\)"):
        RunDirectory(tmp_path)
    first.close()
    with pytest.raises(UsageError, match="never overwrites another"):
        RunDirectory(tmp_path)


@pytest.mark.parametrize("moment", ["RunLock", "MetricFiles", "RunLog"])
def test_an_interrupt_while_the_directory_is_made_leaves_none(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ``train`` nor ``resume`` could do anything with a part of one."""

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_dir, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        RunDirectory(tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_run_that_ends_before_it_is_described_leaves_nothing(tmp_path: Path) -> None:
    for name in ("new", "made"):
        if name == "made":
            (tmp_path / name).mkdir()
        directory = RunDirectory(tmp_path / name)
        directory.failed(KeyboardInterrupt())
        directory.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["made"]


def test_the_directory_of_another_run_that_has_just_begun_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands found no directory there; the second finds the lock of the first."""
    first = RunDirectory(tmp_path / "r")
    monkeypatch.setattr(run_dir, "require_unlocked", lambda path: None)
    monkeypatch.setattr(run_dir, "require_new", lambda path, why: None)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with pytest.raises(UsageError, match="still going on"):
        RunDirectory(tmp_path / "r")
    monkeypatch.undo()
    assert (tmp_path / "r/metrics.csv").is_file()
    first.close()
