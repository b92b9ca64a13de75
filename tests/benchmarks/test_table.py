"""The table of the field: how scores become one number, which runs are missing, and what the page says of the rest."""

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.analysis.stats import bootstrap_strata, median_of_means
from shoal.systems import SYSTEMS

FOLDER = str(Path(__file__).parents[2] / "benchmarks")  # of programs, one of which bears the name of a package: mujoco
sys.path.insert(0, FOLDER)
table, page, scores, suites, runs = map(
    importlib.import_module, ("table", "table_page", "table_scores", "table_suites", "recorded_runs")
)
sys.path.remove(FOLDER)
MINATAR = suites.MINATAR


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "KEPT", tmp_path / "kept")
    return tmp_path / "kept"


def short(name="short", frames=1_000, minutes=0):
    return table.Record(name, "minatar", frames, minutes)


def random_is(env, mean):
    path = table.KEPT / "random" / f"{table.slug(env)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mean": mean, "standard_error": 0.1, "episodes": 10}))


def put(record, row, env, seed, returns, budget="frames-1000", **more):
    way = "greedy" if record.of.row(row).greedy else "sampled"
    result = {"seed": seed, "steps": 1_000, "seconds": 10.0, "cores": 1, "returns": {way: returns}, **more}
    curve = "steps,seconds,episode_return\n100,1,0.5\n1000,10,2.5\n"
    runs.keep(record.run(record.of.row(row), record.of.task(env), budget, seed), result, {"curve.csv": curve})


# ------------------------------------------------------------------------------------------------ aggregation
def slow_iqm(values):
    """The mean of what is left after the lowest and the highest quarter, rounded down, are taken away one by one."""
    left = sorted(values)
    for _ in range(len(left) // 4):
        left.pop(0)
        left.pop()
    return sum(left) / len(left)


def slow_median(by_task):
    means = sorted(sum(runs) / len(runs) for runs in by_task.values())
    half = len(means) // 2
    return means[half] if len(means) % 2 else (means[half - 1] + means[half]) / 2


@pytest.mark.parametrize("counts", [(3, 3, 3, 3, 3), (1, 1), (4, 1, 2), (1,)])
def test_the_aggregate_is_the_interquartile_mean_and_the_median_over_tasks_by_their_definitions(counts):
    rng = np.random.default_rng(sum(counts))
    by_task = {str(i): rng.normal(size=n).tolist() for i, n in enumerate(counts)}
    found = scores.aggregate(by_task, samples=50)
    assert found.iqm == pytest.approx(slow_iqm([x for runs in by_task.values() for x in runs]))
    assert found.median == pytest.approx(slow_median(by_task))
    assert (found.runs, found.tasks) == (sum(counts), len(counts))
    if max(counts) == 1:
        assert found.iqm_interval == pytest.approx((found.iqm, found.iqm))
        assert found.median_interval == pytest.approx((found.median, found.median))


def test_intervals_are_of_runs_drawn_within_each_task():
    """Two tasks of two runs each: all sixteen equally likely draws are counted out, and the bootstrap's ends are the
    quantiles of that law. Draws across tasks would reach 0 and 11."""
    by_task = {"low": [0.0, 1.0], "high": [10.0, 11.0]}
    law = sorted(
        slow_median({"low": low, "high": high})
        for low in itertools.product(by_task["low"], repeat=2)
        for high in itertools.product(by_task["high"], repeat=2)
    )
    assert (law[0], law[-1]) == (5.0, 6.0)
    found = scores.aggregate(by_task, samples=4_000)
    assert found.median_interval == pytest.approx((law[0], law[-1]))  # each has a sixteenth, more than 2.5 %
    low, high = bootstrap_strata([np.array(x) for x in by_task.values()], median_of_means, confidence=0.5)
    assert (float(low), float(high)) == pytest.approx((5.25, 5.75))


def test_nothing_has_no_aggregate_and_tasks_without_runs_are_left_out():
    assert scores.aggregate({}) is None and scores.aggregate({"a": [], "b": []}) is None
    assert scores.aggregate({"a": [], "b": [0.5]}, samples=10).tasks == 1


def test_random_play_is_normalised_to_0_and_the_published_figure_to_1():
    assert scores.normalised(-1_000.0, -1_000.0, -150.0) == 0.0
    assert scores.normalised(-150.0, -1_000.0, -150.0) == 1.0
    assert scores.normalised(-1_425.0, -1_000.0, -150.0) == pytest.approx(-0.5)
    with pytest.raises(ValueError, match="both 3"):
        scores.normalised(1.0, 3.0, 3.0)


def test_a_fresh_seeds_interval_is_students_and_needs_two_seeds():
    assert scores.fresh_interval([1.0]) is None
    low, high = scores.fresh_interval([0.0, 1.0, 2.0])  # t of 2 degrees of freedom: 4.302653
    assert (low, high) == pytest.approx((1 - 4.302653 * (4 / 3) ** 0.5, 1 + 4.302653 * (4 / 3) ** 0.5))


# ------------------------------------------------------------------------------------------------ suites
def test_suites_name_systems_that_there_are_rows_that_they_claim_and_sources():
    for suite in suites.SUITES.values():
        names = [row.name for row in suite.rows]
        assert len({*names}) == len(names)
        assert {row.system for row in suite.rows if not row.peer} <= {*SYSTEMS}
        assert {name for claim in suite.claims for name in (claim.better, claim.worse)} <= {*names}
        assert all(task.source and "{" not in task.source for task in suite.tasks)


def test_every_row_has_the_suites_preset_which_all_have_the_same_torso():
    for row in MINATAR.rows:
        if not row.peer:
            module = importlib.import_module(f"shoal.systems.{row.system.replace('-', '_')}")
            assert module.PRESETS[MINATAR.preset]["torso"] == "minatar"
            assert {*row.fields} <= {*module.Config.__dataclass_fields__}


# ------------------------------------------------------------------------------------------------ runs
def test_recorded_runs_are_not_missing_and_equal_frames_and_first_seeds_come_first(kept):
    record = short(minutes=5)
    put(record, "IMPALA", "MinAtar/Breakout-v1", 0, [1.0])
    found = table.missing(record, ["impala", "breakout"], [0, 1])
    assert [(budget, seed) for _, _, budget, seed in found] == [
        ("frames-1000", 1), ("minutes-5", 0), ("minutes-5", 1),
    ]  # fmt: skip
    every = table.missing(record, [], [0, 1])
    assert len(every) == len(MINATAR.rows) * 5 * 2 * 2 - 1


def test_a_word_is_the_whole_name_of_a_system_before_a_part_of_others_and_an_unknown_one_is_refused(capsys):
    rows = {row.name for row, _ in table.chosen(MINATAR, ["dqn", "Breakout"])}
    assert rows == {"DQN", "Stable-Baselines3 DQN"}
    assert {row.name for row, _ in table.chosen(MINATAR, ["Stable"])} == {r.name for r in MINATAR.rows if r.peer}
    with pytest.raises(SystemExit) as refused:
        list(table.chosen(MINATAR, ["Breakuot"]))
    assert refused.value.code == 2 and "--only Breakuot names no row and no task" in capsys.readouterr().err


def test_schedules_of_a_run_by_time_end_where_the_recorded_rate_says(kept):
    record = short(minutes=5)
    row, task = MINATAR.row("DQN"), MINATAR.task("MinAtar/Breakout-v1")
    assert table.horizon(record, row, task) == table.HORIZON * 1_000
    put(record, "DQN", task.env, 0, [1.0])  # 100 steps a second
    assert table.horizon(record, row, task) == 100 * 300


def test_what_was_half_written_when_a_run_was_killed_is_neither_recorded_nor_in_the_way(kept, monkeypatch):
    record = short()
    row, task = MINATAR.row("DQN"), MINATAR.task("MinAtar/Breakout-v1")
    target = record.run(row, task, "frames-1000", 0)
    monkeypatch.setattr(runs.Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        put(record, "DQN", task.env, 0, [1.0])
    monkeypatch.undo()
    monkeypatch.setattr(table, "KEPT", kept)
    assert runs.kept(target) is None and record.results(row, task, "frames-1000") == []
    for returns in ([1.0], [2.0]):  # also in place of what was there
        put(record, "DQN", task.env, 0, returns)
        assert record.results(row, task, "frames-1000")[0]["returns"]["greedy"] == returns
    assert [path.name for path in target.parent.iterdir()] == ["0"]


SLOW = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests with `&` had it ignored
sys.path.insert(0, {folder!r})
from recorded_runs import Job, keep, kept, run_jobs
home = Path({home!r})
if sys.argv[1:]:  # a run: the second waits until it is allowed to go on
    if sys.argv[1] == "1" and not (home / "go").exists():
        (home / "new").write_text(str(os.getpid()))
        (home / "new").rename(home / "begun")
        time.sleep(600)
    keep(home / sys.argv[1], {{"seed": int(sys.argv[1])}}, {{}})
else:
    with (home / "log").open("a") as log:
        todo = [i for i in range(3) if kept(home / str(i)) is None]
        log.write(f"{{todo}}\\n")
    print(run_jobs([Job(str(i), (sys.executable, __file__, str(i))) for i in todo], [[{core}]], 1.0))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_table_that_was_ended_goes_on_with_the_runs_that_are_missing(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(SLOW.format(folder=FOLDER, home=str(tmp_path), core=min(os.sched_getaffinity(0))))
    first = subprocess.Popen([sys.executable, script], stdout=subprocess.DEVNULL)
    while not (tmp_path / "begun").exists():
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(how)
    assert first.wait() != 0
    assert not Path("/proc", (tmp_path / "begun").read_text()).exists()  # its run has ended with it
    assert runs.kept(tmp_path / "0") == {"seed": 0} and runs.kept(tmp_path / "1") is None
    (tmp_path / "go").touch()
    told = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert [runs.kept(tmp_path / str(i)) for i in range(3)] == [{"seed": i} for i in range(3)]
    assert (tmp_path / "log").read_text().splitlines() == ["[0, 1, 2]", "[1, 2]"] and told.splitlines()[-1] == "[]"


# ------------------------------------------------------------------------------------------------ the check
def test_a_check_fails_below_the_committed_interval_alone():
    assert table.verdict("x", 0.9, [1.0, 1.1, 1.2])[0]
    assert "within" in table.verdict("x", 1.0, [1.0, 1.1, 1.2])[1]
    assert table.verdict("x", 0.1, [1.0, 1.1, 1.2]) == (False, "x: 0.100 is below [0.603, 1.597] of 3 committed seeds")
    assert table.verdict("x", 9.0, [1.0, 1.1, 1.2])[0]
    assert not table.verdict("x", None, [1.0, 1.1])[0]
    assert "two are needed" in table.verdict("x", 1.0, [1.0])[1]


def test_a_seeds_score_is_over_the_tasks_that_it_has_all(kept):
    record = short()
    for env in ("MinAtar/Breakout-v1", "MinAtar/Freeway-v1"):
        random_is(env, 0.0)
        put(record, "DQN", env, 0, [14.0])
    put(record, "DQN", "MinAtar/Breakout-v1", 1, [28.0])
    envs = ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"]
    row = MINATAR.row("DQN")
    assert table.seed_scores(record, row, "frames-1000", envs) == {0: pytest.approx((14 / 28 + 14 / 58) / 2)}
    assert table.seed_scores(record, row, "frames-1000", envs[:1]) == {0: 0.5, 1: 1.0}


# ------------------------------------------------------------------------------------------------ the page
def test_the_page_is_drawn_from_raw_files_and_says_what_is_not_run(kept, tmp_path):
    record = short()
    record.write()
    random_is("MinAtar/Breakout-v1", 0.0)
    random_is("MinAtar/Seaquest-v1", 0.0)
    put(record, "DQN", "MinAtar/Breakout-v1", 0, [6.0, 8.0])
    put(record, "IMPALA", "MinAtar/Breakout-v1", 0, [21.0])
    put(record, "A3C", "MinAtar/Breakout-v1", 0, [2.0])
    put(record, "Gorila", "MinAtar/Breakout-v1", 0, [1.0])
    put(record, "ES", "MinAtar/Seaquest-v1", 0, [3.25])
    page.draw(tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    rows = [line for line in text.partition("a shorter table, short")[2].splitlines() if line.startswith("| ")]
    by_name = {line.split(" | ")[0].removeprefix("| "): line for line in rows}
    assert list(by_name)[1:5] == ["IMPALA", "DQN", "A3C", "Gorila"]  # best first
    first = by_name["DQN"].split(" | ")
    assert first[1:5] == ["0.250 [0.250, 0.250]", "0.250 [0.250, 0.250]", "1 of 5", "0"] and first[6] == "7"
    assert "3.25" in by_name["ES"] and by_name["ES"].split(" | ")[1] == "-"  # no published figure, no mean
    missing = [
        line for line in text.partition("a shorter table, short")[2].splitlines() if line.startswith("Not run yet")
    ]
    assert "R2D2" not in by_name and all(", R2D2, " in line for line in missing) and len(missing) == 1
    assert "held, by one seed | 0.750 against 0.071 on 1 task" in by_name["IMPALA > A3C"]
    assert "not held, by one seed" in by_name["Gorila > DQN"] and "UNREAL > A3C" not in by_name
    (undecided,) = [line for line in text.splitlines() if line.startswith("Not decided, since")]
    assert ", UNREAL > A3C" in undecided and "IMPALA > A3C" not in undecided
    picture = (tmp_path / "pictures" / "table-short.svg").read_text()
    assert picture.count("<polyline") == 4 + 4 + 1  # the profile, Breakout, Seaquest
    before = text
    page.draw(tmp_path / "table.md")
    assert (tmp_path / "table.md").read_text() == before


def test_a_page_of_nothing_has_no_figure(kept, tmp_path):
    page.draw(tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    assert text.count("No system has been run for this table yet.") == len(suites.SUITES)
    assert not [row.name for suite in suites.SUITES.values() for row in suite.rows if f"| {row.name} |" in text]
    assert not (tmp_path / "pictures").exists()
