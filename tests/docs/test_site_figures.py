"""Drawings, curves and tables in README and docs are what ``scripts/site/figures.py`` makes of the raw files."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
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


def test_every_system_has_a_film_of_the_policy_that_ships(figures: Any) -> None:
    sizes = []
    for system in figures.SYSTEMS:
        entry, file = figures.films.of_system(system), figures.films.path(system)
        assert figures.films.is_current(entry), f"run: python scripts/site/films.py {system}"
        sizes.append(file.stat().st_size)
        page = (ROOT / "docs" / "systems" / f"{system}.md").read_text(encoding="utf-8")
        assert f"(pictures/{file.name})" in page and entry.sha256.encode() in file.read_bytes()
    assert max(sizes) < 150_000 and sum(sizes) < 3_000_000


@pytest.mark.parametrize("lacks", ["policy", "film", "today's policy"])
def test_a_page_without_a_film_of_todays_policy_is_an_error(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    films, entry = figures.films, figures.films.of_system("dqn")
    monkeypatch.setattr(films, "PICTURES", tmp_path)
    films.path("dqn").write_bytes(films.comment(entry).encode())
    assert "(pictures/dqn.gif)" in figures.trained("dqn")
    if lacks == "policy":
        monkeypatch.setattr(films, "of_system", lambda system: None)
    elif lacks == "film":
        films.path("dqn").unlink()
    else:
        other = dataclasses.replace(entry, sha256="0" * 64)
        monkeypatch.setattr(films, "of_system", lambda system: other)
    with pytest.raises(AssertionError, match=r"python scripts/site/films\.py dqn"):
        figures.trained("dqn")


MEASURED = re.compile(
    r"\d[\d,.]*\s?(?:[µun]s|ms|s|seconds?|minutes?|[KMG]i?B|[KMG]bit/s|steps/s|GB/s|times)\b|\d[\d,.]*\s?%"
)
SET_IN_CODE = {  # page -> what the code, a test's limit or the page's own example sets: nothing that was measured
    "architecture.md": "5 us, 200 us, 1 %, 7.5 GB",
    "checkpoints.md": "25 seconds, 1.5 seconds, 22 seconds",
    "cluster.md": "5 ms, 200 MB, 20 s, 30 s, 90 s, 8 seconds",
    "environments.md": "30 minutes",
    "evaluation.md": "1 %, 600 seconds",
    "faults.md": "0.1 s, 2 s, 60 s, 10 s, 1.5 seconds, 3 seconds, 64 MB, 64 KB, 8 MB, 30 minutes, 95 %",
    "metrics.md": "1 %",
    "performance.md": "10 %",
    "plots.md": "95 %",
    "results.md": "95 %",
    "run-directory.md": "8 MiB, 8 MB",
    "scaling.md": "15 seconds, 4 ms, 25 Gbit/s",
    "security.md": "64 MiB, 1 MiB",
    "table.md": "95 %, 5 minutes, 10 minutes",
    "watch.md": "300 seconds, 30 seconds",
}
PAGES = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]


def measurements(figures: Any, text: str) -> set[str]:
    """Figures with units in a page's prose and tables, but for generated ones, code and targets of links."""
    text = re.sub(r"^ *```.*?^ *```", "", figures.MARKED.sub("", text), flags=re.DOTALL | re.MULTILINE)
    return set(MEASURED.findall(re.sub(r"`.*?`|\]\([^)]*\)", "", text)))


@pytest.mark.parametrize("page", [p for p in PAGES if not p.startswith(("systems/", "decisions/")) and p != "zoo.md"])
def test_a_page_has_no_measurement_typed_by_hand(figures: Any, page: str) -> None:
    """Decisions are dated records, the zoo's page is made as a whole, and pages of systems have a test of their own."""
    typed = measurements(figures, (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert typed == set(filter(None, SET_IN_CODE.get(page, "").split(", "))), "make it from raw files, or leave it out"


def test_a_typed_measurement_is_found_in_prose_and_tables_and_not_in_code_or_generated_places(figures: Any) -> None:
    made = "<!-- figures: written by scripts/site/figures.py -->\n9 ms\n<!-- end of figures -->"
    text = f"It takes 1.8 µs, 0.02 %.\n\n| put | 2,193 MB |\n\n```bash\nsleep 3 s\n```\n`4 ms` [5 s](6 s)\n{made}\n"
    assert measurements(figures, text) == {"1.8 µs", "0.02 %", "2,193 MB", "5 s"}


@pytest.mark.parametrize("page", ["results.md", "performance.md"])
def test_a_page_of_measurements_has_no_table_of_figures_typed_by_hand(figures: Any, page: str) -> None:
    rest = figures.MARKED.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    typed = [line for line in rest.splitlines() if line.startswith("|") and re.search(r"\d", re.sub("`.*?`", "", line))]
    assert not typed


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "systems").glob("*.md")), ids=lambda p: p.stem)
def test_results_of_a_system_have_no_figure_typed_by_hand(figures: Any, page: Path) -> None:
    results = page.read_text(encoding="utf-8").split("\n## Results\n")[1]
    prose = re.sub(r"`.*?`|\(\S+\)", "", figures.MARKED.sub("", results))  # code and targets of links are no figures
    assert not re.findall(r"(?<![\w-])-?\d+[.,]?\d+", prose)


def test_presets_are_called_validated_on_tasks_that_have_recorded_runs_with_them(figures: Any) -> None:
    recorded = [(run.system, run.preset, run.task) for run in figures.all_runs()]
    claims = [
        (path.stem, preset, task)
        for path in sorted((ROOT / "docs" / "systems").glob("*.md"))
        for preset, tasks in re.findall(
            r"^\| `([\w-]+)` .*?validated on ([^|);]*)", path.read_text("utf-8"), re.MULTILINE
        )
        for task in re.findall(r"[A-Z]\w+", tasks)
    ]
    assert len(claims) > 30
    missing = [c for c in claims if not any(c[:2] == r[:2] and re.match(rf"{c[2]}\b", r[2]) for r in recorded)]
    assert not missing


def test_tables_of_papers_and_of_many_actors_show_each_recorded_row(figures: Any) -> None:
    made = sys.modules["plan_tables"]
    paper = {"system": "A3C", "what": "16 threads", "published": 12.5, "predicted": 16.0, "assumed": "a core each"}
    told = made.papers([paper, {**paper, "what": "8 threads", "published": None}])
    assert "| A3C | 16 threads | 12.5 | 16 | +28% |" in told and "| A3C | 8 threads |  | 16 |  |" in told
    assert told.count("- A3C: a core each.") == 1
    told = made.beyond([["impala-pong", {"replay_shards": 32}, 1000, 609.0, 0.295, "learner-bound", "--learners"]])
    assert "| `impala-pong` | `--replay-shards 32` | 1,000 | 609 | 0.295 | learner-bound | --learners |" in told
    assert made.papers([]) == made.beyond([]) == made.NOT_RECORDED


@pytest.mark.parametrize("made", [{}, {"a": "1"}, {"a": "1", "b": "2", "c": "3"}])
def test_a_marked_place_without_a_figure_and_a_figure_without_a_place_are_errors(figures: Any, made: Any) -> None:
    places = "".join(
        f"<!-- figures {name}: written by scripts/site/figures.py -->\n<!-- end of figures -->\n" for name in "ab"
    )
    with pytest.raises(AssertionError, match=re.escape("marked on the page: ['a', 'b']")):
        figures.fill(places, made)
    assert "-->\n\n1\n\n<!--" in figures.fill(places, {"a": "1", "b": "2"})


def test_a_run_that_was_not_solved_is_told_with_the_time_it_was_given_then(figures: Any) -> None:
    (pong,) = [line for line in figures.speed_tables.times_to_solve().splitlines() if "Pong, 18 | Sample" in line]
    assert "| 0 of 1 | not within 2,000 s | more than 3.61 |" in pong


def test_steps_to_a_mark_count_from_a_hundred_episodes(figures: Any, tmp_path: Path) -> None:
    path = tmp_path / "seed-0.csv"
    path.write_text("steps,episodes,episode_return\n900,0,\n2000,60,0.9\n5000,100,0.8\n9000,200,0.9\n")
    assert figures.learning_tables.steps_to(path, 0.8) == "5K"
    assert figures.learning_tables.steps_to(path, 0.95) == "not within 9K (0.90)"


def test_a_score_below_its_mark_is_bold(figures: Any) -> None:
    assert figures.score(17.99, 18) == "**18.0**" and figures.score(18, 18) == "18.0"
    assert figures.score(-100.5, -100) == "**-100.5**" and figures.score(-1e4, None) == "-10,000"


def test_a_run_that_ended_early_is_told_and_validates_no_preset(figures: Any) -> None:
    folder = figures.RESULTS / "suite" / "dqn" / "Acrobot-v1"
    run = figures.Recorded("dqn", "Acrobot-v1", folder, "", "classic", -100.0, [1, 2], [-90.0, -90.0], early={2})
    assert "| 1, 2 (ended early) |" in figures.row(run)
    told = [figures.validation("dqn", [dataclasses.replace(run, early=early)]) for early in (set(), {2}, {1, 2})]
    assert ["`classic`" in page.partition("Presets that are not validated")[2] for page in told] == [False, False, True]


def test_panels_that_share_a_legend_share_colours_and_no_name_reaches_the_next_panel(figures: Any) -> None:
    charts, line = sys.modules["charts"], [(0.0, 1.0), (9.0, 2.0)]
    names = [f"an algorithm {i}" for i in range(6)]
    both = [charts.Panel("all", [(name, line) for name in names], legend=names)]
    both.append(charts.Panel("last", [(names[-1], line)], legend=names))
    first, second = (charts._panel(panel) for panel in both)
    assert charts.COLOURS[5] in second and charts.COLOURS[0] not in second
    ends = [x + 6.5 * len(name) for name, x, _ in charts._legend(both[0])]
    assert max(ends) < charts.LEFT + charts.WIDTH + charts.RIGHT and f'fill="{charts.COLOURS[5]}">{names[5]}' in first


@pytest.mark.parametrize("low,high", [(0, 500), (-500, -80), (0, 0), (-0.9, 0.95), (3, 3), (-1e4, 12_345)])
def test_ticks_are_round_and_cover_the_range(figures: Any, low: float, high: float) -> None:
    ticks = sys.modules["charts"].nice_ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high and len(ticks) <= 7
    assert ticks == sorted(set(ticks))
