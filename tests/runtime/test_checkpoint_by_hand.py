"""Checkpoints and run directories, by hand: which are kept, found, refused and forgotten, and what goes on after
them."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from programs import Wired

from shoal.api import Field, UsageError
from shoal.metering.aggregator import Aggregator, Snapshot
from shoal.program import Channel
from shoal.records import checkpoint, checkpoint_params, run_dir
from shoal.records.checkpoint import SPARE_DISK_BYTES, Checkpoint, SaveOptions
from shoal.records.checkpoint_state import pack
from shoal.records.param_files import NEWEST, load_params, save_params
from shoal.records.presence import DirectoryGone, Presence
from shoal.records.report import Report
from shoal.records.run_dir import RunDirectory
from shoal.records.run_lock import RunLock
from shoal.untrusted import MAX_COUNTER

FACTS = {"steps": 0, "updates": 0, "row": 0, "launch": 0, "seconds": 0.0}


def save(saving: SaveOptions, parts: dict[str, Any], channels: dict[str, Any] | None = None, **facts: Any) -> Path:
    """A checkpoint of these parts."""
    folder = checkpoint.begin(saving, 1)
    files = checkpoint.add(folder, {name: pack(state) for name, state in parts.items()})
    program = {"roles": {}, "channels": channels or {}}
    return checkpoint.commit(folder, saving, files, {**FACTS, "program": program, **facts})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------ checkpoints
def test_a_replay_is_left_out_if_it_may_grow_beyond_the_limit() -> None:
    """Here by 100 bytes of each writer; as many as the limit are saved."""
    table = cast("Any", SimpleNamespace(nbytes=lambda spec, writers: 100 * writers))
    channel = Channel("c", "replay", {"x": Field((1,))}, table=table)
    saving = SaveOptions(Path("x"), replay_bytes=300.0)
    assert [saving.leaves_out(channel, writers) for writers in (1, 3, 4)] == [False, False, True]
    assert not saving.leaves_out(Channel("c", "queue", {"x": Field((1,))}), 99)


@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_checkpoints_are_kept_and_those_the_newest(keep: int, tmp_path: Path) -> None:
    saving = SaveOptions(tmp_path / "checkpoints", keep=keep)
    for steps in (100, 200, 200, 300, 400):
        save(saving, {"run": {}}, steps=steps)
    whole = ["000000000200.1", "000000000300", "000000000400"]
    assert names(saving.folder) == whole[-keep:]


def test_the_checkpoint_before_one_is_another_one(tmp_path: Path) -> None:
    saving = SaveOptions(tmp_path / "checkpoints", keep=9)
    for steps in (100, 200, 200):
        save(saving, {"run": {}}, steps=steps)
    found: list[str] = []
    at: Checkpoint | None = checkpoint.newest(saving.folder)
    while at is not None:
        found.append(at.path.name)
        at = at.before()
    assert found == ["000000000200.1", "000000000200", "000000000100"]


def test_a_checkpoint_leaves_64_mebibytes_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack({"w": torch.zeros(1000)})
    free = packed.nbytes + 64 * 2**20
    assert 4000 <= packed.nbytes < 5000 and SPARE_DISK_BYTES == 64 * 2**20
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert sorted(checkpoint.add(tmp_path, {"part": packed})) == ["part.json", "part.safetensors"]
    free -= 1
    (tmp_path / "other").mkdir()
    with pytest.raises(OSError, match="it needs 67 MB of disk, 67 MB are free"):
        checkpoint.add(tmp_path / "other", {"part": packed})
    assert names(tmp_path / "other") == []


def test_a_manifest_says_how_far_the_run_was() -> None:
    run = Aggregator()
    run.counts, run.row = {"env_steps": 70, "updates": 6}, 9
    found = checkpoint.facts(SaveOptions(Path("x"), launch=4), cast("Any", Wired()), run)
    assert found.pop("seconds") >= 0.0
    assert found == {"steps": 70, "updates": 6, "row": 9, "launch": 4, "program": {"roles": {}, "channels": {}}}


def test_nothing_is_saved_into_a_directory_that_has_taken_the_place_of_the_runs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    saving = SaveOptions(run / "checkpoints", present=Presence(run))
    run.rename(tmp_path / "moved")
    run.mkdir()
    with pytest.raises(DirectoryGone, match="another one now"):
        checkpoint.begin(saving, 1)
    assert names(run) == []


def test_no_two_launches_write_into_one_folder(tmp_path: Path) -> None:
    folders = [checkpoint.begin(SaveOptions(tmp_path / "c", launch=launch), n) for launch in (0, 1) for n in (1, 2, 11)]
    assert len(set(folders)) == 6 and not checkpoint.completed(tmp_path / "c")


def test_the_parts_of_divided_parameters_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Of 22 numbers, each of 11 writers has saved two: also 10 comes behind 9, and not behind 1."""
    saving = SaveOptions(tmp_path / "checkpoints")
    parts = {f"params-w.{n}": {"tensors": {"flat": torch.tensor([2.0 * n, 2.0 * n + 1])}} for n in range(11)}
    save(saving, parts, {"w": {"a": "float32 [4, 4]", "b": "float32 [6]"}}, steps=1, updates=5)
    for channel in (None, "w"):
        updates, params = checkpoint_params.newest_params(saving.folder, channel) or (0, {})
        assert updates == 5 and params["a"].tolist() == torch.arange(16.0).view(4, 4).tolist()
        assert params["b"].tolist() == [16.0, 17.0, 18.0, 19.0, 20.0, 21.0]


def test_a_counter_may_be_as_large_as_a_float_holds_and_not_less_than_nothing(tmp_path: Path) -> None:
    saving = SaveOptions(tmp_path / "checkpoints")
    file = save(saving, {"run": {}}) / "manifest.json"
    manifest = json.loads(file.read_text())
    for name in FACTS:
        for number, fits in ((0, True), (MAX_COUNTER, True), (MAX_COUNTER + 1, False), (-1, False), ("1", False)):
            file.write_text(json.dumps({**manifest, name: number}))
            assert (checkpoint.newest_with(saving.folder, "run") is not None) == fits, (name, number)


@pytest.mark.parametrize("published, found", [(None, 5), (4, 5), (6, 6)])
def test_of_a_run_that_was_killed_the_newer_parameters_are_read(
    published: int | None, found: int, tmp_path: Path
) -> None:
    """Those of its newest checkpoint, or those that it published."""
    save(
        SaveOptions(tmp_path / "checkpoints"),
        {"params-w": {"tensors": {"w": torch.tensor([5.0])}}},
        steps=9,
        updates=5,
    )
    if published is not None:
        (tmp_path / NEWEST).mkdir()
        tensors = {"w": {"w": torch.tensor([float(published)])}}
        save_params(tmp_path / NEWEST, Report("", 9, published, 0.0, 0.0, 0, tensors))
    updates, params = load_params(tmp_path)
    assert (updates, params["w"].tolist()) == (found, [float(found)])


# ------------------------------------------------------------------------------------ directories
def test_runs_that_start_in_the_same_second_are_numbered_from_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir.time, "strftime", lambda *given: "NOW")
    for k in range(4):
        with run_dir.new_directory("dqn", "My/Env-v0", 7, tmp_path) as path:
            (path / "config.json").touch()
            assert path.name == "dqn-My-Env-v0-NOW-7" + ("" if k == 0 else f"-{k + 1}")


def snapshot(row: int, steps: int, **given: Any) -> Snapshot:
    zeros = dict.fromkeys(("seconds", "updates", "step_rate", "update_rate", "episodes"), 0)
    return Snapshot(**{**zeros, "episode_return": 0.0, "episode_length": 0.0, "row": row, "steps": steps, **given})


@contextmanager
def made(path: Path, rows: int = 3) -> Iterator[RunDirectory]:
    """A run of so many rows, of 10 steps each, that ended; opened again."""
    directory = RunDirectory(path)
    directory.describe({"config": {"rate": 1}}, {}, {})
    for row in range(1, rows + 1):
        directory.update(snapshot(row, 10 * row))
    (path / "report.json").write_text('{"reason": "steps"}')
    (path / "params.json").write_text("{}")
    directory.close()
    directory = RunDirectory.reopen(path, trust=False)
    try:
        yield directory
    finally:
        directory.close()


def behind(path: Path, row: int, launch: int) -> Checkpoint:
    return Checkpoint(path / "checkpoints" / "1", {"row": row, "launch": launch, "steps": 10 * row})


def test_a_run_goes_on_behind_the_row_of_its_checkpoint_as_the_next_launch(tmp_path: Path) -> None:
    with made(tmp_path) as directory:
        assert directory.lock.launch == 1
        directory.go_on(behind(tmp_path, row=2, launch=5))
        assert directory.lock.launch == 6, "what the lock's file knows is less: it was lost"
        directory.update(snapshot(3, 25))
    rows = [line.split(",")[:2] for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    assert rows == [["row", "steps"], ["1", "10"], ["2", "20"], ["3", "25"]]


def test_how_a_run_ended_is_forgotten_with_the_first_row_after(tmp_path: Path) -> None:
    ended = {"report.json", "params.json"}
    with made(tmp_path) as directory:
        directory.go_on(behind(tmp_path, row=3, launch=0))
        assert ended.issubset(names(tmp_path))
        directory.update(snapshot(4, 40))
        assert ended.isdisjoint(names(tmp_path))


def test_a_run_without_a_step_has_not_advanced(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r")
    found = [directory.advanced]
    for row, steps in ((1, 0), (2, 1)):
        directory.update(snapshot(row, steps))
        found.append(directory.advanced)
    directory.close()
    assert found == [False, False, True]


@pytest.mark.parametrize("went_on", [False, True])
def test_new_settings_are_kept_once_the_run_has_gone_on_with_them(went_on: bool, tmp_path: Path) -> None:
    with made(tmp_path) as directory:
        directory.go_on(behind(tmp_path, row=3, launch=0))
        directory.describe({"config": {"rate": 2}}, {}, {})
        if went_on:
            directory.update(snapshot(4, 40))
        directory.failed(UsageError("this cannot be"))
    assert json.loads((tmp_path / "config.json").read_text())["config"] == {"rate": 2 if went_on else 1}
    assert json.loads((tmp_path / "report.json").read_text())["error"] == "this cannot be"


def test_a_lock_counts_the_launches_of_its_run_and_never_back(tmp_path: Path) -> None:
    file = tmp_path / "run.lock"

    def launched(*known: int) -> int:
        lock = RunLock(tmp_path)
        try:
            for launch in known:
                lock.at_least(launch)
            assert json.loads(file.read_text())["launch"] == lock.launch
            return lock.launch
        finally:
            lock.release()

    assert [launched(), launched(), launched(3), launched(3, 5, 4)] == [0, 1, 3, 5]
    file.write_text(json.dumps({"launch": 8}) + " " * 300 + "and more")
    assert launched() == 0, "what somebody else has put there is no lock's"
    assert file.stat().st_size == 65


def test_a_disk_that_is_full_costs_rows_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = RunDirectory(tmp_path / "r")
    assert directory._files is not None
    write = directory._files.update
    for full in (True, True, False, False, True):
        monkeypatch.setattr(directory._files, "update", _fail if full else write)
        directory.update(snapshot(1, 1))
    directory.close()
    told = [record.getMessage().partition(" to ")[0] for record in caplog.records if record.name == "shoal.runtime"]
    assert told == ["cannot write metrics", "metrics are written", "cannot write metrics"]


def _fail(snapshot: Snapshot) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
