"""Back ends for metrics: what they are told, and that the training does not depend on them."""

from __future__ import annotations

import posixpath
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli import main as cli
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
        return out

    def init(
        self, project: str, name: str, config: dict[str, Any], dir: str,
        id: str = "", resume: str = "never", allow_val_change: bool = False,
    ) -> Any:  # fmt: skip
        self._call("init")
        assert not id or (resume == "allow" and allow_val_change), "W&B would refuse, or begin another run"
        self.config.update(config)
        self.ids.append(id or f"new{len(self.ids)}")
        return types.SimpleNamespace(id=self.ids[-1], log=self.log, finish=lambda: self._call("finish"))

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
    assert {"loss", "policy_lag_p95", "seconds", "steps_per_second"} <= told.rows[-1][1].keys()
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
    assert {"episode_return", "loss", "steps_per_second"} <= set(events.Tags()["scalars"])
    assert run.report is not None and events.Scalars("loss")[-1].step == run.report.steps


def test_tensorboard_shows_no_step_twice_of_a_run_that_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shoal.train("impala", run_dir=tmp_path / "r", log=["tensorboard"], **SMALL)
    killed = TensorBoard(tmp_path / "r", {}, 0)
    killed.write({"seconds": 1.0}, 4_001)  # after its last checkpoint
    killed.close()
    run = shoal.resume(tmp_path / "r", steps=6_000)
    steps = [e.step for e in EventAccumulator(str(run.path / "tensorboard")).Reload().Scalars("seconds")]
    assert steps == sorted(set(steps)) and 4_001 not in steps


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_one_helpful_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, LOGGERS[name][0], None)  # as if it were not installed
    words = ["train", "impala", "--env", "CartPole-v1", "--runtime", "serial", "--run-dir", str(tmp_path / "r")]
    assert cli.main([*words, "--log", name]) == 2
    assert f"pip install 'shoal[{name}]'" in capsys.readouterr().err and not (tmp_path / "r").exists()


def test_an_unknown_back_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "impala", "--env", "CartPole-v1", "--runtime", "serial", "--log", "tensorbord"]) == 2
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err


ODD = {"speed (m/s)": 1.0, "speed {m/s}": 2.0, "50%": 3.0, "profit €": 4.0, "/a": 5.0, "_hidden": 6.0, "a..b": 7.0}


@pytest.mark.parametrize("name", LOGGERS)
def test_every_metric_has_a_name_that_the_back_end_takes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow refuses a whole batch for one odd name (the rule is its own, ``mlflow.utils.validation``)."""
    rows: list[dict[str, float]] = []

    class Back:
        refused = LOGGERS[name][1].refused

        def __init__(self, *_: Any) -> None: ...

        def write(self, row: dict[str, float], steps: int) -> None:
            if name == "mlflow":
                assert all(re.fullmatch(r"[/\w.\- :]*", key, re.ASCII) and not key.startswith("/") for key in row)
                assert all(posixpath.normpath(key) == key and not key.startswith("..") for key in row)
            rows.append(row)

    monkeypatch.setitem(LOGGERS, name, ("json", Back))
    logger = Logger(name, tmp_path, {}, 0)
    for more in ({}, {"late": 8.0}):
        shown = dict(row=1, seconds=1.0, steps=5, updates=1, step_rate=0.0, update_rate=0.0, episode_return=1.0)
        logger.update(Snapshot(**shown, episode_length=1.0, episodes=1, infos={**more, **ODD}))  # type: ignore[arg-type]
    assert len(rows) == 2 and rows[0].items() <= rows[1].items(), "each keeps its name"
    assert sorted(v for k, v in rows[1].items() if v in {*ODD.values(), 8.0} and k not in PLAIN) == [*ODD.values(), 8.0]


PLAIN = ("steps", "updates", "episodes", "episode_return", "episode_length", "seconds", "restarts")
