"""States as files, and which checkpoint of a run is chosen."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from programs import pipeline
from states import same

from shoal.api import Field, ShoalError, UsageError
from shoal.program import Channel
from shoal.records import checkpoint, checkpoint_state as state_files, run_lock
from shoal.records.checkpoint import SaveOptions
from shoal.records.run_lock import RunLock, is_locked


# ----------------------------------------------------------------------------------------- states
def state() -> dict[str, Any]:
    net = torch.nn.Linear(3, 4)
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 3)).sum().backward()
    optimiser.step()
    return {
        "nets": net.state_dict(),
        "optimiser": optimiser.state_dict(),  # with integer keys and tuples
        "numpy": np.random.default_rng(3).bit_generator.state,  # with integers of 128 bits
        "torch": torch.Generator().manual_seed(3).get_state(),
        "strided": np.arange(24, dtype=np.uint64).reshape(4, 6)[1:, ::2],
        "empty": np.zeros((0, 3), np.float32),
        "half": torch.tensor(1.5, dtype=torch.bfloat16),
        "flags": [np.array([True, False]), None, (1, (2.5, "x"))],
        "nan": [math.nan, math.inf],
        "$": {"$": "a mark"},
    }


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    given = state()
    written = state_files.write(state_files.pack(given), tmp_path, "x")
    assert {name: state_files.hash_file(tmp_path / name) for name in os.listdir(tmp_path)} == written
    found = state_files.read(tmp_path, "x")
    same(given, found)
    found["strided"][0, 0] += 1  # it is the caller's own
    json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(ShoalError, match=r"'/agent/rng' is a Generator"):
        state_files.pack({"agent": {"rng": np.random.default_rng(0)}})
    with pytest.raises(ShoalError, match=r"arrays of object: '/a'"):
        state_files.pack({"a": np.array([{}, None])})


# ------------------------------------------------------------------------------------ checkpoints
def make(run: Path, steps: int, keep: int = 2) -> Path:
    saving = SaveOptions(run / checkpoint.FOLDER, keep=keep)
    folder = checkpoint.begin(saving, 1)
    files = checkpoint.add(folder, {"run": state_files.pack({"steps": steps, "array": np.full(9, steps)})})
    program = checkpoint.shape_of(pipeline())
    facts = {"steps": steps, "updates": steps // 2, "seconds": 1.0, "row": 1, "launch": 0, "program": program}
    return checkpoint.commit(folder, saving, files, facts)


def newest(run: Path) -> int:
    return int(checkpoint.newest(run / checkpoint.FOLDER).read("run")["steps"])


def test_the_newest_is_chosen_and_the_last_two_are_kept(tmp_path: Path) -> None:
    for steps in (5, 90, 1000, 1000, 1000):
        made = make(tmp_path, steps)
    kept = sorted(os.listdir(tmp_path / checkpoint.FOLDER))
    assert kept == ["000000001000.1", "000000001000.2"] and made.name == kept[-1]
    assert newest(tmp_path) == 1000
    assert (tmp_path / checkpoint.FOLDER).stat().st_mode & 0o777 == 0o700


def test_an_unfinished_one_is_never_chosen(tmp_path: Path) -> None:
    make(tmp_path, 10)
    folder = checkpoint.begin(SaveOptions(tmp_path / checkpoint.FOLDER), 7)  # a run killed before its manifest
    checkpoint.add(folder, {"run": state_files.pack({"steps": 20})})
    assert newest(tmp_path) == 10
    checkpoint.clean(tmp_path / checkpoint.FOLDER)
    assert not folder.exists()


def test_nothing_else_is_ever_discarded(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    for path in (tmp_path, Path(), make(tmp_path, 10), tmp_path / checkpoint.FOLDER):
        with pytest.raises(ValueError, match="not the folder of an unfinished checkpoint"):
            checkpoint.discard(path)
    assert (tmp_path / "mine").exists() and newest(tmp_path) == 10


def flip(path: Path) -> None:
    data = bytearray((path / "run.safetensors").read_bytes())
    data[-3] ^= 1
    (path / "run.safetensors").write_bytes(data)


def rewrite(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Edits the manifest."""

    def apply(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        change(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))

    return apply


def link(path: Path) -> None:
    shutil.move(path / "run.json", path.parent.parent / "elsewhere.json")
    (path / "run.json").symlink_to(path.parent.parent / "elsewhere.json")


def list_file(name: str) -> Callable[[Path], None]:
    return rewrite(lambda m: m["files"].update({name: m["files"]["run.json"]}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (flip, "'run.safetensors' is not what was written"),
    "cut short": (lambda p: os.truncate(p / "run.safetensors", 10), "'run.safetensors' is not what was written"),
    "missing": (lambda p: (p / "run.json").unlink(), "'run.json' is missing"),
    "a link": (link, "'run.json' is missing"),
    "no manifest to speak of": (lambda p: (p / "manifest.json").write_text("{"), "its manifest cannot be read"),
    "a path outside": (list_file("../x.json"), "names '../x.json'"),
    "an absolute path": (list_file("/x.json"), "names '/x.json'"),
    "another kind of file": (list_file("x.pkl"), "names 'x.pkl'"),
    "a name of two lines": (list_file("a\nb.json"), r"'a\nb.json' is missing"),
    "a path of two lines": (list_file("a\n/b"), r"names 'a\n/b'"),
}


@pytest.mark.parametrize("damage, told", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_one_is_named_and_the_one_before_taken(
    tmp_path: Path, damage: Callable[[Path], object], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 10)
    damage(make(tmp_path, 20))
    assert newest(tmp_path) == 10
    (record,) = caplog.records
    assert "000000000020' is damaged" in record.getMessage() and told in record.getMessage()
    assert "\n" not in record.getMessage()
    caplog.clear()
    assert newest(tmp_path) == 10 and not caplog.records, "it was set aside"


def test_none_left_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="no checkpoint to resume from: none was completed"):
        newest(tmp_path)
    flip(make(tmp_path, 10))
    with pytest.raises(ShoalError, match="no checkpoint to resume from: all 1 are damaged"):
        newest(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    rewrite(lambda m: m.update(format=3))(make(tmp_path, 10))
    with pytest.raises(ShoalError, match="a newer version of Shoal: it has format 3, and this one reads up to 2"):
        newest(tmp_path)


class Planted:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_a_planted_pickle_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even by someone who writes a manifest that matches it."""
    monkeypatch.chdir(tmp_path)
    path = make(tmp_path, 10)
    (path / "run.safetensors").write_bytes(pickle.dumps(Planted()))
    written = state_files.hash_file(path / "run.safetensors")
    entry = {"size": written.size, "sha256": written.sha256}
    rewrite(lambda m: m["files"].update({"run.safetensors": entry}))(path)
    with pytest.raises(ShoalError, match=r"the checkpoint .* is damaged: 'run' cannot be read"):
        newest(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_another_program_is_refused_with_what_differs(tmp_path: Path) -> None:
    make(tmp_path, 10)
    found = checkpoint.newest(tmp_path / checkpoint.FOLDER)
    found.check_fits(pipeline())
    other = pipeline(writers=2)
    items = other.channels["items"]
    other.channels["items"] = Channel("items", "queue", {**items.spec, "data": Field((4, 3), "float32", 1)}, capacity=4)
    with pytest.raises(ShoalError, match="does not fit") as caught:
        found.check_fits(other)
    assert "roles/source: saved 1, now 2" in str(caught.value)
    assert "channels/items/data: saved float32 [4, 2], now float32 [4, 3]" in str(caught.value)


# ------------------------------------------------------------------------------------------- lock
def test_whether_a_directory_is_locked_is_seen_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run could not start in the moment in which somebody looks."""
    RunLock(tmp_path).release()
    taken = Mock()
    monkeypatch.setattr(fcntl, "flock", taken)
    assert not is_locked(tmp_path) and not taken.called


def test_where_the_system_lists_no_locks_one_is_tried_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""

    def opened(path: Any, *args: Any, **fields: Any) -> Any:
        if str(path) == "/proc/locks":
            raise FileNotFoundError(path)
        return open(path, *args, **fields)

    monkeypatch.setattr(run_lock, "open", opened, raising=False)
    held = RunLock(tmp_path)
    assert is_locked(tmp_path)
    held.release()
    assert not is_locked(tmp_path)
    RunLock(tmp_path).release()


def test_a_directory_has_one_run_at_a_time_and_counts_them(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    with pytest.raises(UsageError, match=f"is still going on \\(process {os.getpid()}\\)"):
        RunLock(tmp_path)
    assert is_locked(tmp_path)
    first.release()
    assert not is_locked(tmp_path)
    again = RunLock(tmp_path)
    assert (first.launch, again.launch) == (0, 1)
    again.release()
    (tmp_path / "run.lock").write_bytes(b"")  # lost: a checkpoint knows better
    third = RunLock(tmp_path)
    third.at_least(5)
    third.release()
    fourth = RunLock(tmp_path)
    assert fourth.launch == 6
    fourth.release()
