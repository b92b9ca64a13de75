"""Back ends for metrics: what they are told, and that the training does not depend on them."""

from __future__ import annotations

import csv
import posixpath
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from noted import noted

import shoal
from shoal.cli import main as cli
from shoal.extras import pip_install
from shoal.metering.aggregator import Snapshot
from shoal.records.loggers import LOGGERS, Logger, TensorBoard

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", runtime="serial", actors=1, envs=4, hidden=(8,), steps=2_200, seed=1
)


class Told:
    """Stands for the modules wandb and mlflow, as far as Shoal calls them; ``fails``: the call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.calls: list[str] = []
        self.config: dict[str, Any] = {}
        self.tags: dict[str, str] = {}
        self.ids: list[str] = []
        self.where: dict[str, Any] = {}  # where a run of W&B goes
        self.kept: list[str] = []  # files and directories
        self.fails = fails

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise RuntimeError("the network is gone")

    def module(self, name: str) -> types.ModuleType:
        out: Any = types.ModuleType(name)
        out.init, out.log, out.finish = self.init, self.log, lambda: self._call("finish")
        out.set_experiment, out.start_run = lambda n: None, self.start_run
        out.log_params, out.set_tags, out.log_metrics = self.log_params, self.tags.update, self.log
        out.end_run = lambda: self._call("finish")
        out.Artifact = lambda name, type: types.SimpleNamespace(add_dir=self.kept.append)
        out.Video = lambda path, format: path
        out.log_artifacts = lambda path, name: self.kept.append(path)
        out.log_artifact = lambda path, name: self.kept.append(path)
        return out

    def init(
        self, config: dict[str, Any], id: str = "", resume: str = "never", allow_val_change: bool = False,
        **where: Any,
    ) -> Any:  # fmt: skip
        self._call("init")
        self.where = where
        assert not id or (resume == "allow" and allow_val_change), "W&B would refuse, or begin another run"
        self.config.update(config)
        self.ids.append(id or f"new{len(self.ids)}")
        return types.SimpleNamespace(
            id=self.ids[-1], log=self.log, finish=lambda: self._call("finish"), log_artifact=lambda artifact: None
        )

    def start_run(self, run_name: str = "", run_id: str = "") -> Any:
        self._call("init")
        assert bool(run_name) != bool(run_id)
        self.ids.append(run_id or f"new{len(self.ids)}")
        data = types.SimpleNamespace(params=dict(self.config), tags=dict(self.tags))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=self.ids[-1]), data=data)

    def log_params(self, params: dict[str, str]) -> None:
        changed = [name for name, value in params.items() if self.config.get(name, value) != value]
        assert not changed, "changing param values is not allowed"
        self.config.update(params)

    def log(self, row: dict[str, float], step: int, synchronous: bool = True) -> None:
        self._call("log")
        self.rows.append((step, row))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_rows_reach_the_back_end(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setitem(sys.modules, name, told.module(name))
    run = shoal.train("impala", run_dir=tmp_path / "r", log=[name], **SMALL)
    assert run.report is not None
    assert told.calls[0] == "init" and told.calls[-1] == "finish"
    steps = [step for step, _ in told.rows]
    assert steps == sorted(steps) and steps[-1] == run.report.steps
    assert {"train/loss", "train/policy_lag_p95", "perf/seconds", "perf/steps_per_second"} <= told.rows[-1][1].keys()
    assert {name.partition("/")[0] for name in told.rows[-1][1]} == {"train", "perf"}
    assert all(isinstance(v, float) for _, row in told.rows for v in row.values())
    assert str(told.config["unroll"]) == str(run.config["unroll"])
    facts = {name: str(told.config[name]) for name in ("system", "preset", "runtime", "seed")}
    assert facts == {"system": "impala", "preset": "none", "runtime": "serial", "seed": "1"}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_run_that_goes_on_is_the_same_run_of_the_back_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told()
    monkeypatch.setitem(sys.modules, name, told.module(name))
    shoal.train("impala", run_dir=tmp_path / "r", log=name, **SMALL)
    was = shoal.Run.open(tmp_path / "r").config["learning_rate"]
    for steps, rate in ((3_000, was), (4_000, 1e-5), (4_100, was), (4_200, 1e-5), (4_300, was)):
        shoal.resume(tmp_path / "r", steps=steps, learning_rate=rate)
    assert told.ids == ["new0"] * 6 and "failed" not in capsys.readouterr().err
    shown = told.config if name == "wandb" else told.tags  # MLflow keeps the first value
    assert (str(shown["steps"]), str(shown["learning_rate"])) == ("4300", str(was))
    assert name == "wandb" or (told.tags.keys() == {"steps", "learning_rate"} and told.config["steps"] == "2200")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_closing_evaluation_and_the_best_policy_reach_the_back_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    monkeypatch.setitem(sys.modules, name, told.module(name))
    how = shoal.Evaluation(every=10_000, episodes=2)  # later than the run's end
    run = shoal.train("impala", run_dir=tmp_path / "r", log=name, evaluation=how, **SMALL)
    evaluations = [(step, row["eval/return"]) for step, row in told.rows if "eval/return" in row]
    with open(run.path / "evaluations.csv", encoding="utf-8") as file:
        (written,) = csv.DictReader(file)
    assert evaluations == [(int(written["steps"]), pytest.approx(float(written["mean"])))]
    assert told.kept == [str(run.path / "best")] and told.calls[-1] == "finish"


def test_what_the_environment_says_of_weights_and_biases_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setitem(sys.modules, "wandb", told.module("wandb"))
    for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    Logger("wandb", tmp_path, {}, 0)
    assert told.where == {"project": "shoal", "name": tmp_path.name, "dir": str(tmp_path)}
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    Logger("wandb", tmp_path, {}, 0, {"group": "sweep"})
    assert told.where == {"name": tmp_path.name, "dir": str(tmp_path), "group": "sweep"}  # wandb reads the variable
    Logger("wandb", tmp_path, {}, 0, {"project": "given"})
    assert told.where["project"] == "given"


def test_arguments_of_back_ends_are_kept_by_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setitem(sys.modules, "wandb", told.module("wandb"))
    words = [f"{word}" for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = [word.strip("(,)") for word in words]
    where = ["--run-dir", str(tmp_path / "r"), "--log", "wandb", "--log-args", "wandb.group=a", "wandb.tags=[x, y]"]
    assert cli.main(["train", "impala", *words, *where]) == 0
    assert told.where["group"] == "a" and told.where["tags"] == ["x", "y"]
    shoal.resume(tmp_path / "r", steps=2_500)
    assert told.where["group"] == "a"
    shoal.resume(tmp_path / "r", steps=2_800, log_args={"wandb": {"group": "b"}})
    assert told.where["group"] == "b" and "tags" not in told.where
    shoal.resume(tmp_path / "r", steps=3_100, log=[])


@pytest.mark.parametrize(
    "args, says",
    [({"wandb.group": "x"}, "'wandb' among the back ends"),
     ({"wandbb.group": "x"}, "one of tensorboard, wandb, mlflow"), ({"group": "x"}, "as in wandb.group=NAME")],
)  # fmt: skip
def test_arguments_of_no_back_end_are_refused(args: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(shoal.UsageError, match=says):
        shoal.train("impala", run_dir=tmp_path / "r", log_args=args, **SMALL)


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_training_goes_on_without_a_back_end_that_fails(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told(fails)
    monkeypatch.setitem(sys.modules, "wandb", told.module("wandb"))
    run = shoal.train("impala", run_dir=tmp_path / "r", log=["wandb"], **SMALL)
    assert run.report is not None and run.report.reason == "steps"
    assert capsys.readouterr().err.count("wandb failed, nothing more is logged to it: RuntimeError") == 1
    assert told.calls.count(fails) == 1


def test_tensorboard_holds_the_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = shoal.train("impala", run_dir=tmp_path / "r", log=["tensorboard"], **SMALL)
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert {"train/episode_return", "train/loss", "perf/steps_per_second"} <= set(events.Tags()["scalars"])
    assert run.report is not None and events.Scalars("train/loss")[-1].step == run.report.steps


def test_tensorboard_shows_no_step_twice_of_a_run_that_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shoal.train("impala", run_dir=tmp_path / "r", log=["tensorboard"], **SMALL)
    killed = TensorBoard(tmp_path / "r", {}, 0, {})
    killed.write({"perf/seconds": 1.0}, 4_001)  # after its last checkpoint
    killed.close()
    run = shoal.resume(tmp_path / "r", steps=6_000)
    steps = [e.step for e in EventAccumulator(str(run.path / "tensorboard")).Reload().Scalars("perf/seconds")]
    assert steps == sorted(set(steps)) and 4_001 not in steps


@pytest.mark.parametrize("name", [*LOGGERS])
def test_a_missing_package_is_one_helpful_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, LOGGERS.find(name).package, None)  # as if it were not installed
    words = ["train", "impala", "--env", "CartPole-v1", "--runtime", "serial", "--run-dir", str(tmp_path / "r")]
    assert cli.main([*words, "--log", name]) == 2
    assert pip_install(name) in capsys.readouterr().err and not (tmp_path / "r").exists()


def test_an_unknown_back_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "impala", "--env", "CartPole-v1", "--runtime", "serial", "--log", "tensorbord"]) == 2
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err


ODD = {"speed (m/s)": 1.0, "speed {m/s}": 2.0, "50%": 3.0, "profit €": 4.0, "/a": 5.0, "_hidden": 6.0, "a..b": 7.0}


@pytest.mark.parametrize("name", [*LOGGERS])
def test_every_metric_has_a_name_that_the_back_end_takes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow refuses a whole batch for one odd name (the rule is its own, ``mlflow.utils.validation``)."""
    rows: list[dict[str, float]] = []

    class Back:
        package, refused = "json", LOGGERS.find(name).refused

        def __init__(self, *_: Any) -> None: ...

        def write(self, row: dict[str, float], steps: int) -> None:
            if name == "mlflow":
                assert all(re.fullmatch(r"[/\w.\- :]*", key, re.ASCII) and not key.startswith("/") for key in row)
                assert all(posixpath.normpath(key) == key and not key.startswith("..") for key in row)
            rows.append(row)

    monkeypatch.setitem(LOGGERS.built_in, name, Back)
    logger = Logger(name, tmp_path, {}, 0)
    for more in ({}, {"late": 8.0}):
        shown = dict(row=1, seconds=1.0, steps=5, updates=1, step_rate=0.0, update_rate=0.0, episode_return=1.0)
        logger.update(Snapshot(**shown, episode_length=1.0, episodes=1, infos={**more, **ODD}))  # type: ignore[arg-type]
    assert len(rows) == 2 and rows[0].items() <= rows[1].items(), "each keeps its name"
    odd = sorted(v for k, v in rows[1].items() if v in {*ODD.values(), 8.0} and k.partition("/")[2] not in PLAIN)
    assert odd == [*ODD.values(), 8.0]


PLAIN = ("steps", "updates", "episodes", "episode_return", "episode_length", "seconds", "restarts")


@pytest.mark.parametrize("begun, shown", [(0, [100, 300, 300, 400]), (350, [350, 350, 350, 400])])
def test_no_row_is_written_behind_one_that_was(
    begun: int, shown: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor behind the step at which the run goes on: back ends would leave it out."""
    told = Told()
    monkeypatch.setitem(sys.modules, "wandb", told.module("wandb"))
    logger = Logger("wandb", tmp_path, {}, begun)
    for steps in (100, 300, 200, 400):
        logger.evaluated({"mean": float(steps)}, steps)
    assert told.rows == [
        (at, {"eval/mean": float(steps)}) for at, steps in zip(shown, (100, 300, 200, 400), strict=True)
    ]


@pytest.mark.parametrize("begun, purged", [(0, None), (350, 351)])
def test_tensorboard_forgets_what_was_told_of_later_steps(
    begun: int, purged: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the step at which it goes on stays: it is not told again."""
    made: list[dict[str, Any]] = []
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda **fields: noted(made, fields, types.SimpleNamespace(add_text=lambda *a: None))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    TensorBoard(tmp_path, {}, begun, {})
    assert made == [{"log_dir": str(tmp_path / "tensorboard"), "purge_step": purged}]
