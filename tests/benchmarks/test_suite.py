"""The suite of tasks: which runs are missing, and what its table says of those that are recorded."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import shoal
from shoal.systems import SYSTEMS

FOLDER = str(Path(__file__).parents[2] / "benchmarks")  # of programs, one of which bears the name of a package: mujoco
sys.path.insert(0, FOLDER)
suite, suite_tasks = importlib.import_module("suite"), importlib.import_module("suite_tasks")
sys.path.remove(FOLDER)
TASKS, Task = suite_tasks.TASKS, suite_tasks.Task


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "KEPT", tmp_path)
    return tmp_path


def record(task, system, seed, greedy, sampled, default="greedy"):
    target = suite.folder(task, system, seed)
    target.mkdir(parents=True)
    result = {"seed": seed, "preset": "vector", "default": default, "returns": {"greedy": greedy, "sampled": sampled}}
    (target / "result.json").write_text(json.dumps(result))


def test_every_task_has_a_source_and_systems_that_there_are():
    for task in (task for tasks in TASKS.values() for task in tasks):
        assert task.source and "{}" not in task.source
        assert {*task.systems} <= {*SYSTEMS} and {*task.chosen} <= {*task.systems}


def test_every_kind_has_a_task_that_no_preset_was_chosen_on():
    for tasks in TASKS.values():
        assert any(set(task.systems) - set(task.chosen) for task in tasks)


def test_recorded_runs_are_not_missing_and_first_seeds_come_first(kept):
    task = next(t for t in TASKS["classic"] if t.env == "Pendulum-v1")
    record(task, "impala", 1, [-150.0], [-160.0])
    found = suite.missing(["Pendulum-v1", "impala"], [1, 2], again=False)
    assert [(t.env, system, seed) for t, system, seed in found] == [("Pendulum-v1", "impala", 2)]
    assert len(suite.missing(["Pendulum-v1", "impala"], [1, 2], again=True)) == 2
    every = [seed for _, _, seed in suite.missing(["Pendulum-v1"], [7, 8], again=False)]
    assert every == sorted(every) and {*every} == {7, 8}


@pytest.mark.parametrize(
    ("words", "systems"),
    [
        (["dqn"], {"dqn"}),
        (["classic", "d4pg"], {"d4pg"}),
        (["Reacher"], {"recurrent-ppo", "impala", "apex-dpg", "d4pg"}),
    ],
)
def test_words_name_kinds_systems_and_parts_of_tasks(words, systems):
    assert {system for _, _, system in suite.pairs(words)} == systems


def test_runs_by_other_values_of_a_preset_are_shown_and_not_counted(kept):
    task = next(task for task in TASKS["classic"] if task.env == "Acrobot-v1")
    preset = importlib.import_module(SYSTEMS["dqn"]).PRESETS["classic"]
    for seed, steps, score in ((1, preset["steps"], -90.0), (2, 7, -300.0)):
        record(task, "dqn", seed, [score], [score])
        told = {name: str(value) if name == "learning_rate" else value for name, value in preset.items()}
        facts = {"system": "dqn", "preset": "classic", "config": told | {"steps": steps}, "origins": {}}
        (suite.folder(task, "dqn", seed) / "config.json").write_text(json.dumps(facts))
    told = suite.summary()
    assert told.startswith("1 of 1 pairs") and "1, 2 (older)" in told
    assert [seed for _, _, seed in suite.missing(["Acrobot-v1", "dqn"], [1, 2], again=False)] == [2]


@pytest.mark.parametrize(("early", "marks"), [(True, [-100.0]), (False, [])])
def test_only_early_runs_are_watched_for_their_mark(monkeypatch, early, marks):
    class Asked(Exception):
        pass

    def train(system, **given):
        raise Asked([observer.mark for observer in given["observers"]])

    monkeypatch.setattr(shoal, "train", train)
    task = next(task for task in TASKS["classic"] if task.env == "Acrobot-v1")
    with pytest.raises(Asked) as asked:
        suite.play(task, "dqn", 1, early)
    assert asked.value.args == (marks,)


def test_table_says_after_how_many_steps_a_run_ended_at_its_mark(kept):
    task = next(task for task in TASKS["classic"] if task.env == "Acrobot-v1")
    record(task, "dqn", 1, [-90.0], [-90.0])
    record(task, "dqn", 2, [-90.0], [-90.0])
    for seed, reason in ((1, "steps"), (2, "observer")):
        path = suite.folder(task, "dqn", seed) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"reason": reason, "steps": 12_345}))
    assert suite.summary().count("1, 2 (ended after 12,345 steps)") == 1


def test_early_run_ends_at_its_mark_twice_as_many_steps_in_as_when_it_first_was():
    curve = [(100, float("nan")), (200, -50.0), (300, 5.0), (500, 6.0), (550, 4.9), (599, 5.0), (600, 4.9), (700, 5.0)]
    held = suite.Held(5.0)
    ends = [steps for steps, score in curve if held({"steps": steps, "episode_return": score})]
    assert ends == [700] and not suite.Held(5.0)({"steps": 0})


def test_table_marks_what_misses_and_counts_pairs_that_were_not_chosen(kept):
    by_env = {task.env: task for tasks in TASKS.values() for task in tasks}
    record(by_env["Acrobot-v1"], "dqn", 1, [-90.0, -80.0], [-120.0, -120.0])
    record(by_env["Acrobot-v1"], "dqn", 2, [-110.0, -120.0], [-90.0, -90.0])
    record(by_env["MountainCar-v0"], "dqn", 1, [-100.0], [-150.0])
    record(by_env["CartPole-v1"], "dqn", 1, [500.0], [490.0])  # chosen here: it shows nothing
    told = suite.summary()
    assert told.startswith("1 of 2 pairs") and "-85 / **-115**" in told and "chosen here" in told
