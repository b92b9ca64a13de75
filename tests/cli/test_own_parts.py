"""Samplers, log back ends and runtimes of one's own: by the name of a class, without an edit of Shoal."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.api import ShoalError, UsageError
from shoal.records import loggers
from shoal.replay.layout import SAMPLERS
from shoal.run import trust
from shoal.run.runtimes import RUNTIMES

from .conftest import Shoal

MINE = '''
import csv
from pathlib import Path
import numpy as np
from shoal.building import BackEnd, Sampler, live_rows
from shoal.serial.runtime import SerialRuntime

HERE = Path(__file__).parent
(HERE / "imported").touch()

class Newest(Sampler):
    """The newest items, and how often it has drawn."""

    def __init__(self, arrays, order, counters, rng, alpha):
        super().__init__(arrays, order, counters, rng, alpha)
        self.drawn, self.learned = arrays["drawn"], arrays["learned"]

    @staticmethod
    def arrays(items):
        return {"drawn": ((1,), "int64"), "learned": ((1,), "int64")}

    def update(self, rows, priorities):
        self.learned += len(rows)

    def draw(self, rows, probs):
        live = live_rows(self.order, self.counters)
        rows[:] = live[-1 - np.arange(len(rows)) % len(live)]
        probs[:] = 1 / len(rows)
        self.drawn += 1
        (HERE / "drawn").write_text(f"{self.drawn[0]} {self.learned[0]}")

class Table(BackEnd):
    """A CSV file of its own."""

    def __init__(self, path, config, begun, args):
        self.file = open(HERE / args.get("name", "table.csv"), "a", newline="")
        self.rows = csv.writer(self.file)
        self.rows.writerow(["begun", begun, config["system"]])

    def write(self, row, steps):
        self.rows.writerow([steps, row["train/episode_return"], *sorted(row)])

    def close(self):
        self.file.close()

class Told(SerialRuntime):
    """The serial runtime, which says that it was used."""

    def launch(self, program, launch):
        with (HERE / "launched").open("a") as file:
            file.write(f"{program.name} {launch.seed}\\n")
        return super().launch(program, launch)

class Empty: ...

number = 3
'''
SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", actors=1, envs=2, unroll=5, hidden=(4,), steps=200, min_replay=20, replay=100,
    batch=8, quiet=True,
)  # fmt: skip


@pytest.fixture
def shoal_(shoal: Shoal) -> Shoal:
    """The command line of conftest.py, beside the module of the same name."""
    return shoal


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one of each."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def test_a_sampler_of_ones_own_draws_the_batches(mine: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {**SMALL, "prioritised": True, "sampler": f"{mine}:Newest", "runtime": "serial"}
    run = shoal.train("dqn", run_dir=tmp_path / "r", **how)
    drawn, learned = map(int, (tmp_path / "drawn").read_text().split())
    assert run.report is not None and run.report.updates > 2 and drawn >= run.report.updates and learned >= drawn
    on = shoal.resume(tmp_path / "r", steps=300)
    again, _ = map(int, (tmp_path / "drawn").read_text().split())
    assert on.report is not None and again > drawn, "its arrays are in the checkpoint"


def test_a_back_end_of_ones_own_is_told_the_metrics_and_its_arguments(mine: Path, tmp_path: Path) -> None:
    name = f"{mine}:Table"
    told: dict[str, Any] = {"log": name, "log_args": {f"{name}.name": "x.csv"}}
    first = shoal.train("dqn", run_dir=tmp_path / "r", runtime="serial", **told, **SMALL).report
    last = shoal.resume(tmp_path / "r", steps=400).report
    assert first is not None and last is not None
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.reader(file))
    begun = [row for row in rows if row[0] == "begun"]
    assert begun == [["begun", "0", "dqn"], ["begun", str(first.steps), "dqn"]]
    steps = [int(row[0]) for row in rows if row[0] != "begun"]
    assert (
        steps[-1] == last.steps
        and first.steps in steps
        and all("perf/seconds" in row for row in rows if row[0] != "begun")
    )


def test_a_runtime_of_ones_own_runs_and_goes_on(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shoal_: Shoal
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "train dqn --env CartPole-v1 --preset none --actors 1 --envs 2 --unroll 5 --hidden 4 --steps 100"
    code, _, told = shoal_(*words.split(), "--runtime", "mine.py:Told", "--run-dir", "r", "--seed", "5", "--quiet")
    assert code == 0, told
    monkeypatch.chdir("/")
    assert shoal_("resume", str(tmp_path / "r"), "--steps", "150", "--quiet")[0] == 0
    assert (tmp_path / "launched").read_text() == "dqn 5\ndqn 5\n"
    assert json.loads((tmp_path / "r" / "config.json").read_text())["runtime"] == f"{mine}:Told"
    code, _, told = shoal_("resume", str(tmp_path / "r"), "--steps", "200", "--runtime", "local")
    assert code == 2 and "exact runs save what no other runtime can go on from" in told


@pytest.mark.parametrize(
    "flag, name, says",
    [
        ("--sampler", "rnk", "did you mean 'rank'?"),
        (
            "--sampler",
            "zzz",
            "expects one of proportional, rank, greedy, or MODULE:CLASS or FILE.py:CLASS of your own, found 'zzz'",
        ),
        ("--log", "tensorbord", "unknown log back end 'tensorbord'; did you mean 'tensorboard'?"),
        ("--log", "zzz", "expected tensorboard, wandb, mlflow, or MODULE:CLASS or FILE.py:CLASS of your own"),
        ("--runtime", "locl", "unknown runtime 'locl'; did you mean 'local'?"),
        ("--runtime", "zzz", "expected local, serial, ray, torchrun, or MODULE:CLASS or FILE.py:CLASS of your own"),
        ("--sampler", "{}:Newst", "has no attribute 'Newst'"),
        ("--sampler", "{}:Empty", "is not a sampler, it lacks 'insert'"),
        ("--log", "{}:Empty", "is not a log back end, it lacks 'write'"),
        ("--runtime", "{}:Empty", "is not a runtime, it lacks 'check'"),
        ("--runtime", "{}:number", "is not a runtime, it is no class"),
        ("--log", "nowhere_at_all:Table", "cannot be imported"),
        ("--sampler", "nowhere.py:Newest", "there is no file 'nowhere.py'"),
    ],
)
def test_a_wrong_name_is_one_sentence(
    flag: str, name: str, says: str, mine: Path, tmp_path: Path, shoal_: Shoal
) -> None:
    runtime = [] if flag == "--runtime" else ["--runtime", "serial"]
    words = ["train", "dqn", "--env", "CartPole-v1", "--prioritised", "--run-dir", str(tmp_path / "r"), *runtime]
    code, _, told = shoal_(*words, flag, name.format(mine))
    assert code == 2 and says in told and told.count("\n") == 1, told
    assert not (tmp_path / "r").exists()


WRONG = """
import numpy as np
from shoal.building import BackEnd, Sampler, SerialRuntime

class NoDraw(Sampler):
    pass

class Raises(Sampler):
    def draw(self, rows, probs):
        raise KeyError("mine")

class Outside(Sampler):
    def draw(self, rows, probs):
        rows[:], probs[:] = 10**9, 1

class Dead(Sampler):
    def draw(self, rows, probs):
        rows[:], probs[:] = len(self.order) - 1, 1

class Rebinds(Sampler):
    def draw(self, rows, probs):
        rows, probs = np.zeros(3), np.ones(3)

class Unlikely(Sampler):
    def draw(self, rows, probs):
        rows[:], probs[:] = self.order[self.counters[0]], np.nan

class Shapeless(NoDraw):
    draw = Dead.draw

    @staticmethod
    def arrays(items):
        return "x"

class Silent(BackEnd):
    pass

class Leaves(BackEnd):
    def write(self, row, steps):
        raise SystemExit(3)

class Breaks(SerialRuntime):
    def launch(self, program, launch):
        raise RuntimeError("no luck")

class Nothing(SerialRuntime):
    def launch(self, program, launch):
        pass
"""


@pytest.mark.parametrize(
    "flag, name, code, says",
    [
        ("--sampler", "NoDraw", 2, "is not a sampler, it lacks 'draw'"),
        ("--sampler", "Raises", 1, "the sampler 'Raises' raised KeyError in draw: 'mine' ("),
        ("--sampler", "Outside", 1, "must fill in every row that of a live item (live_rows), found 1e+09 in rows"),
        ("--sampler", "Dead", 1, "must fill in every row that of a live item"),
        ("--sampler", "Rebinds", 1, "found -1 in rows (-1: nothing was written: assign to rows[:])"),
        ("--sampler", "Unlikely", 1, "every probability above 0 and at most 1, found nan in probs"),
        ("--sampler", "Shapeless", 2, "expects the shape and the dtype of each array by its name"),
        ("--log", "Silent", 2, "is not a log back end, it lacks 'write'"),
        ("--log", "Leaves", 0, "failed, nothing more is logged to it: SystemExit: 3"),
        ("--runtime", "Breaks", 1, "raised RuntimeError in launch: no luck ("),
        ("--runtime", "Nothing", 1, "returned nothing from launch: expected the run's report"),
    ],
)
def test_a_mistake_in_a_class_of_ones_own_is_one_sentence(
    flag: str, name: str, code: int, says: str, tmp_path: Path, shoal_: Shoal
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    runtime = [] if flag == "--runtime" else ["--runtime", "serial"]
    words = ["train", "dqn", "--env", "CartPole-v1", "--prioritised", "--run-dir", str(tmp_path / "r"), *runtime]
    words += ["--steps", "200", "--envs", "2", "--hidden", "8", "--batch", "8", "--quiet"]
    found, _, told = shoal_(*words, flag, f"{file}:{name}")
    assert found == code and says in told and told.count("\n") <= 1 and "Traceback" not in told, told


def test_the_classes_of_the_page_run_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "own-parts.md"
    parts = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "parts.py").write_text("\n".join(parts))
    monkeypatch.chdir(tmp_path)
    how: dict[str, Any] = {"prioritised": True, "sampler": "parts.py:Newest", "log": "parts.py:Printer"}
    told: dict[str, Any] = {"log_args": {"parts.py:Printer": {"every": 1}}, "runtime": "parts.py:Timed", "run_dir": "r"}
    run = shoal.train("dqn", **how, **told, **SMALL)
    said = capsys.readouterr().out
    assert run.report is not None and run.report.updates > 2
    assert f"dqn at {run.report.steps:,} steps: return" in said and re.search(r"^dqn took \d+\.\d s$", said, re.M)
    monkeypatch.chdir("/")  # each was noted by its whole path
    shoal.resume(tmp_path / "r", steps=300)
    assert re.search(r"^dqn at 3\d\d steps: return .*^dqn took", capsys.readouterr().out, re.M | re.S)


@pytest.mark.parametrize("option, name", [("runtime", "Told"), ("log", "Table"), ("sampler", "Newest")])
def test_a_strangers_class_is_not_imported_unasked(
    option: str, name: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shoal_: Shoal
) -> None:
    shoal.train("dqn", run_dir=tmp_path / "r", runtime="serial", prioritised=True, **SMALL)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "ours"))
    file = tmp_path / "r" / "config.json"
    facts = json.loads(file.read_text())
    where = facts["config"] if option == "sampler" else facts
    where[option] = [f"{mine}:{name}"] if option == "log" else f"{mine}:{name}"
    file.write_text(json.dumps(facts))
    asks = ["resume"] if option == "log" else ["resume", "profile"]
    for command in asks:
        code, _, told = shoal_(command, str(tmp_path / "r"))
        assert code == 2 and f"'{mine}:{name}'" in told and "--trust" in told and told.count("\n") == 1, told
    with pytest.raises(UsageError, match="trust=True"):
        shoal.resume(tmp_path / "r", steps=300)
    assert not (tmp_path / "imported").exists()
    if option == "log":  # what is said now counts in its place
        shoal.resume(tmp_path / "r", steps=300, log=())
        assert not (tmp_path / "imported").exists()
    else:
        with contextlib.suppress(ShoalError):  # of another sampler, the checkpoint does not fit
            shoal.resume(tmp_path / "r", steps=300, trust=True)
        assert (tmp_path / "imported").exists()


@pytest.mark.parametrize("written", [5, None, ["a:b", 5], {"a:b": 1}, "a:b"])
def test_names_of_code_are_found_whatever_is_written(written: Any) -> None:
    found = trust.named_in({"runtime": "serial", "log": written})
    assert found == (["a:b"] if written in ("a:b", ["a:b", 5]) else [])


def test_every_kind_of_shoals_own_has_the_methods_of_ones_own() -> None:
    """What a class of the user's must have is what the table, the run and the logger call."""
    for name in SAMPLERS:
        cls: Any = SAMPLERS.find(name).load()
        assert all(callable(getattr(cls, method)) for method in SAMPLERS._methods)
        assert SAMPLERS.find(name).arrays(10) == cls.arrays(10) and SAMPLERS.find(name).has_mass == hasattr(cls, "mass")
    assert [name for name in loggers.LOGGERS if loggers.LOGGERS.find(name).remote] == ["wandb", "mlflow"]
    serial = RUNTIMES.find("serial")
    made = type(serial.make(0.0, None))
    assert (made.in_process, made.deterministic) == (serial.in_process, serial.deterministic) == (True, True)  # type: ignore[attr-defined]
    assert np.array_equal([RUNTIMES.find(name).takes_address for name in RUNTIMES], [False, False, True, False])
