"""What a run tells other programs and people, by hand: metrics to back ends, parameters and states in files, the parts
of a summary, and its report."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shoal.api import ShoalError
from shoal.metering.aggregator import Snapshot
from shoal.records import checkpoint_state as states, loggers, markdown, param_files
from shoal.records.loggers import LOGGERS, Logger, MLflow, TensorBoard, Wandb, arguments
from shoal.records.param_files import load_params, save_params
from shoal.records.report import Report


class Calls:
    """In place of a module or an object of one: notes each call, and returns what ``returns`` has for it."""

    def __init__(self, **returns: Any) -> None:
        self.returns, self.calls = returns, list[Any]()

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            self.calls.append((name, *given, *([more] if more else [])))
            return self.returns.get(name)

        return call

    def of(self, name: str) -> list[Any]:
        return [call[1:] for call in self.calls if call[0] == name]


# ------------------------------------------------------------------------------------------ MLflow
def mlflow(
    path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, params: Any = None, tags: Any = None, **args: Any
) -> tuple[Calls, MLflow]:
    data = SimpleNamespace(params=params or {}, tags=tags or {})
    calls = Calls(start_run=SimpleNamespace(info=SimpleNamespace(run_id="the-run"), data=data))
    monkeypatch.setitem(sys.modules, "mlflow", calls)
    return calls, MLflow(path, config, 0, args)


def test_a_run_of_mlflow_is_of_the_experiment_that_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    found = []
    for variable in ("", "mine"):
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", variable)
        for args in ({}, {"experiment_name": "given", "description": "x"}):
            calls, _ = mlflow(tmp_path, monkeypatch, {}, **args)
            found.append(calls.of("set_experiment"))
            (begun,) = calls.of("start_run")[0]
            assert "experiment_name" not in begun and begun.get("description") == args.get("description")
    assert found == [[("shoal",)], [("given",)], [], [("given",)]]


def test_a_parameter_of_mlflow_that_changes_is_a_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"rate": 2, "back": 1, "same": 1, "new": "x" * 300, "again": 3}
    was, tags = {"rate": "1", "back": "1", "same": "1", "again": "1"}, {"back": "9", "again": "3"}
    calls, _ = mlflow(tmp_path, monkeypatch, config, was, tags)
    assert calls.of("log_params") == [({"new": "x" * 250},)], "MLflow takes no more"
    assert calls.of("set_tags") == [({"rate": "2", "back": "1"},)]


def test_mlflow_is_told_metrics_with_their_step_and_given_policy_and_films(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, back = mlflow(tmp_path, monkeypatch, {})
    back.write({"a": 1.0}, 30)
    back.keep(Path("best"), [Path("1.mp4"), Path("2.mp4")])
    back.keep(None, [])
    assert calls.of("log_metrics") == [({"a": 1.0}, {"step": 30, "synchronous": False})]
    assert calls.of("log_artifacts") == [("best", "policy")]
    assert calls.of("log_artifact") == [("1.mp4", "videos"), ("2.mp4", "videos")]


# -------------------------------------------------------------------------------- the other two
def test_weights_and_biases_is_told_metrics_with_their_step_and_given_policy_and_films(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Calls()
    run: Any = Calls()
    run.id = "the-run"
    module = Calls(init=run, Artifact=artifact, Video="a film")
    monkeypatch.setitem(sys.modules, "wandb", module)
    back = Wandb(tmp_path, {}, 0, {})
    back.write({"a": 1.0}, 30)
    back.keep(Path("best"), [Path("1.mp4")])
    assert run.of("log") == [({"a": 1.0}, {"step": 30}), ({"eval/video": "a film"},)]
    assert module.of("Video") == [("1.mp4", {"format": "mp4"})]
    assert artifact.of("add_dir") == [("best",)] and run.of("log_artifact") == [(artifact,)]
    assert (tmp_path / "wandb-run.txt").read_text() == "the-run"


def test_tensorboard_is_told_each_metric_with_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, module = Calls(), types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda **given: writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    TensorBoard(tmp_path, {}, 0, {}).write({"a": 1.0, "b": 2.0}, 30)
    assert writer.of("add_scalar") == [("a", 1.0, 30), ("b", 2.0, 30)]


# ------------------------------------------------------------------------------------- the observer
class Back(loggers.BackEnd):
    """A back end of one's own; fails at the calls in ``fails``."""

    fails: tuple[str, ...] = ()
    told: list[Any]

    def __init__(self, path: Path, config: Any, begun: int, args: Any) -> None:
        type(self).told = []

    def _tell(self, *call: Any) -> None:
        self.told.append(call)
        if call[0] in self.fails:
            raise RuntimeError("the network is gone")

    def write(self, row: Any, steps: int) -> None:
        self._tell("write", steps, row)

    def keep(self, policy: Path | None, films: Sequence[Path]) -> None:
        self._tell("keep", policy and policy.name, [film.name for film in films])

    def close(self) -> None:
        self._tell("close")


@pytest.fixture
def back(monkeypatch: pytest.MonkeyPatch) -> type[Back]:
    made = type("Made", (Back,), {})
    monkeypatch.setitem(LOGGERS.built_in, "tensorboard", made)
    return made


def snapshot(steps: int, **given: Any) -> Snapshot:
    zeros = dict.fromkeys(("seconds", "updates", "step_rate", "update_rate"), 0)
    ended = {"episodes": 1, "episode_return": 2.0, "episode_length": 3.0}
    return Snapshot(**{**zeros, **ended, "row": 1, "steps": steps, **given})


def test_training_evaluations_and_the_clock_have_names_of_their_own(back: type[Back], tmp_path: Path) -> None:
    logger = Logger("tensorboard", tmp_path, {}, 0)
    nan = float("nan")
    logger.update(snapshot(20, seconds=4.0, records={"loss": 0.5, "evaluation_return": 7.0, "broken": nan}))
    logger.evaluated({"mean": 8.0, "std": nan}, 30)
    train: dict[str, float] = {"train/steps": 20, "train/updates": 0, "train/episodes": 1, "train/episode_return": 2}
    train |= {"train/episode_length": 3, "train/loss": 0.5, "eval/return": 7.0}
    perf = {"perf/seconds": 4, "perf/steps_per_second": 0, "perf/updates_per_second": 0, "perf/restarts": 0}
    assert back.told == [("write", 20, train | perf), ("write", 30, {"eval/mean": 8.0})]


def test_a_back_end_that_fails_is_asked_once_and_told_of_once(
    back: type[Back], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    back.fails = ("write",)
    logger = Logger("tensorboard", tmp_path, {}, 0)
    for steps in (10, 20):
        logger.update(snapshot(steps))
    (tmp_path / "best").mkdir()
    logger.keep()
    logger.close()
    assert [call[0] for call in back.told] == ["write"]
    assert [record.getMessage() for record in caplog.records] == [
        "tensorboard failed, nothing more is logged to it: RuntimeError: the network is gone"
    ]


def test_a_back_end_is_closed_once_and_then_told_nothing(back: type[Back], tmp_path: Path) -> None:
    logger = Logger("tensorboard", tmp_path, {}, 0)
    for _ in range(2):
        logger.close()
        logger.update(snapshot(10))
    assert back.told == [("close",)]


@pytest.mark.parametrize("best", [False, True])
def test_a_back_end_gets_the_best_policy_and_the_films_that_are_new(
    best: bool, back: type[Back], tmp_path: Path
) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "1.mp4").touch()
    logger, policy = Logger("tensorboard", tmp_path, {}, 100), "best" if best else None
    if best:
        (tmp_path / "best").mkdir()
    logger.keep()
    for name in ("3.mp4", "2.mp4"):
        (tmp_path / "videos" / name).touch()
    logger.keep()
    told: list[Any] = [("keep", "best", [])] if best else []
    assert back.told == [*told, ("keep", policy, ["2.mp4", "3.mp4"])]


def test_arguments_of_one_back_end_come_together() -> None:
    given = {"wandb.group": "x", "wandb": {"name": "y"}, "mlflow": {"experiment_name": "z"}, "wandb.tags": ["a"]}
    found = arguments(given, ["wandb", "mlflow"])
    assert found == {"wandb": {"group": "x", "name": "y", "tags": ["a"]}, "mlflow": {"experiment_name": "z"}}


# -------------------------------------------------------------------------------------- parameters
def test_parameters_of_several_channels_are_in_files_of_their_own(tmp_path: Path) -> None:
    tensors = {"a/b": {"w": torch.tensor([1.0])}, "c": {"w": torch.tensor([2.0])}}
    save_params(tmp_path, Report("", 70, 6, 0.0, 0.0, 0, tensors))
    facts = json.loads((tmp_path / "params.json").read_text())
    assert (facts["steps"], facts["updates"]) == (70, 6)
    assert {name: entry["file"] for name, entry in facts["channels"].items()} == {
        "a/b": "params-a.b.safetensors", "c": "params-c.safetensors",
    }  # fmt: skip
    assert [load_params(tmp_path, name)[1]["w"].tolist() for name in ("a/b", "c")] == [[1.0], [2.0]]
    for channel, says in (
        (None, r"of several channels \(\['a/b', 'c'\]\): expected Program.policy to name one"),
        ("d", "no parameters of the channel 'd'"),
    ):
        with pytest.raises(ShoalError, match=says):
            load_params(tmp_path, channel)


@pytest.mark.parametrize("times, found", [(0, True), (3, True), (4, True), (5, False)])
def test_parameters_that_are_replaced_as_they_are_read_are_read_five_times(
    times: int, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [times]

    def read(path: Path, channel: str | None) -> Any:
        if left[0]:
            left[0] -= 1
            (tmp_path / "params.json").write_text("{}")
            os.utime(tmp_path / "params.json", ns=(0, left[0]))  # written in place: the same file, another time
            raise FileNotFoundError
        return 1, {}

    (tmp_path / "params.json").write_text("{}")
    monkeypatch.setattr(param_files, "_load_params", read)
    if found:
        assert load_params(tmp_path) == (1, {})
    else:
        with pytest.raises(FileNotFoundError):
            load_params(tmp_path)
    assert left == [0]


# ------------------------------------------------------------------------------------------ states
def test_a_state_is_as_large_as_all_its_arrays_and_hashed_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "CHUNK", 64)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    state = {"a": np.arange(100, dtype=np.uint8), "b": torch.arange(50.0), "x": [1, (2, math.inf)], "c": np.zeros(3)}
    packed = states.pack(state)
    assert packed.nbytes == 100 + 4 * 50 + 8 * 3
    written = states.write(packed, tmp_path, "part")
    for name, told in written.items():
        data = (tmp_path / name).read_bytes()
        assert (told.size, told.sha256) == (len(data), hashlib.sha256(data).hexdigest()), name
        assert states.hash_file(tmp_path / name) == told
    states.sync(tmp_path / name for name in written)
    assert synced == [(tmp_path / name).stat().st_ino for name in written]
    found = states.read(tmp_path, "part")
    assert found["a"].tolist() == list(range(100)) and found["b"].tolist() == list(range(50))
    assert found["x"] == [1, (2, math.inf)] and found["c"].tolist() == [0.0] * 3


def test_each_array_lies_where_a_processor_reads_it_at_once() -> None:
    """At a multiple of the size of its numbers, and of 8 bytes the first."""
    packed = states.pack({"b": np.ones(3, np.uint8), "h": np.ones(3, np.int16), "d": np.ones(2), "f": torch.ones(5)})
    data = b"".join(bytes(part) for part in states._safetensors(packed))
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    starts = {name: told["data_offsets"][0] for name, told in json.loads(data[8 : 8 + length]).items()}
    assert starts == {"d": 0, "f": 16, "h": 36, "b": 42}


def test_arrays_of_one_path_are_two(tmp_path: Path) -> None:
    state = {"a/b": np.array([1]), "a": {"b": np.array([2])}, "a/b+": np.array([3])}
    states.write(states.pack(state), tmp_path, "part")
    found, sent = states.read(tmp_path, "part"), states.from_bytes(states.to_bytes(state))
    for each in (found, sent):
        assert [each["a/b"].tolist(), each["a"]["b"].tolist(), each["a/b+"].tolist()] == [[1], [2], [3]]


# ------------------------------------------------------------------------------- summary and report
def test_cells_of_a_summary_say_what_is_there(tmp_path: Path) -> None:
    hardware = {"processor": "P", "cores": 2, "memory": 10 * 2**30, "gpus": ["G", "H"]}
    assert markdown.made_on({"torch": "1", "numpy": "2"}, hardware, "abc") == {
        "machine": "P, 2 cores, 10 GiB, G, H", "versions": "torch 1, numpy 2", "git commit": "abc",
    }  # fmt: skip
    assert markdown.made_on({}, {}, None)["git commit"] == "none"
    assert markdown.rows({"a|b": 1})[2:] == [r"| a\|b | 1 |"]
    assert markdown.items([("x", 3), ("y", 2), ("z", 1)]) == ["- x (3 times)", "- y (2 times)", "- z"]
    assert [markdown.code(found) for found in ("a", "a`b", "```")] == ["`a`", "`` a`b ``", "```` ``` ````"]
    markdown.write_lines(tmp_path, ["<b>", "c"])
    assert (tmp_path / "summary.md").read_text() == "&lt;b>\nc\n"


def test_what_a_person_typed_is_told_without_what_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for argv, shown in ((["-"], "python"), (["-c", "x"], "python x"), (["a b.py"], "python 'a b.py'")):
        monkeypatch.setattr(sys, "argv", argv)
        assert markdown.command() == shown


def test_a_report_has_each_figure_in_its_own_place() -> None:
    run = snapshot(70, updates=6, seconds=1.23456, episodes=5, episode_return=4.0, restarts=3)
    report = Report.of("steps", run)
    assert (report.steps, report.updates, report.episodes, report.restarts) == (70, 6, 5, 3)
    facts = Report("failed", 1, 2, 1.23456, math.inf, 4, restarts=5, error="why").to_json()
    assert facts == {
        "reason": "failed", "steps": 1, "updates": 2, "seconds": 1.235, "episode_return": None, "episodes": 4,
        "restarts": 5, "error": "why",
    }  # fmt: skip
    assert math.isnan(Report.from_json(facts).episode_return)
    with pytest.raises((TypeError, ValueError)):
        Report.from_json({**facts, "evaluation": {"mean": "12"}})
