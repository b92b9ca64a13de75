"""A folder of a run, or of all members of a population, that is a link, or becomes one while it is written to: nothing
behind it is written or removed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_read_outside import made, swap, theirs, tree  # noqa: F401

from shoal.api import ShoalError
from shoal.held import cut, open_to_append, stay_below
from shoal.records import run_dir
from shoal.records.atomic_write import write_atomic
from shoal.records.run_dir import RunDirectory
from shoal.records.run_lock import RunLock
from shoal.run import runtimes
from shoal.run.population import member as member_module
from shoal.run.population.member import copy_member, train_slice
from shoal.run.population.training import PopulationRun
from shoal.untrusted import require_plain

pytestmark = pytest.mark.timeout(110)
# ruff: noqa: F811  # fixtures are imported
# in a member that has no checkpoint
ANEW = ("RunLock", "RunDirectory", "require_new", "MetricFiles", "make_runtime", "finish")


@pytest.mark.parametrize("moment", ["completed", "newest", "_provenance", *ANEW])
@pytest.mark.parametrize("begun", [True, False])
def test_no_member_is_written_behind_a_link_in_the_place_of_all(
    moment: str, begun: bool, made: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``members`` becomes one while a slice runs; ``begun``: behind it lies what looks like them, or else nothing."""
    population = Path(shutil.copytree(made / "p", theirs / "p"))
    members, outside = population / "members", theirs / "outside"
    if moment in ANEW:
        for member in members.iterdir():
            shutil.rmtree(member / "checkpoints") if moment == "RunLock" else shutil.rmtree(member)
    shutil.copytree(made / "p" / "members", outside) if begun else outside.mkdir()
    before = tree(outside)
    modules: dict[str, Any] = {
        "make_runtime": runtimes,
        "finish": RunDirectory,
        "require_new": run_dir,
        "MetricFiles": run_dir,
    }
    of = modules.get(moment, member_module)
    real = getattr(of, moment)

    def swapping(*args: Any, **kwargs: Any) -> Any:
        if moment in ("completed", "newest"):  # which only read
            found = real(*args, **kwargs)
            swap(members, outside)
            return found
        swap(members, outside)
        return real(*args, **kwargs)

    reopened = PopulationRun.reopen(population, steps=120)
    task = reopened._slice(reopened.control.members[0])
    monkeypatch.setattr(of, moment, swapping)
    with contextlib.suppress(ShoalError):
        train_slice(task)
    assert members.is_symlink() and tree(outside) == before


def test_no_copy_of_a_member_is_made_behind_a_link(made: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``members``, which becomes one when the checkpoint has been copied."""
    population = Path(shutil.copytree(made / "p", theirs / "p"))
    members, outside = population / "members", theirs / "outside"
    shutil.copytree(members, outside)
    (outside / ".001.new").mkdir()
    before, copytree = tree(outside), shutil.copytree
    require_plain(population, trust=False)

    def swapping(*args: Any, **kwargs: Any) -> Any:
        copied = copytree(*args, **kwargs)
        swap(members, outside)
        return copied

    monkeypatch.setattr(shutil, "copytree", swapping)
    with contextlib.suppress(ShoalError, OSError):
        copy_member(members / "000", members / "001", 60)
    assert members.is_symlink() and tree(outside) == before


def lock(path: Path) -> None:
    RunLock(path.parent).release()


WRITES: dict[str, Callable[[Path], object]] = {
    "append": lambda path: open_to_append(path).close(), "cut": lambda path: cut(path, 1), "lock": lock,
    "atomic": lambda path: write_atomic(path, "x"), "new run": lambda path: RunDirectory(path.parent / "new").close(),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_no_write_goes_behind_a_link_within_a_directory_that_follows_none(write: str, theirs: Path) -> None:
    """Nor is a folder made there, to be removed again."""
    outside, run = theirs / "outside", theirs / "r"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "file").write_text("mine\n")
    run.mkdir()
    (run / "link").symlink_to(outside)
    before, times = tree(outside), (outside / "inner").stat().st_mtime_ns
    stay_below(run)
    with pytest.raises((OSError, ShoalError)):
        WRITES[write](run / "link" / "inner" / "file")
    assert tree(outside) == before and (outside / "inner").stat().st_mtime_ns == times
    stay_below(run, plain=False)
    WRITES[write](run / "link" / "inner" / "file")
    assert tree(outside) != before or write == "append"
