"""What the page says of a run: by its files, also of damaged ones, of long ones, and of names that are markup."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from noted import noted

import shoal
from shoal.metering.aggregator import Snapshot
from shoal.records.live_file import LiveFile
from shoal.records.metric_files import MetricFiles
from shoal.records.run_lock import RunLock
from shoal.watch import charts, page, series
from shoal.watch.catalogue import Catalogue
from shoal.watch.files import RunFiles
from shoal.watch.folder import Folder
from shoal.watch.site import Site
from watch.runs import snapshot, write_run

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def numbers(state: dict[str, object]) -> dict[str, str]:
    return {name: value for name, value, _ in state["figures"]}  # type: ignore[attr-defined]


def test_a_run_is_told_by_its_files(tmp_path: Path) -> None:
    state = page.state("one", RunFiles(write_run(tmp_path / "one", entropy_cost=0.5)))
    shown = numbers(state)
    assert (
        shown["steps"] == "300 of 1,000 (200/s)"
        and shown["return"] == "3"
        and shown["bottleneck"].startswith("learner")
    )
    assert state["config"][0] | {} == {"name": "env", "value": "CartPole-v1", "origin": "flag", "own": True}
    assert {row["name"]: row["own"] for row in state["config"]} == {
        "env": True, "entropy_cost": True, "learning_rate": False,
    }  # fmt: skip
    assert {"name": "loss", "unit": "", "meaning": page.meaning("loss")[1]} in state["metrics"] and not state[
        "problems"
    ]
    assert state["events"] == [{"when": "2026-01-02 03:04:05", "level": "info", "text": "3 processes start"}]


@pytest.mark.parametrize(
    "ended, locked, expected",
    [("", False, "killed"), ("", True, "running"), ("steps", False, "steps"), ("steps", True, "running")],
)
def test_a_run_goes_on_while_its_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str, locked: bool, expected: str
) -> None:
    monkeypatch.setattr("shoal.watch.files.FRESH", 0.0)
    path = write_run(tmp_path / "one", ended=ended)
    lock = RunLock(path)
    if not locked:
        lock.release()
    assert RunFiles(path).state() == expected
    if locked:
        lock.release()
    RunLock(path).release()  # looking has taken no lock that another needs


def test_the_program_of_a_running_run_shows_fills_rates_phases_and_the_bottleneck(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    lock = RunLock(path)
    state = page.state("one", RunFiles(path))
    lock.release()
    root = ET.fromstring(state["svg"])
    texts = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    assert "25% full" in texts and "8.0 items/s, 128 B/s" in texts and "bottleneck" in texts
    dots = [node.get("data-phase") for node in root.iter() if node.get("data-phase")]
    assert dots == ["work", "restarting", "work"]
    (bar,) = [node for node in root.iter() if node.get("class") == "fill"]
    frame = next(node for node in root.iter() if node.get("height") == bar.get("height") and node is not bar)
    card = next(node for node in root.iter() if node.get("data-channel") == "unrolls")[0]
    right, edge = (float(n.get("x", 0)) + float(n.get("width", 0)) for n in (frame, card))
    assert right < edge, "the bar lies within its card"
    assert float(bar.get("width", 0)) == pytest.approx(0.25 * float(frame.get("width", 0)), abs=0.1)


def test_a_picture_moves_between_two_looks_and_keeps_its_layout(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", rows=1)
    run, files = RunFiles(path), MetricFiles(path, 1)
    before = ET.fromstring(page.state("one", run)["svg"])
    files.update(snapshot(2, fill={"unrolls": 0.75}, moved={"unrolls": 10_000}))
    files.close()
    after = ET.fromstring(page.state("one", run)["svg"])
    assert before.get("viewBox") == after.get("viewBox")
    widths = [[n.get("width") for n in root.iter() if n.get("class") == "fill"] for root in (before, after)]
    assert widths[0] != widths[1]


def test_names_that_are_markup_stay_text(tmp_path: Path) -> None:
    run = RunFiles(write_run(tmp_path / "one", env=MARKUP, **dict[str, Any]({MARKUP: MARKUP})))
    facts = json.loads((run.path / "program.json").read_text())
    facts["caption"] = facts["roles"][0]["title"] = facts["channels"][0]["fields"][0] = MARKUP
    (run.path / "program.json").write_text(json.dumps(facts))
    drawn = page.state("one", run)["svg"]
    tags = {node.tag.rpartition("}")[2] for node in ET.fromstring(drawn).iter()}
    assert tags <= {"svg", "title", "defs", "marker", "path", "g", "rect", "text", "circle"} and "alert(1)" in drawn
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"row": 4, "steps": 400, MARKUP: 1.0}) + "\n")
    run.refresh()
    figure = charts.curve({MARKUP: run, "other": run}, MARKUP)
    assert "<" not in json.dumps(figure), "Plotly reads markup"


@pytest.mark.parametrize("name", [
    "config.json", "report.json", "program.json", "live.json", "metrics.jsonl", "performance.jsonl", "evaluations.csv",
    "best/params.json", "logs/run.log",
])  # fmt: skip
@pytest.mark.parametrize("content", [b"", b"{", b'{"config": 3', b"\xff\xfe\x00", b"[" * 10_000, b"null", b"[1]",
                                     b'{"roles": [{}], "config": [], "phases": 3, "row": "x", "steps": "many"}\n',
                                     b'{"row": 1e400}\n', b'{"format": 99}', b'"a","b\n1,2,3\n"'])  # fmt: skip
def test_a_damaged_file_is_told_of_and_breaks_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    path = write_run(tmp_path / "one")
    (path / "best").mkdir()
    (path / name).write_bytes(content)
    site = Site(Catalogue([tmp_path]))
    text = json.dumps([site.listing(), site.run("one"), site.curves(["one"], ["loss"], "seconds", 0.5, True),
                       site.times("one", "steps"), site.metrics(["one"])], allow_nan=False)  # fmt: skip
    told = site.run("one")["problems"]
    if content in (b"{", b"\xff\xfe\x00", b"null") and name.endswith(".json"):
        assert name in told, text
    assert {*told} <= {name}, "of the others nothing is wrong"


def test_a_run_of_the_first_moment_is_shown(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text("")
    site = Site(Catalogue([tmp_path]))
    assert "config.json" in site.run("one")["problems"] and len(site.listing()["runs"]) == 1


def test_old_values_stay_and_say_that_they_are_old(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", rows=1)
    files = MetricFiles(path, 1)
    for row in range(2, 40):
        files.update(snapshot(row, records={}))
    files.close()
    state = page.state("one", RunFiles(path))
    assert ["loss", "1", "0:19 ago"] in state["figures"]
    (path / "performance.jsonl").unlink()  # which has the seconds of each row
    assert ["loss", "1", "38 rows old"] in page.state("one", RunFiles(path))["figures"]


def test_a_rate_is_the_mean_of_the_newest_rows(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", rows=0)
    files = MetricFiles(path)
    for i in range(1, 61):
        files.update(snapshot(i, step_rate=900.0 if i < 41 else 0.0 if i % 4 else 400.0, update_rate=float(i % 2)))
    files.close()
    state = page.state("one", RunFiles(path))
    figures = {name: value for name, value, _ in state["figures"]}
    assert figures["steps"].endswith("(100/s)") and figures["updates"].endswith("(0.5/s)")
    assert dict(state["parts"]["channel/params"])["now"].startswith("0.5 versions/s, 16 B/s"), "the same rate, in bytes"


def test_scores_of_evaluations_are_told_in_few_digits(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    (path / "evaluations.csv").write_text("steps,episodes,mean,std,note\n20281,3,341.66667,0.00012345678,a word\n")
    (row,) = page.state("one", RunFiles(path))["evaluations"]
    assert row == {"steps": "20,281", "episodes": "3", "mean": "341.7", "std": "0.0001235", "note": "a word"}


def test_shares_of_time_come_of_one_row(tmp_path: Path) -> None:
    """Phases that a role was in at different times add up to more than its time."""
    path = write_run(tmp_path / "one", rows=1)
    files = MetricFiles(path, 1)
    files.update(snapshot(2, shares={"learner": {"publish": 1.0}}))
    files.update(snapshot(3, shares={}))
    files.close()
    run = RunFiles(path)
    run.refresh()
    found = page.shares_of(run.performance.columns)
    assert found == {"actor": {"env": 0.7, "wait:params": 0.3}, "learner": {"publish": 1.0}}


# --------------------------------------------------------------------------------- growing files
def table(path: Path, rows: int) -> series.Table:
    path.write_text(
        "".join(json.dumps({"row": r, "steps": 10 * r, "x": math.sin(r)}) + "\n" for r in range(1, rows + 1))
    )
    return series.Table(Folder(path.parent), path.name)


def test_a_table_reads_on_where_it_stopped_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    made = table(file, 3)
    assert made.refresh().column("row").tolist() == [1, 2, 3]
    with file.open("a") as out:
        out.write('{"row": 4, "st')
        out.flush()
        assert made.refresh().column("row").tolist() == [1, 2, 3] and not made.damaged
        out.write('eps": 40}\nnonsense\n{"row": 5, "new": 1}\n')
    columns = made.refresh()
    assert columns.column("row").tolist() == [1, 2, 3, 4, 5] and made.damaged == 1
    assert np.isnan(columns.column("new")[:-1]).all() and columns.column("new")[-1] == 1


@pytest.mark.parametrize("again", [1, 4, 9, 50])
def test_a_run_that_was_resumed_is_read_anew(tmp_path: Path, again: int) -> None:
    """Its files were cut, and have grown since, beyond where they were read to or not."""
    file = tmp_path / "t.jsonl"
    made = table(file, 5)
    made.refresh()
    file.write_text("".join(json.dumps({"row": r, "steps": 7 * r}) + "\n" for r in range(1, again + 1)))
    assert made.refresh().column("steps").tolist() == [7.0 * r for r in range(1, again + 1)]


def test_a_long_table_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    rows = 5 * series.MOST_ROWS + 3
    columns = table(tmp_path / "t.jsonl", rows).refresh()
    kept = columns.column("row")
    assert series.MOST_ROWS <= len(kept) <= 2 * series.MOST_ROWS + 1
    assert kept[0] == 1 and kept[-1] == rows and (np.diff(kept) > 0).all()
    assert np.diff(kept).max() <= 2 * rows / series.MOST_ROWS
    np.testing.assert_allclose(columns.column("x"), np.sin(kept), rtol=1e-12)


def test_of_a_file_too_large_to_read_lines_at_even_distances_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "LARGE", 1 << 16)
    monkeypatch.setattr(series, "END", 1 << 14)
    monkeypatch.setattr(series, "SAMPLES", 100)
    rows, file = 20_000, tmp_path / "t.jsonl"
    made = table(file, rows)
    taken: list[Any] = []
    monkeypatch.setattr(made, "_take", lambda line, take=made._take: noted(taken, line, take(line)))
    columns = made.refresh()
    kept = columns.column("row")
    assert len(taken) < rows / 10 and kept[0] == 1 and kept[-1] == rows and not made.damaged
    assert np.diff(kept).max() < rows / 20
    np.testing.assert_allclose(columns.column("x"), np.sin(kept), rtol=1e-12)
    with file.open("a") as out:
        out.write(json.dumps({"row": rows + 1, "steps": 1}) + "\n")
    assert made.refresh().column("row")[-1] == rows + 1


# --------------------------------------------------------------------------------------- figures
def test_a_curve_has_every_known_point_over_steps_and_over_time(tmp_path: Path) -> None:
    run = RunFiles(write_run(tmp_path / "one", rows=4))
    run.refresh()
    for x, expected in (("steps", [100, 200, 300, 400]), ("seconds", [0.5, 1.0, 1.5, 2.0])):
        (line,) = charts.curve({"one": run}, "loss", x=x)["data"]
        assert line["x"] == expected
        assert line["y"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], abs=1e-5)


def test_smoothing_is_the_average_of_the_past_without_a_bias() -> None:
    y = np.array([4.0, 4.0, math.nan, 4.0, 0.0])
    found = charts.smoothed(y, 0.5)
    assert found[[0, 1, 3]] == pytest.approx([4, 4, 4]) and math.isnan(found[2])
    weights = np.array([0.5**3, 0.5**2, 0.5, 1.0])
    assert found[4] == pytest.approx((weights * [4, 4, 4, 0]).sum() / weights.sum())
    assert charts.smoothed(y, 0.0) is y


def test_runs_that_differ_by_their_seed_share_a_band(tmp_path: Path) -> None:
    runs = {f"s{seed}": RunFiles(write_run(tmp_path / f"s{seed}", rows=3 + seed, seed=seed)) for seed in range(2)}
    runs["other"] = RunFiles(write_run(tmp_path / "other", learning_rate=0.1))
    assert page.seeds(runs) == [["s0", "s1"]]
    assert [row[0] for row in page.differing(runs)] == ["learning_rate", "seed"]
    for run in runs.values():
        run.refresh()
    drawn = charts.curve(runs, "episode_return", bands=page.seeds(runs))
    mean = drawn["data"][-1]
    assert mean["name"].startswith("mean and range of 2 seeds") and mean["x"][-1] == 300, "which both cover"
    assert mean["y"][-1] == pytest.approx(3.0)


def test_resumes_changed_settings_and_restarts_are_marks_on_the_axis(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", rows=1)
    files = MetricFiles(path, 1)
    for row, restarts in ((2, 0), (3, 1)):
        files.update(snapshot(row, restarts=restarts))
    files.close()
    facts = json.loads((path / "config.json").read_text())
    facts["changes"] = [{"steps": 200, "settings": {"learning_rate": [0.001, 0.5]}}]
    facts["resumed"] = [150, 200, "damaged"]
    (path / "config.json").write_text(json.dumps(facts))
    run = RunFiles(path)
    run.refresh()
    marks = charts.marks_of(run, "steps")
    assert [(mark["note"]["text"], mark["note"]["x"]) for mark in marks] == [
        ("resumed", 150.0), ("resumed: learning_rate 0.5", 200.0), ("restart", 300.0),
    ]  # fmt: skip


def test_the_figures_of_each_role_and_channel_are_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    lock, files = RunLock(path), MetricFiles(path, 3)
    files.update(snapshot(4, phases={"actor": ["env"] * 198 + ["restarting", "dead"], "learner": ["wait:unrolls"]}))
    parts = {name: dict(part) for name, part in page.state("one", RunFiles(path))["parts"].items()}
    files.close()
    lock.release()
    assert set(parts) == {"role/actor", "role/learner", "channel/unrolls", "channel/params"}
    assert parts["role/actor"]["replicas now"] == "198 env, 1 restarting, 1 dead", "of all, not of those drawn"
    assert parts["role/actor"]["not at work"] == "actor[198] restarting, actor[199] dead"
    assert parts["role/learner"]["bottleneck"].startswith("learner-bound") and "bottleneck" not in parts["role/actor"]
    assert parts["channel/unrolls"]["now"].startswith("25% full")
    assert (parts["channel/unrolls"]["from"], parts["channel/unrolls"]["to"]) == ("actor", "learner")


def test_no_value_that_few_rows_have_goes_missing_where_rows_are_left_out(tmp_path: Path) -> None:
    rows = 5 * series.MOST_ROWS + 3
    lines = [
        {"row": i, "steps": i, "loss": 1.0} | ({"score": float(i)} if i % 777 == 0 else {}) for i in range(1, rows)
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept = series.Table(Folder(tmp_path), "m.jsonl", carries=True).refresh()
    score, steps = kept.column("score"), kept.column("steps")
    found = np.isfinite(score)
    assert score[found].tolist() == [float(i) for i in range(777, rows, 777)]
    assert np.abs(steps[found] - score[found]).max() < kept.stride > 1
    assert np.isfinite(kept.column("loss")).all()


@pytest.mark.parametrize("x, places", [("steps", [100.0, 250.0]), ("seconds", [0.5, 1.25])])
def test_every_evaluation_is_a_point_of_its_curve(tmp_path: Path, x: str, places: list[float]) -> None:
    path = write_run(tmp_path / "one")
    (path / "evaluations.csv").write_text("steps,episodes,mean\n100,10,1.5\n250,10,2.5\n")
    run = RunFiles(path)
    run.refresh()
    (line,) = charts.curve({"one": run}, "evaluation_return", x=x)["data"]
    assert (line["x"], line["y"]) == (places, [1.5, 2.5])


def test_the_list_tells_when_a_resumed_run_has_ended_again(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs" / "one", ended="steps")
    site = Site(Catalogue([tmp_path / "runs"]))
    lock = RunLock(path)
    assert [row["state"] for row in site.listing()["runs"]] == ["running"]
    lock.release()
    assert [row["state"] for row in site.listing()["runs"]] == ["steps"]


def test_a_population_in_the_list_has_its_best_score_and_the_steps_of_all_members(tmp_path: Path) -> None:
    path = tmp_path / "pop"
    path.mkdir()
    (path / "population.json").write_text('{"system": "impala", "seed": 3, "values": {"env": "CartPole-v1"}}')
    (path / "scores.csv").write_text("member,step,score\n0,10,99\n1,20,7\n0,30,5\n1,40,nan\n2,x\n")
    (row,) = Site(Catalogue([tmp_path])).listing()["runs"]
    shown = {name: row[name] for name in ("system", "env", "seed", "steps", "return", "state")}
    assert shown == {
        "system": "population of impala", "env": "CartPole-v1", "seed": "3", "steps": 70, "return": 5.0,
        "state": "ended",
    }  # fmt: skip
    (path / "population.json").write_text("[")
    assert Site(Catalogue([tmp_path])).listing()["runs"][0]["system"] == "population of ?"


def test_tables_of_the_runs_that_were_asked_for_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.watch.site.MOST_KEPT", 2)
    for name in "abc":
        write_run(tmp_path / name)
    site = Site(Catalogue([tmp_path]))
    for name in ("a", "b", "a", "c", "c"):
        site.run(name)
    assert [path.name for path in site._runs] == ["a", "c"]


def test_runs_that_do_not_fit_into_a_figure_are_counted(tmp_path: Path) -> None:
    for i in range(22):
        write_run(tmp_path / f"{i}", seed=i)
    site = Site(Catalogue([tmp_path]))
    found = site.curves([*map(str, range(22))], ["loss"], "steps", 0.0, False)
    assert found["left_out"] == 2 and site.curves(["0", "1", "1"], ["loss"], "steps", 0.0, False)["left_out"] == 0


def test_a_chart_has_no_button_that_sends_it_away(tmp_path: Path) -> None:
    config = charts.figure([], "one", "steps")["config"]
    buttons = [button for group in config["modeBarButtons"] for button in group]
    assert "sendDataToCloud" not in buttons and "sendChartToCloud" not in buttons and config["plotlyServerURL"] == ""


def test_figures_are_of_a_bounded_size(tmp_path: Path) -> None:
    x = np.arange(50_000.0)
    drawn = charts.line(x, x, "name")
    assert len(drawn["x"]) == charts.POINTS and drawn["x"][0] == 0 and drawn["x"][-1] == 49_999


# ------------------------------------------------------------------------------------- catalogue
def test_runs_are_found_below_a_directory_each_under_its_place(tmp_path: Path) -> None:
    for name in ("a", "sweep/seed-0", "sweep/seed-1"):
        write_run(tmp_path / name)
    (tmp_path / "pbt" / "members").mkdir(parents=True)
    (tmp_path / "pbt" / "population.json").write_text("{}")
    write_run(tmp_path / "pbt" / "members" / "000")
    found = Catalogue([tmp_path])
    assert sorted(found.find()) == ["a", "pbt", "pbt/members/000", "sweep/seed-0", "sweep/seed-1"]
    assert found.single is None and Catalogue([tmp_path / "a"]).single == "a"
    assert sorted(Catalogue([tmp_path / "a", tmp_path / "sweep"]).find()) == ["a", "sweep/seed-0", "sweep/seed-1"]


def test_runs_of_one_name_in_two_places_are_told_apart(tmp_path: Path) -> None:
    for name in ("x/r", "y/r"):
        write_run(tmp_path / name)
    assert len(Catalogue([tmp_path / "x" / "r", tmp_path / "y" / "r"]).find()) == 2


def test_a_population_has_its_scores_its_lineage_and_its_hyperparameters(tmp_path: Path) -> None:
    path = tmp_path / "pbt"
    path.mkdir()
    (path / "population.json").write_text("{}")
    (path / "scores.csv").write_text(
        "member,step,score,seconds,learning_rate\n0,10,1,1,0.1\n1,10,5,1,0.2\n0,20,6,2,0.3\n1,2000,,2,0.000248832\n"
    )
    (path / "lineage.csv").write_text(
        "child,parent,step,parent_step,score,parent_score,before/learning_rate,after/learning_rate\n0,1,10,10,1,5,0.1,0.3\n"
    )
    state = Site(Catalogue([path])).run("pbt")["population"]
    assert state["columns"] == ["member", "steps", "score", "learning_rate"] and state["rows"][0] == [
        "0",
        "20",
        "6",
        "0.3",
    ]
    assert state["rows"][1] == ["1", "2,000", "5", "0.0002488"], "of the last turn that had a score"
    score, rate = state["figures"]
    assert score["data"][0]["y"] == [1, None, 5, 6], "its line ends, and goes on from the other's score"
    assert rate["layout"]["yaxis"]["type"] == "log" and rate["data"][0]["y"] == [0.1, None, 0.3, 0.3]


@pytest.mark.parametrize("content", [b"", b"\xff", b"member\nx\n", b"member,step,score\n0,1e999,nan\n", b'"'])
def test_a_damaged_population_breaks_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pbt"
    path.mkdir()
    for name in ("population.json", "scores.csv", "lineage.csv"):
        (path / name).write_bytes(content)
    json.dumps(Site(Catalogue([path])).run("pbt"), allow_nan=False)


def test_the_list_tells_of_a_run_that_ends_and_of_one_that_goes_on_again(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    site = Site(Catalogue([tmp_path]))
    found = [site.listing()["runs"][0]["state"]]
    report = {"format": 2, "reason": "steps", "steps": 300, "episode_return": 7.0}
    (path / "report.json").write_text(json.dumps(report))
    found.append(site.listing()["runs"][0]["state"])
    assert site.listing() == site.listing()
    (path / "report.json").unlink()
    lock = RunLock(path)
    found.append(site.listing()["runs"][0]["state"])
    lock.release()
    assert found[1:] == ["steps", "running"] and found[0] in ("running", "killed")


@pytest.mark.parametrize("rows, best, expected", [
    ([], {}, None), ([{"steps": "100"}], {}, None), ([{"steps": "100"}], {"steps": 100}, 0),
    ([{"steps": "99999.6"}, {"steps": "100000"}], {"steps": 100_000}, 1),
    ([{"steps": "7"}, {"steps": "nan"}, {"mean": "7"}, {"steps": "7"}], {"steps": 7}, 3),
])  # fmt: skip
def test_the_best_evaluation_is_found_by_its_steps_as_they_are_in_the_file(
    rows: list[dict[str, str]], best: dict[str, int], expected: int | None
) -> None:
    assert page.best_row(rows, best) == expected


def test_a_serial_run_counts_what_its_channels_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Snapshot] = []
    monkeypatch.setattr(LiveFile, "update", lambda self, snapshot: seen.append(snapshot))
    shoal.train(
        "impala", env="CartPole-v1", preset="none", runtime="serial", actors=1, envs=2, unroll=5, hidden=(8,),
        steps=300, run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    read = seen[-1].steps // 10  # unrolls of 2 environments, 5 steps each; those that wait are not counted as steps
    assert read <= seen[-1].moved["trajectories"] <= read + 4


def test_items_per_second_are_told_where_no_phases_are(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    (path / "live.json").unlink()
    live = LiveFile(path)
    for row in (1, 2):
        live.update(snapshot(row, phases={}))
    state = page.state("one", RunFiles(path))
    assert any("8.0 items/s" in value for _, value in state["parts"]["channel/unrolls"])
    live.update(snapshot(3, phases={}, moved={}))
    assert json.loads((path / "live.json").read_text())["row"] == 2, "a runtime that tells nothing writes nothing"
