"""The picture of a population, drawn from the files that a population leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.analysis.lineage import draw

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
