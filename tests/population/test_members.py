"""A population of runs: slices, copies, kills, signals, resuming, and the commands that read it."""

from __future__ import annotations

import csv
import errno
import importlib.util
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from shoal.api import ShoalError, UsageError
from shoal.cli import main as cli
from shoal.local import descriptors
from shoal.records import checkpoint
from shoal.records.run_lock import RunLock
from shoal.run import Run, runtimes
from shoal.run.population import slots
from shoal.run.population.hyperparameters import Interval, interval_of
from shoal.run.population.member import Reached, Slice, check_space, copy_member, train_slice
from shoal.run.population.training import PopulationRun, Setup, best_member, member_path
from shoal.runtime import memory
from shoal.settings import schedule
from shoal.settings.config import resolve
from shoal.settings.ranges import Fraction
from shoal.systems import impala, recurrent_ppo

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
sys.path.insert(0, str(Path(__file__).parents[1] / "systems"))
from helpers import spy
from states import same

RECURRENT = "--of recurrent-ppo --core lstm --core-size 8 --envs 8 --actors 1 --unroll 8"
FIELDS = dict(env="CartPole-v1", actors=1, envs=4, unroll=8, hidden=(8,), device="cpu", steps=3_000,
              learning_rate=1e-3, optimiser="rmsprop")  # fmt: skip


def values(**fields: Any) -> dict[str, Any]:
    resolved = resolve(impala, "none", None, {**FIELDS, **fields}, source="argument", name="impala")
    return {k: list(v) if isinstance(v, tuple) else v for k, v in resolved.values().items()}


def piece(path: Path, until: int, seed: int = 0, **fields: Any) -> Slice:
    return Slice(path, "impala", values(**fields), dict.fromkeys(values(), "default"), "none", seed, until)


def setup(**fields: Any) -> Setup:
    plain = values()
    space = {name: interval_of(name, plain[name]) for name in ("learning_rate", "entropy_cost")}
    given = dict(system="impala", values=plain, origins=dict.fromkeys(plain, "default"), preset="none", space=space,
                 size=3, rules=dict(interval=500, share=0.34), steps=1_500, slots=2, seed=0)  # fmt: skip
    return Setup(**{**given, **fields})


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_what_is_mutated_is_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the optimiser was saved with another value: its averages travel, its settings do not."""
    made: list[Any] = []
    program = impala.program
    monkeypatch.setattr(impala, "program", lambda cfg: spy(program(cfg), "learner", made.append))
    first = train_slice(piece(tmp_path / "m", 300, learning_rate=1e-3, optimiser_eps=0.1, entropy_cost=0.02))
    assert first.reason == "steps" and 300 <= first.steps < 400 and first.returns
    squares = {k: v["square_avg"].clone() for k, v in made[0].learner.optimiser.state_dict()["state"].items()}
    new: dict[str, Any] = dict(learning_rate=5e-4, optimiser_eps=0.3, entropy_cost=0.005)
    second = train_slice(piece(tmp_path / "m", 301, **new))
    assert second.steps == first.steps and second.returns == []  # nothing to do: it is there already
    third = train_slice(piece(tmp_path / "m", 600, **new))
    learner = made[-1].learner
    (group,) = learner.optimiser.param_groups
    assert (group["lr"], group["eps"], learner.algorithm.cfg.entropy_cost) == (5e-4, 0.3, 0.005)
    assert learner.step > made[0].learner.step and third.steps >= 600
    assert squares.keys() == learner.optimiser.state_dict()["state"].keys()
    assert json.loads((tmp_path / "m" / "config.json").read_text())["config"]["learning_rate"] == 5e-4


def test_a_copy_is_the_parent_bit_for_bit_and_then_goes_its_own_way(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    reached = train_slice(piece(parent, 300))
    train_slice(piece(child, 600, seed=1))
    assert copy_member(parent, child, reached.steps) == reached.steps
    one, other = (checkpoint.newest(path / checkpoint.FOLDER) for path in (parent, child))
    assert one.manifest == other.manifest
    for name in one.manifest["files"]:
        if name.endswith(".json"):
            same(one.read(name[:-5]), other.read(name[:-5]))
    assert (parent / "metrics.csv").read_bytes() == (child / "metrics.csv").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["child", "parent"]
    after = [train_slice(piece(path, 600, seed)) for seed, path in enumerate((parent, child))]
    assert after[0].returns != after[1].returns  # other seeds


def test_a_slice_takes_no_less_time_for_the_writing_of_the_checkpoint_before(tmp_path: Path) -> None:
    train_slice(piece(tmp_path, 64))
    (manifest,) = (tmp_path / "checkpoints").glob("*/manifest.json")
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(facts | {"seconds": facts["seconds"] + 1000.0}))
    assert 0.0 < train_slice(piece(tmp_path, 128)).seconds < 60.0


def test_a_population_survives_kills_and_a_signal_and_is_read_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, told = tmp_path / "run", []
    killed: list[int] = []
    signalled: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        busy = [pid for pid in run.slots.busy().values() if pid not in killed]
        if busy and not any("failed: killed" in line for line in told):  # one may have ended its slice just then
            killed.append(busy[0])
            os.kill(busy[0], signal.SIGKILL)
        elif killed and len(told) > 4 and not signalled:
            signalled.append(line)
            os.kill(os.getpid(), signal.SIGTERM)

    run = PopulationRun.begin(path, setup(steps=3_000), tell)
    ended = run.go()
    assert ended.reason == "terminated" and killed
    text = (path / "summary.md").read_text()
    for part in (
        "# A population of 3 of impala on CartPole-v1, seed 0", "\nended: terminated (written", "| command | `",
        "failed: killed by SIGKILL", f"shoal resume {path}", "| member | steps | score | learning_rate |",
    ):  # fmt: skip
        assert part in text, part
    assert any("failed: killed by SIGKILL" in line for line in told)
    unfinished = PopulationRun.reopen(path)
    assert unfinished.control.members == run.control.members
    assert unfinished.go().reason == "steps"
    assert "\nended: steps (written" in (path / "summary.md").read_text()
    assert all(m.trained >= 3_000 for m in unfinished.control.members)
    scores, copies = rows(path / "scores.csv"), rows(path / "lineage.csv")
    assert {row["member"] for row in scores} == {"0", "1", "2"} and len(copies) == len(unfinished.control.lineage) > 0
    for copy in copies:  # the child goes on with what it was given
        config = [row for row in scores if row["member"] == copy["child"]]
        assert any(row["learning_rate"] == copy["after/learning_rate"] for row in config)
    for member in unfinished.control.members:
        used = json.loads((member_path(path, member.index) / "config.json").read_text())["config"]
        assert {k: used[k] for k in member.values} == member.values
    best = unfinished.control.best()
    assert Run.open(path).path == best_member(path) == member_path(path, best.index)
    assert cli.main(["eval", str(path), "--episodes", "2"]) == 0
    assert cli.main(["export", str(path), "--to", "safetensors"]) == 0, "beside the members, which may be replaced"
    assert (path / "export" / "safetensors-last" / "model.json").is_file()
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert cli.main(["plot", str(path), "--out", str(tmp_path / "tree.png")]) == (0 if drawn else 2)
    assert (tmp_path / "tree.png").stat().st_size > 10_000 if drawn else "[plot]" in capsys.readouterr().err
    assert cli.main(["resume", str(path)]) == 2
    assert "is finished" in capsys.readouterr().err
    assert "\nended: steps (written" in (path / "summary.md").read_text()
    for flag, value in (("--runtime", "local"), ("--address", "auto"), ("--learning-rate", "1e-3")):
        assert cli.main(["resume", str(path), flag, value]) == 2
        assert f"unknown flag '{flag}' of shoal resume" in capsys.readouterr().err
    folder = member_path(path, 0)  # goes on like any other run, with new episodes as in its population
    trained = checkpoint.newest(folder / checkpoint.FOLDER).steps
    assert cli.main(["resume", str(folder), "--steps", str(trained + 500), "--quiet"]) == 0
    assert checkpoint.newest(folder / checkpoint.FOLDER).steps >= trained + 500


def test_a_full_disk_stops_no_population(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = PopulationRun.begin(tmp_path / "run", setup(steps=1_000, size=2, slots=1))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("shoal.records.metric_files.append", Mock(side_effect=full))
    assert run.go().reason == "steps" and all(m.trained >= 1_000 for m in run.control.members)
    assert not (run.path / "scores.csv").stat().st_size


def test_a_copy_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("parent", "child"):
        train_slice(piece(tmp_path / name, 100))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "child").rglob("*")}
    monkeypatch.setattr("shutil.copytree", Mock(side_effect=shutil.Error("half of it")))
    with pytest.raises(ShoalError, match=r"cannot be copied to .*child': half of it"):
        copy_member(tmp_path / "parent", tmp_path / "child", 0)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "child").rglob("*")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child", "parent"]


def test_slots_end_with_a_population_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "train", "pbt", "--of", "impala", "--mutate", "learning_rate", "--env",
               "CartPole-v1", "--population", "2", "--slots", "2", "--steps", "100000000", "--interval", "50000000",
               "--run-dir", str(tmp_path / "run")]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not list(tmp_path.glob("run/members/*/metrics.csv")):
            assert run.poll() is None
            time.sleep(0.05)
        slots = [p for p in psutil.Process(run.pid).children(recursive=True) if p.is_running()]
        run.kill()
    gone, alive = psutil.wait_procs(slots, timeout=15)
    assert len(gone) >= 2 and not alive


def test_a_member_that_always_fails_begins_again_from_another(tmp_path: Path) -> None:
    run = PopulationRun.begin(tmp_path / "run", setup(steps=1_000, slots=1))
    broken: list[str] = []

    def tell(line: str) -> None:
        if line.startswith("member 0: ") and not broken:  # its checkpoints are damaged from now on
            broken.append(line)
            for file in (member_path(run.path, 0) / "checkpoints").rglob("manifest.json"):
                file.write_text(file.read_text().replace('"format": 2', '"format": 999'))

    run.tell = tell
    assert run.go().reason == "steps"
    assert broken and run.control.lineage[0].child == 0 and all(m.step >= 1_000 for m in run.control.members)


def test_a_score_may_be_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a slice is shorter than an episode, nothing else gives one; the user is told so, once."""
    reached = train_slice(replace(piece(tmp_path / "m", 100), evaluate=3))
    assert len(reached.returns) == 3 and reached.score == sum(reached.returns) / 3
    made = runtimes.make_runtime

    def signalled(*where: Any) -> Any:
        launch = made(*where).launch
        return SimpleNamespace(launch=lambda *what: replace(launch(*what), reason="terminated"))

    with monkeypatch.context() as patch:
        patch.setattr(runtimes, "make_runtime", signalled)
        cut = train_slice(replace(piece(tmp_path / "m", 1_000), evaluate=3))
    assert cut.steps >= 1_000 and math.isnan(cut.score), "returns of training are another thing"
    again = train_slice(replace(piece(tmp_path / "m", 1_000), evaluate=3))
    assert again.steps == cut.steps and len(again.returns) == 3, "a slice that failed after its training is scored"
    told: list[str] = []
    run = PopulationRun.begin(tmp_path / "run", setup(evaluate=3), told.append)
    assert run._slice(run.control.members[1]).evaluate == 3
    for index in (0, 1):
        run._reached(index, Reached(500, [], 0.1, "steps", 0.0))
    advice = [line for line in told if "--eval-episodes" in line]
    assert advice == [
        "no episode of member 0 ended in its last 500 steps, so it has no new score: --eval-episodes N plays some for "
        "it, a longer --interval ends some"
    ]
    few = PopulationRun.begin(tmp_path / "few", setup(), told.append)
    for index, count in enumerate((2.5, 3.0)):
        few._reached(index, Reached(500, [1.0] * 10, 0.1, "steps", count))
    advice = [line for line in told if "--eval-episodes" in line][1:]
    assert len(advice) == 1 and advice[0].startswith("2.5 episodes ended in each environment of member 0 in its last")
    assert reached.per_env == math.inf and train_slice(piece(tmp_path / "n", 300)).per_env > 0
    fields = json.loads((run.path / "population.json").read_text())
    del fields["evaluate"]  # of an earlier version
    (run.path / "population.json").write_text(json.dumps(fields))
    assert PopulationRun.reopen(run.path).setup.evaluate == 0


def test_schedules_of_members_end_with_the_steps_of_a_population_that_goes_on(tmp_path: Path) -> None:
    plain = values(learning_rate="linear(1e-3, 0)", steps=1_500)
    space = {"entropy_cost": interval_of("entropy_cost", plain["entropy_cost"])}
    run = PopulationRun.begin(tmp_path / "run", setup(values=plain, space=space))
    assert run._slice(run.control.members[0]).values["steps"] == 1_500
    further = PopulationRun.reopen(run.path, steps=3_000)
    assert further._slice(further.control.members[0]).values["steps"] == 3_000


def test_a_warm_up_longer_than_an_interval_goes_on_in_slices(tmp_path: Path) -> None:
    run = PopulationRun.begin(tmp_path / "run", setup(rules=dict(interval=500, warm_up=1_400)))
    member, ends = run.control.members[0], []
    while member.step < run.setup.steps:
        ends.append(run._slice(member).until)
        run._reached(0, Reached(ends[-1], [1.0], 0.1, "steps"))
    assert ends == [500, 1_000, 1_500]


def test_intervals() -> None:
    assert interval_of("learning_rate", 1e-3) == dict(
        low=pytest.approx(1e-4), high=pytest.approx(1e-2), log=True, integer=False, one_minus=False
    )
    gamma = interval_of("gamma", 0.99)
    assert (gamma["low"], gamma["high"]) == (pytest.approx(0.9), pytest.approx(0.999)) and gamma["one_minus"]
    assert interval_of("batch", 16)["integer"] and interval_of("batch", 4)["low"] == 1
    exponent = interval_of("importance_exponent", 0.4, hint=Fraction)
    assert (exponent["low"], exponent["high"]) == (pytest.approx(0.04), 1.0)


@pytest.mark.parametrize("words,told", [
    ("--of impala --mutate unroll", "unroll cannot be mutated: it changes the shapes"),
    ("--of impala --mutate learning_rte", "did you mean 'learning_rate'"),
    ("--of impala --mutate torso", "takes numbers"),
    ("--of impala --mutate replay=32:64", "replay cannot be mutated: what members save is of the one they began with"),
    ("--of dqn --mutate replay", "replay cannot be mutated: it changes the shapes"),
    ("--of async-sarsa --mutate envs", "envs cannot be mutated"),
    ("--of impala --mutate learning_rate --runtime ray", "unknown value 'ray' of --runtime"),
    ("--of impala --mutate learning_rate=a:b", "FIELD=LOW:HIGH"),
    ("--of impala", "needs what members differ by"),
    ("--mutate learning_rate", "needs the system of its members"),
    ("--of impala --mutate learning_rate --exploit best", "unknown value 'best' of --exploit"),
    ("--of impala --mutate entropy_cost --entropy-cost 0", "give its interval"),
    ("--of impala --mutate learning_rate --exploit ttest --share 0.2", "--share is of --exploit truncation, and "
     "this is ttest"),
    ("--of dqn --mutate batch=1:inf", "batch expects an integer of at least 1, found the interval 1:inf"),
    ("--of dqn --mutate batch=nan:5", "batch expects an integer of at least 1, found the interval nan:5"),
    ("--of dqn --mutate batch=0:64", "batch expects an integer of at least 1, found the interval 0:64"),
    ("--of impala --mutate learning_rate --share 0.7", "share expects a number above 0 and at most 0.5, found 0.7"),
    ("--of rainbow --mutate importance_exponent=0.1:4", "importance_exponent expects a number from 0 to 1, found the "
     "interval 0.1:4: give another, as in --mutate importance_exponent=LOW:HIGH"),
    (f"{RECURRENT} --mutate minibatches=1:7", "minibatches cannot be mutated from 1 to 7, as members cannot run with "
     "7: with a recurrent core, minibatches (7) must divide"),
])  # fmt: skip
def test_mistakes_are_told_and_leave_nothing(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "pbt", *words.split(), "--env", "CartPole-v1"]) == 2
    assert told in capsys.readouterr().err
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    assert list(tmp_path.iterdir()) == []


def test_the_default_interval_of_a_bounded_field_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = Mock(side_effect=UsageError("that is enough"))
    monkeypatch.setattr(PopulationRun, "begin", begin)
    words = "--of rainbow --mutate importance_exponent --env CartPole-v1 --run-dir"
    assert cli.main(["train", "pbt", *words.split(), str(tmp_path / "run")]) == 2
    assert "that is enough" in capsys.readouterr().err
    space = begin.call_args.args[1].space["importance_exponent"]
    assert 0 < space["low"] < 0.1 and space["high"] == 1.0


def test_members_draw_what_can_run_between_the_ends_of_an_interval(tmp_path: Path) -> None:
    fields = dict(env="toy:memory", core="lstm", core_size=8, envs=128, actors=1, unroll=8, device="cpu", minibatches=4)
    plain = resolve(recurrent_ppo, "none", None, fields, source="argument", name="recurrent-ppo").values()
    plain |= {k: list(v) for k, v in plain.items() if isinstance(v, tuple)}
    told: list[str] = []
    space = {"minibatches": interval_of("minibatches", 4, 1, 128)}
    made = setup(system="recurrent-ppo", size=12, values=schedule.plain(plain), space=space)
    run = PopulationRun.begin(tmp_path / "run", made, told.append)
    assert all(128 % m.values["minibatches"] == 0 for m in run.control.members)
    assert any("cannot run, others are drawn: with a recurrent core, minibatches" in line for line in told)


def test_a_refusal_is_not_tried_again(tmp_path: Path) -> None:
    run = PopulationRun.begin(tmp_path / "run", setup())
    with pytest.raises(UsageError) as refused:
        train_slice(replace(piece(tmp_path / "m", 100), values={**values(), "unroll": 0}))
    run._failed(0, "".join(traceback.format_exception(refused.type, refused.value, refused.tb)))
    run._failed(1, "ValueError: a crash")
    assert [m.lost for m in run.control.members] == [True, False, False]
    train_slice(piece(tmp_path / "m", 100))
    lock = RunLock(tmp_path / "m")
    with pytest.raises(ShoalError, match="still going on") as held:
        train_slice(piece(tmp_path / "m", 200))
    assert not isinstance(held.value, UsageError), "it will not be held for ever"
    lock.release()


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_population_killed_between_a_row_and_its_state_notes_each_slice_once(tmp_path: Path, at: int) -> None:
    run = PopulationRun.begin(tmp_path / "run", setup(size=1, slots=1))
    save, saves = run._save, []

    def killed() -> None:
        saves.append(rows(run.path / "scores.csv"))
        if len(saves) == at:
            run._note("lineage.csv", {"child": 0})
            raise InterruptedError
        save()

    run._save = killed  # type: ignore[method-assign]
    with pytest.raises(InterruptedError):
        run.go()
    again = PopulationRun.reopen(run.path)
    assert again.go().reason == "steps" and again.control.members[0].trained >= 1_500
    found = rows(run.path / "scores.csv")
    assert found[:at] == saves[-1] and len(found) == 3, "the slice that had ended has the score that it had"
    assert len({row["step"] for row in found}) == 3 and rows(run.path / "lineage.csv") == []


def test_an_environment_of_ones_own_means_the_same_from_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import gymnasium\ndef pole():\n    return gymnasium.make('CartPole-v1')\n")
    monkeypatch.chdir(tmp_path)
    PopulationRun.begin(tmp_path / "run", setup(values={**values(), "env": "mine.py:pole"}))
    kept = json.loads((tmp_path / "run" / "population.json").read_text())
    assert kept["values"]["env"] == f"{tmp_path / 'mine.py'}:pole"


def test_a_field_that_no_system_has() -> None:
    with pytest.raises(Exception, match="learning_rate"):
        check_space("impala", values(), {"learning_rat": Interval(1e-4, 1e-2)})


def test_slots_are_as_many_as_memory_and_open_files_have_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(memory, "available", lambda: 3 * slots.SLOT_BYTES + 1)
    assert slots.fitting(3, told.append) == 3 and not told
    assert slots.fitting(10_000, told.append) == 3 and told[0].startswith("3 at once instead of 10,000 (slots)")
    run = PopulationRun.begin(tmp_path / "run", setup(size=5, slots=10_000), told.append)
    assert run.slots.free == 3 and told[1].startswith("3 at once instead of 5 (slots)")
    monkeypatch.setattr(memory, "available", lambda: 0)
    assert slots.fitting(7, told.append) == 1
    monkeypatch.setattr(memory, "available", lambda: 10**15)
    monkeypatch.setattr(descriptors, "_open", lambda: 40)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, descriptors.SPARE_DESCRIPTORS + 40 + 3 * 20))
    assert slots.fitting(21, told.append) == slots.fitting(20, told.append) == 20 and len(told) == 4
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: told.append(str(limits)))
    descriptors.make_room(20)
    with pytest.raises(UsageError, match="open files"):
        descriptors.make_room(21)
