"""Folders and files of a run that somebody swaps for links while the run writes: nothing outside is touched."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.api import Diverged, ShoalError
from shoal.cli.main import main
from shoal.held import cut, held, open_to_append
from shoal.records import checkpoint, checkpoint_state, dumps, logs
from shoal.records.atomic_write import write_atomic
from shoal.records.evaluation_files import EvaluationFiles, forget_after, video
from shoal.records.publication import Publication

ROUNDS = 60
EXCHANGE = 2  # of renameat2: both names are there at every moment
SMALL: dict[str, Any] = dict(
    env="CartPole-v1", runtime="serial", preset="none", actors=1, envs=2, hidden=(4,), unroll=5
)


SWAP = f"""
import ctypes, random, sys, time
exchange, names = ctypes.CDLL(None).renameat2, [name.encode() for name in sys.argv[1:]]
print("", flush=True)
while True:
    exchange(-100, names[0], -100, names[1], {EXCHANGE})
    time.sleep(random.random() * 2e-3)
"""


@contextlib.contextmanager
def swapped(place: Path, outside: Path) -> Iterator[None]:
    """``place`` is a link to ``outside`` at every other moment."""
    link = place.parent.parent / "link"
    link.symlink_to(outside)
    words = [sys.executable, "-S", "-c", SWAP, str(place), str(link)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    hashes = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return hashes | {str(path.relative_to(folder)): "" for path in folder.rglob("*") if path.is_dir()}


def checkpoints(run: Path, round_: int) -> None:
    saving = checkpoint.SaveOptions(run / "checkpoints", keep=1, launch=round_)
    checkpoint.clean(saving.folder)
    folder = checkpoint.begin(saving, 1)
    try:
        files = checkpoint.add(folder, {"role-a-0": checkpoint_state.pack({"x": np.ones(9)})})
        facts = {"steps": round_, "updates": 1, "row": 1, "launch": 1, "seconds": 1.0, "program": {}}
        checkpoint.commit(folder, saving, files, facts)
    finally:
        checkpoint.discard(folder)
    for path in checkpoint.named(saving.folder):
        checkpoint.set_aside(path)


def run_log(run: Path, round_: int) -> None:
    log = logs.RunLog(run)
    for _ in range(4):
        logging.getLogger("shoal.runtime").info("x" * 50)
    log.close()


def published(run: Path, round_: int) -> None:
    report = SimpleNamespace(params={"params": {"w": torch.ones(3)}}, steps=round_, updates=1)
    Publication(run).look(lambda: report)  # type: ignore[arg-type, return-value]


def dumped(run: Path, round_: int) -> None:
    error = Diverged("x", {"role": "a", "update": 1})
    error.tensors = {"w": torch.ones(2)}
    dumps.save(error, run)


def best(run: Path, round_: int) -> None:
    EvaluationFiles(run, "params").add(round_, 1, [float(round_)], {"w": torch.ones(2)})


def filmed(run: Path, round_: int) -> None:
    video(run, round_)
    forget_after(run, 0)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "checkpoints": checkpoints, "logs": run_log, "newest": published, "dumps": dumped, "best": best, "videos": filmed,
}  # fmt: skip


def written(name: str, run: Path, round_: int) -> bool:
    """Return whether the folder was no link at the end of a round, whether or not that could write."""
    with contextlib.suppress(OSError, ShoalError):  # also what it reads there may be refused
        WRITERS[name](run, round_)
    return not (run / name).is_symlink()


@pytest.mark.parametrize("name", WRITERS)
def test_no_folder_that_is_swapped_for_a_link_is_written_through(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run's folder, with all that would be overwritten or removed in one's own."""
    monkeypatch.setattr(logs, "LIMIT", 150)
    run, outside = tmp_path / "r", tmp_path / "theirs"
    (run / name).mkdir(parents=True)
    outside.mkdir()
    for file in (".tmp-0-1/x", "000000000000/manifest.json", "run.log", "params-0.safetensors", "params.json",
                 "a-1/facts.json", "000000000001.mp4"):  # fmt: skip
        (outside / file).parent.mkdir(exist_ok=True)
        (outside / file).write_text("{}")
    before, refused, round_ = tree(outside), 0, 0
    with swapped(run / name, outside):
        while (round_ < ROUNDS or not 5 < refused < round_ - 5) and round_ < 100 * ROUNDS:
            round_ += 1
            refused += not written(name, run, round_)
    assert tree(outside) == before
    assert 0 < refused < round_, "it was a link at some moments, and not at others"


@pytest.mark.parametrize("act", [lambda path: open_to_append(path).write(b"x"), lambda path: cut(path, 0)])
def test_no_file_that_is_a_link_is_appended_to_or_cut(act: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine\n")
    (tmp_path / "metrics.csv").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"metrics\.csv"):
        act(tmp_path / "metrics.csv")
    assert (tmp_path / "mine").read_text() == "mine\n"


def test_a_folder_that_is_held_is_the_same_whatever_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "r/logs").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    with held(tmp_path / "r/logs") as folder:
        (tmp_path / "r/logs").rename(tmp_path / "moved")
        (tmp_path / "r/logs").symlink_to(tmp_path / "outside")
        write_atomic(folder / "a", "x")
    assert (tmp_path / "moved/a").read_text() == "x" and not any((tmp_path / "outside").iterdir())
    with pytest.raises(OSError, match=r"a link, or no folder.*r/logs"), held(tmp_path / "r/logs"):
        pass
    with pytest.raises(FileNotFoundError, match=r"'.*moved/nothing'$"), held(tmp_path / "moved") as folder:
        (folder / "nothing").unlink()


@pytest.mark.parametrize("name", ["logs", "best", "metrics.csv"])
def test_a_trusted_run_says_which_of_its_files_may_not_be_links(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shoal.train("impala", run_dir=tmp_path / "r", steps=60, quiet=True, **SMALL).path
    outside = tmp_path / "outside"
    (run / name).rename(outside) if (run / name).exists() else outside.mkdir()
    (run / name).symlink_to(outside)
    assert main(["resume", str(run), "--steps", "120", "--quiet", "--trust"]) == 2
    told = capsys.readouterr().err
    assert name in told and "only its checkpoints may lie elsewhere" in told and told.count("\n") == 1
