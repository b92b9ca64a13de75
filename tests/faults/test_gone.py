"""A run directory that is removed, moved or replaced while the run goes on: said once, and the run ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.api import ShoalError, UsageError
from shoal.cli.main import main
from shoal.records.presence import DirectoryGone, Presence
from shoal.records.run_dir import RunDirectory

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", actors=1, envs=2, unroll=8, hidden=(8,), min_replay=64, replay=500, batch=8,
    steps=10_000_000,
)  # fmt: skip


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def removed(path: Path) -> None:
    moved(path)  # so that nothing is made in it meanwhile
    shutil.rmtree(path.with_name("elsewhere"), ignore_errors=True)


def replaced(path: Path) -> None:
    moved(path)
    path.mkdir()


@pytest.mark.parametrize("how", [removed, moved, replaced])
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_run_whose_directory_is_gone_says_so_once_and_ends(
    runtime: str, how: Callable[[Path], None], tmp_path: Path, capfd: Any
) -> None:
    path, done = tmp_path / "run", list[int]()

    def once(row: Any) -> None:
        if not done and row["steps"] > 100:
            done.append(row["steps"])
            how(path)

    which = "gone" if how is not replaced else "another one now"
    with pytest.raises(DirectoryGone, match=f"'{path}' of the run is {which}: it was removed, moved or replaced"):
        shoal.train("dqn", runtime=runtime, run_dir=path, observers=once, checkpoint_every=0.1, **SMALL)
    err = capfd.readouterr().err
    assert "cannot write" not in err and "again" not in err
    assert not path.exists() or not (path / "report.json").exists(), "nothing is written to a directory of others"


def test_a_population_whose_directory_is_gone_ends(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from shoal.run.population.training import PopulationRun

    monkeypatch.chdir(tmp_path)
    taken = PopulationRun._reached

    def reached(self: Any, index: int, result: Any) -> None:
        taken(self, index, result)
        moved(self.path)

    monkeypatch.setattr(PopulationRun, "_reached", reached)
    words = "train pbt --of dqn --env CartPole-v1 --preset none --mutate learning_rate --population 2 --steps 100000 "
    words += "--slots 1 --interval 200 --envs 2 --unroll 8 --min-replay 64 --replay 500 --batch 8 --run-dir p"
    assert main(words.split()) == 1
    err = capsys.readouterr().err
    assert err.count(f"shoal: the directory '{tmp_path / 'p'}' of the run is gone") == 1 and err.count("\n") == 1


@pytest.mark.parametrize("error", [UsageError("refused"), ShoalError("failed")])
@pytest.mark.parametrize("link", [False, True])
def test_a_run_that_ends_early_leaves_the_directory_alone_that_took_the_place_of_its_own(
    error: ShoalError, link: bool, tmp_path: Path
) -> None:
    """What was refused clears its directory, and what failed writes a report there."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("mine\n")
    directory = RunDirectory(tmp_path / "run")
    moved(tmp_path / "run")
    (tmp_path / "run").symlink_to(mine) if link else mine.rename(tmp_path / "run")
    directory.failed(error)
    directory.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


def test_a_disk_that_does_not_answer_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = Presence(tmp_path)

    def away(self: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "stat", away)
    present.require()
