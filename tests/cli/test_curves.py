"""``shoal plot`` and ``shoal compare``: on curves whose numbers are known, and on runs that were trained."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present import present

import shoal
from shoal.analysis.compare import config_table, table
from shoal.analysis.directories import groups, load
from shoal.analysis.stats import probability_of_improvement
from shoal.run.population.training import FILE as POPULATION

from .conftest import Shoal


def write_run(
    path: Path, slope: float, *, steps: int = 1000, speed: float = 100.0, system: str = "dqn",
    init_from: str | None = None, **config: Any,
) -> Path:  # fmt: skip
    """A run whose return is ``slope`` times its steps; ``speed`` is in steps a second."""
    path.mkdir()
    facts: dict[str, Any] = {"system": system, "init_from": init_from}
    facts["config"] = {"env": "CartPole-v1", "learning_rate": 0.001, **config}
    (path / "config.json").write_text(json.dumps({"format": 2, **facts}))
    at = range(0, steps + 1, 100)
    with open(path / "metrics.csv", "w", newline="") as file:
        rows = [[i, s, slope * s if s else ""] for i, s in enumerate(at)]  # no episode has ended at the first
        csv.writer(file).writerows([["row", "steps", "episode_return"], *rows])
    with open(path / "performance.csv", "w", newline="") as file:
        csv.writer(file).writerows([["row", "steps", "seconds"], *([i, s, s / speed] for i, s in enumerate(at))])
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    slow = [write_run(tmp_path / f"a{k}", k) for k in (1, 2, 3, 4)]
    fast = [write_run(tmp_path / f"b{k}", k, speed=200.0, learning_rate=0.01, steps=800) for k in (5, 6)]
    return slow + fast


def test_runs_are_grouped_by_configuration_and_named_by_what_differs(runs: list[Path], tmp_path: Path) -> None:
    a, b = groups(runs)
    assert (a.label, b.label) == ("dqn learning_rate=0.001", "dqn learning_rate=0.01")
    assert [len(a.curves), len(b.curves)] == [4, 2]
    other = write_run(tmp_path / "c", 1, env="Acrobot-v1")
    assert [g.label for g in groups([*runs[:4], other])] == ["dqn CartPole-v1", "dqn Acrobot-v1"]


def test_systems_of_ones_own_and_borrowed_parameters_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    names = ("lab.one", "lab.two", "a/mine.py", "b/mine.py")
    own = [write_run(tmp_path / f"o{i}", 1, system=system) for i, system in enumerate(names)]
    assert [g.label for g in groups(own)] == list(names)
    begun = write_run(tmp_path / "begun", 1, init_from="/x/a0")
    assert [g.label for g in groups([*runs[:4], begun])] == ["dqn", "dqn init_from=/x/a0"]


def test_the_middle_of_a_group_is_the_interquartile_mean_at_every_step(runs: list[Path]) -> None:
    a, b = groups(runs)
    x, middle, low, high = a.band("steps")
    assert x[0] == 100 and x[-1] == 1000 and np.allclose(middle, 2.5 * x)
    assert np.allclose(low, x * low[0] / x[0]) and (low <= middle).all() and (middle <= high).all()
    assert low[-1] >= 1000 and high[-1] <= 4000
    x, middle, _, _ = b.band("seconds")
    assert x[-1] == 4.0 and np.allclose(middle, 5.5 * 200 * x)


def test_a_group_is_compared_over_what_all_its_runs_cover(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "long", 1, steps=1000), write_run(tmp_path / "short", 3, steps=500)]
    (group,) = groups(paths)
    assert group.band("steps")[0][-1] == 500


def test_the_table_of_a_comparison(runs: list[Path]) -> None:
    both = groups(runs)
    heads, (a, b) = table(both)
    row = dict(zip(heads, a, strict=True))
    assert row["runs"] == "4" and row["steps"] == "1,000" and row["seconds"] == "10.0" and row["steps/s"] == "100"
    assert row["final return"].startswith("2500 [") and row["better than first"] == ""
    assert row["steps to 2500"] == "800 (2 of 4)"  # slopes 3 and 4 reach it at 900 and 700
    row = dict(zip(heads, b, strict=True))
    assert row["seconds to 2500"] == "2.5" and row["steps/s"] == "200"
    expected = probability_of_improvement([np.array([4000, 4800])], [np.array([1000, 2000, 3000, 4000])])
    assert row["better than first"].startswith(f"{expected:.0%} [")
    assert table(both, threshold=1e9)[1][0][6] == "never"
    assert config_table(both) == (["field", "dqn learning_rate=0.001", "dqn learning_rate=0.01"],
                                  [["learning_rate", "0.001", "0.01"]])  # fmt: skip


def test_one_run_has_no_interval(runs: list[Path]) -> None:
    _, (row,) = table(groups(runs[:1]))
    assert row[2] == "1000"


def test_pictures_show_every_group_against_both_axes(runs: list[Path]) -> None:
    pytest.importorskip("matplotlib")
    from shoal.analysis.plot import draw_figure

    panels = draw_figure(groups(runs)).axes
    assert [p.get_xlabel() for p in panels] == ["environment steps", "wall time (s)"]
    for panel in panels:
        labels = [t.get_text() for t in present(panel.get_legend()).get_texts()]
        assert labels == ["dqn learning_rate=0.001 (4 runs)", "dqn learning_rate=0.01 (2 runs)"]
        assert len(panel.lines) == 4 + 1 + 2 + 1 and len(panel.collections) == 2
    thick = panels[0].lines[4]
    assert np.allclose(thick.get_ydata(), 2.5 * np.asarray(thick.get_xdata()))


def test_a_long_legend_stands_below_the_panels(runs: list[Path], tmp_path: Path) -> None:
    """As of a run that was resumed with other settings again and again."""
    pytest.importorskip("matplotlib")
    from shoal.analysis.plot import draw, draw_figure

    one, other = groups(runs)
    changes = " (learning_rate 0.001 -> 0.002, batch 64 -> 32 at 1,000 steps)" * 9
    found = [replace(one, label=one.label + changes), other]
    draw(found, tmp_path / "long.svg")  # matplotlib would warn of panels that have no room
    figure = draw_figure(found)
    assert [panel.get_legend() for panel in figure.axes] == [None, None]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(texts) == 2 and max(len(line) for text in texts for line in text.splitlines()) <= 60


@pytest.fixture
def trained(fake: str, shoal: Shoal) -> list[str]:
    for seed in ("0", "1"):
        words = ("--runtime", "serial", "--steps", "2000", "--run-dir", f"r{seed}", "--quiet", "--seed", seed)
        assert shoal("train", fake, *words)[0] == 0
    return ["r0", "r1"]


def test_the_commands_on_runs_that_were_trained(trained: list[str], shoal: Shoal) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = shoal("plot", *trained, "--out", "p.svg", "--x", "steps")
    assert code == 0 and out == "p.svg: fake_system (2)\n", err
    assert ElementTree.parse("p.svg").getroot().tag.endswith("svg")
    assert shoal("plot", *trained)[0] == 0
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = shoal("compare", *trained, "--threshold", "1")
    finals = [load(path).returns[-1] for path in trained]
    assert code == 0 and "fake_system" in out and "steps to 1" in out
    assert f"{np.mean(finals):.4g} [{min(finals):.4g}, {max(finals):.4g}]" in out


@pytest.mark.parametrize(
    "args, says",
    [
        (("plot",), "needs a run directory first"),
        (("plot", "r0", "--out", "a.gif"), "a picture's name ends in .png, .svg, .pdf; found 'a.gif'"),
        (("plot", "r0", "--x", "step"), "did you mean 'steps'"),
        (("plot", "r0", "r0/../r0"), "is given twice"),
        (("compare", "r0", "gone"), "no such run directory: 'gone'"),
        (("compare", "r0", "--treshold", "3"), "did you mean '--threshold'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(shoal: Shoal, tmp_path: Path, args: tuple[str, ...], says: str) -> None:
    write_run(tmp_path / "r0", 1.0)
    code, _, err = shoal(*args)
    assert code == 2 and says in err and "Traceback" not in err


@pytest.mark.parametrize(
    "args, says",
    [
        (("plot", "p", "--x", "steps"), "--x is not for a population"),
        (("plot", "p", "p2"), "draws one population at a time, found 2"),
        (("plot", "p", "--out", "a.gif"), "a picture's name ends in .png, .svg, .pdf; found 'a.gif'"),
    ],
)
def test_what_is_wrong_with_a_picture_of_a_population(shoal: Shoal, args: tuple[str, ...], says: str) -> None:
    for name in ("p", "p2"):
        Path(name).mkdir()
        (Path(name) / POPULATION).touch()
    code, _, err = shoal(*args)
    assert code == 2 and says in err and "Traceback" not in err


def test_a_run_without_an_episode_has_no_curve(shoal: Shoal, tmp_path: Path) -> None:
    write_run(tmp_path / "r0", 1.0, steps=0)
    code, _, err = shoal("compare", "r0")
    assert code == 2 and "no episode has ended in it" in err


@pytest.mark.parametrize("command", ["compare", "plot"])
def test_runs_without_an_episode_are_left_out_of_a_comparison_by_name(
    shoal: Shoal, tmp_path: Path, command: str
) -> None:
    if command == "plot":
        pytest.importorskip("matplotlib")
    for name, steps in (("r0", 1_000), ("r1", 0), ("r2", 1_000)):
        write_run(tmp_path / name, 1.0, steps=steps)
    code, out, err = shoal(command, "r0", "r1", "r2")
    assert code == 0 and err.count("shoal:") == 1 and "'r1'" in err and "it is left out" in err
    assert "r1" not in out


def test_runs_none_of_which_has_an_episode_cannot_be_compared(shoal: Shoal, tmp_path: Path) -> None:
    for name in ("r0", "r1"):
        write_run(tmp_path / name, 1.0, steps=0)
    code, _, err = shoal("compare", "r0", "r1")
    assert code == 2 and "none of the 2 runs" in err


def test_a_run_in_python_draws_the_curve_that_the_command_draws(tmp_path: Path) -> None:
    """The same lines and labels; the file is written where one is named."""
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    from shoal.analysis.plot import draw

    path = tmp_path / "run"
    opened = shoal.train(
        "impala", env="CartPole-v1", preset="none", runtime="serial", actors=1, envs=2, unroll=5, hidden=(8,),
        steps=3_000, run_dir=path, quiet=True,
    )  # fmt: skip
    both, one = opened.plot(), opened.plot(tmp_path / "curve.svg", x="seconds")
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    assert [panel.get_xlabel() for panel in both.axes] == ["environment steps", "wall time (s)"]
    assert [panel.get_xlabel() for panel in one.axes] == ["wall time (s)"]
    theirs = draw(groups([path]))
    for mine, other in zip(both.axes, theirs.axes, strict=True):
        assert len(mine.lines) == len(other.lines) > 0
        for line, expected in zip(mine.lines, other.lines, strict=True):
            assert np.array_equal(line.get_xydata(), expected.get_xydata())
    with pytest.raises(shoal.UsageError, match="unknown value 'step' of x; did you mean 'steps'"):
        opened.plot(x="step")
    with pytest.raises(shoal.UsageError, match="a picture's name ends in"):
        opened.plot(tmp_path / "curve.gif")
