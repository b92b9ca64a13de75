"""The picture of a population, drawn from the files that a population leaves."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.analysis import lineage
from shoal.analysis.lineage import draw
from shoal.api import ShoalError
from shoal.untrusted import MAX_COLUMNS
from shoal.watch import populations
from shoal.watch.files import RunFiles
from shoal.watch.folder import Folder

matplotlib = pytest.importorskip("matplotlib")
SCORES = """member,step,score,seconds,gamma
0,100,1.0,1.0,0.9
1,100,2.0,1.0,0.99
0,200,3.0,2.0,0.95
"""
LINEAGE = """child,step,score,parent,parent_step,parent_score,before/gamma,after/gamma
0,100,1.0,1,100,2.0,0.9,0.95
"""


@pytest.mark.parametrize("copies", [LINEAGE, LINEAGE.partition("\n")[0] + "\n"], ids=["copied", "none copied"])
def test_a_population_is_drawn_without_pyplot(copies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pyplot has global state: a notebook's figures and its backend stay as they are."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an ImportError for whoever asks
    monkeypatch.delattr(matplotlib, "pyplot", raising=False)
    (tmp_path / "scores.csv").write_text(SCORES)
    (tmp_path / "lineage.csv").write_text(copies)
    draw(tmp_path, tmp_path / "picture.svg")
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def wide(columns: int, members: int) -> str:
    names = [f"c{i}" for i in range(columns)]
    rows = [f"{member},100,1.0,1.0,{','.join(['0.5'] * columns)}" for member in range(members)]
    return "\n".join([f"member,step,score,seconds,{','.join(names)}", *rows, ""])


def test_of_a_wide_or_large_population_a_part_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "MAX_HYPERPARAMETERS", 2)
    monkeypatch.setattr(lineage, "MAX_MEMBERS", 3)
    (tmp_path / "scores.csv").write_text(wide(4, 5))
    scores, copies = lineage.read(tmp_path)
    drawn = lineage._figure(tmp_path, scores, copies)
    assert [len(axis.lines) for axis in drawn.axes] == [3, 3, 3]
    title = drawn.axes[0].get_title()
    assert "5 members, 0 copies\n(the first 3 of 5 members)\n(the first 2 of 4 hyperparameters)" in title


def test_a_table_has_so_many_columns(tmp_path: Path) -> None:
    for columns in (MAX_COLUMNS - 4, MAX_COLUMNS - 3):
        (tmp_path / "scores.csv").write_text(wide(columns, 1))
        told = populations.state("p", Folder(tmp_path))
        if columns + 4 > MAX_COLUMNS:
            assert "1,001 columns" in told["problems"]["scores.csv"]
            shutil.copy(tmp_path / "scores.csv", tmp_path / "evaluations.csv")
            run = RunFiles(tmp_path)
            assert run.evaluations() == [] and "1,001 columns" in run.problems["evaluations.csv"]
            with pytest.raises(ShoalError, match="1,001 columns, at most 1,000 are read"):
                lineage.read(tmp_path)
        else:
            assert not told["problems"].get("scores.csv") and len(lineage.read(tmp_path)[0][0]) == MAX_COLUMNS
            assert len(told["figures"]) == 1 + populations.MOST_HYPERPARAMETERS == len(told["columns"]) - 2


def test_each_copy_of_a_member_begins_a_branch_at_the_one_it_copied(tmp_path: Path) -> None:
    scores = "member,step,score,seconds,gamma\n0,100,1,1,0.9\n0,200,2,2,0.8\n0,300,3,3,0.7\n1,100,9,1,0.5\n"
    copies = LINEAGE.partition("\n")[0] + "\n0,100,1,1,110,9,0.9,0.6\n0,200,2,1,210,9,0.8,0.4\n"
    (tmp_path / "scores.csv").write_text(scores)
    (tmp_path / "lineage.csv").write_text(copies)
    drawn = lineage._figure(tmp_path, *lineage.read(tmp_path)).axes[1].lines
    shown = populations.state("p", Folder(tmp_path))["figures"][1]["data"]
    steps, values = [100, None, 110, 200, None, 210, 300], [0.9, None, 0.6, 0.8, None, 0.4, 0.7]
    for found in ((drawn[0].get_xdata(), drawn[0].get_ydata()), (shown[0]["x"], shown[0]["y"])):
        for numbers, wanted in zip(found, (steps, values), strict=True):
            assert [None if x is None or x != x else x for x in numbers] == wanted
    assert np.asarray(drawn[1].get_ydata()).tolist() == shown[1]["y"] == [0.5]
