"""The moving picture of the panel: ``scripts/site/film.py`` keeps the panel of a report as a terminal shows it."""

from __future__ import annotations

import importlib.util
import io
import math
from pathlib import Path
from typing import Any

from shoal.api import EnvSpec
from shoal.metering.aggregator import Snapshot
from shoal.runtime.launch import Stop

SCRIPT = Path(__file__).parents[2] / "scripts" / "site" / "film.py"


def test_the_panel_of_a_report_is_a_picture_of_the_film() -> None:
    spec = importlib.util.spec_from_file_location("site_film", SCRIPT)
    assert spec is not None and spec.loader is not None
    film: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(film)
    panel = film.Filmed("impala", EnvSpec("CartPole-v1", {}, None), Stop(steps=3_000), file=io.StringIO())  # type: ignore[arg-type]
    for row, steps in enumerate((1_000, 2_000), 1):
        panel.update(
            Snapshot(
                row=row, seconds=10.0 * row, steps=steps, updates=50, step_rate=100.0, update_rate=5.0,
                episode_return=math.nan, episode_length=math.nan, episodes=0, counts={}, records={}, shares={}, fill={},
                restarts=0, new_episodes=[],
            )
        )  # fmt: skip
    drawn = film.film(panel.pictures)
    assert len(panel.pictures) == 2 and "1,000 of 3,000" in drawn and "2,000 of 3,000" in drawn
