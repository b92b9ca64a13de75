"""Drawings, curves and tables in README and docs are what ``scripts/site/figures.py`` makes of the raw files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures() -> Any:
    path = ROOT / "scripts" / "site" / "figures.py"
    spec = importlib.util.spec_from_file_location("site_figures", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_every_figure_is_of_todays_code_and_raw_files(figures: Any) -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in figures.outputs()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"run: python scripts/site/figures.py (it rewrites {', '.join(stale)})"


def test_every_picture_of_a_system_is_still_made(figures: Any) -> None:
    made = {path for path, _ in figures.outputs()}
    assert set((ROOT / "docs" / "systems" / "pictures").glob("*.svg")) <= made


def test_a_score_below_its_mark_is_bold(figures: Any) -> None:
    assert figures.score(17.99, 18) == "**18.0**" and figures.score(18, 18) == "18.0"
    assert figures.score(-100.5, -100) == "**-100.5**" and figures.score(-1e4, None) == "-10,000"


@pytest.mark.parametrize("low,high", [(0, 500), (-500, -80), (0, 0), (-0.9, 0.95), (3, 3), (-1e4, 12_345)])
def test_ticks_are_round_and_cover_the_range(figures: Any, low: float, high: float) -> None:
    ticks = sys.modules["charts"].nice_ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high and len(ticks) <= 7
    assert ticks == sorted(set(ticks))
