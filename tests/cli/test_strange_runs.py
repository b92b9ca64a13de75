"""Whole runs in strange environments, and what is given to them."""

from __future__ import annotations

import csv
import datetime
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal as package
from shoal.run.evaluation import Evaluation
from shoal.settings import yaml_text
from shoal.settings.flags import parse_flags, split
from shoal.systems import impala

from .conftest import Shoal

FILE = str(Path(__file__).parents[1] / "envs" / "strange_env.py")
SMALL: dict[str, Any] = dict(
    preset="none", runtime="serial", steps=200, actors=1, envs=4, unroll=4, hidden=(8,), device="cpu"
)  # fmt: skip
DQN = dict(batch=8, min_replay=40, replay=200)


def train(system: str, name: str, path: Path, **fields: Any) -> package.Run:
    return package.train(system, env=f"{FILE}:{name}", run_dir=path, **{**SMALL, **fields})


@pytest.mark.parametrize("system, name, fields", [
    ("impala", "Masked", dict(action_mask="none")), ("dqn", "Masked", dict(action_mask="none", **DQN)),
    ("impala", "Pushed", {}), ("d4pg", "Pushed", dict(DQN, v_min=0.0, v_max=100.0)), ("impala", "CloseRaises", {}),
    ("dqn", "CloseRaises", dict(DQN, evaluation=Evaluation(every=100, episodes=2))),
])  # fmt: skip
def test_they_train_and_are_evaluated(system: str, name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    run = train(system, name, tmp_path / "r", **fields)
    assert run.report is not None and run.report.reason == "steps" and run.report.episodes > 10
    assert len(run.policy().evaluate(3)) == 3


def test_masks_in_info_forbid_whatever_the_dict_says(tmp_path: Path) -> None:
    run = train("impala", "Masked", tmp_path / "r", action_mask="info")
    assert run.report is not None and run.report.episode_return == 5.0, "no forbidden action was taken"


def test_a_run_with_masks_in_info_is_recorded(shoal: Shoal, tmp_path: Path) -> None:
    pytest.importorskip("minari")
    train("impala", "InInfo", tmp_path / "r")
    code, out, err = shoal("record", "r", "--episodes", "3", "--sampled", "--out", str(tmp_path / "data"))
    assert code == 0 and "mean return 5" in out, err


def test_a_return_in_info_is_not_that_of_the_evaluation(tmp_path: Path) -> None:
    run = train("impala", "Tells", tmp_path / "r", evaluation=Evaluation(every=100, episodes=2))
    with open(run.path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["evaluation_return"] for row in rows} - {""} == {"5"}, rows[-1]


def test_a_policy_is_refused_where_the_environment_has_changed(tmp_path: Path) -> None:
    run = train("impala", "Sized", tmp_path / "r")
    policy = run.policy()
    policy.save(tmp_path / "p.safetensors")
    for numbers in (1, 4):
        facts = json.loads((run.path / "config.json").read_text())
        facts["config"]["env_kwargs"] = {"numbers": numbers}
        (run.path / "config.json").write_text(json.dumps(facts))
        with pytest.raises(package.UsageError, match=r"does not fit .*, which is not what it was: size mismatch for"):
            package.Run.open(run.path).policy()


# ------------------------------------------------------------------------------------- env_kwargs
def test_env_kwargs_are_what_a_file_gives_back(tmp_path: Path) -> None:
    given = {"numbers": np.int64(4)}
    run = train("impala", "Sized", tmp_path / "r", env_kwargs=given)
    assert run.policy().cfg.env_kwargs == {"numbers": 4} and type(run.policy().cfg.env_kwargs["numbers"]) is int
    nested = package.resume(run.path, steps=300)
    assert nested.config["env_kwargs"] == {"numbers": 4}
    for wrong in (np.zeros(3), Path("x"), datetime.date(2020, 1, 1), {1: 2}, len, b"x", {3}):
        with pytest.raises(package.UsageError, match=r"'env_kwargs' expects names with values \(numbers, texts"):
            train("impala", "Sized", tmp_path / "wrong", env_kwargs={"numbers": wrong})
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("text, value", [
    ("1e-3", 1e-3), ("[1, 2e-3]", [1, 2e-3]), ("no", "no"), ("010", 10), ("1:30", "1:30"), ("1_000", 1000),
    ("2020-01-01", "2020-01-01"), ("true", True), ("null", None), ("0x1F", 31), ("-.5", -0.5), (".inf", float("inf")),
])  # fmt: skip
def test_yaml_is_what_people_mean(text: str, value: Any) -> None:
    found = yaml_text.read(text)
    assert found == value and type(found) is type(value)
    assert yaml_text.read(f"{{a: {{b: {text}}}}}") == {"a": {"b": value}}


def test_flags_of_the_environment(shoal: Shoal) -> None:
    words = ["--env-kwargs.a.b", "1e-3", "--env-kwargs.a.c", "x", "--env-kwargs", "{a: {b: 2}, d: [1, 2e-3]}"]
    values = parse_flags(impala.Config, split(words), "impala")
    assert values == {"env_kwargs": {"a": {"b": 2, "c": "x"}, "d": [1, 0.002]}}
    for words, says in (
        (["--env-kwargs.a"], "--env-kwargs.a expects a value, found nothing"),
        (["--env-kwargs.a", "{b"], "--env-kwargs expects names with values, found '{b'"),
    ):
        code, _, err = shoal("config", "impala", "--env", "CartPole-v1", *words)
        assert code == 2 and says in err and err.count("\n") == 1, err


# ---------------------------------------------------------------------------------------- the rest
def test_what_does_not_fit_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.runtime.memory.available", lambda: 2**30)
    with pytest.raises(package.UsageError, match=r"needs \d+\.\d+ GiB of memory .*transitions"):
        train("dqn", "Huge", tmp_path / "huge", replay=10_000)
    for system in ("apex-dpg", "qt-opt"):
        with pytest.raises(package.UsageError, match="needs a box of actions with all bounds"):
            train(system, "Wide", tmp_path / "wide")
    assert not any(tmp_path.iterdir())


def test_a_serial_run_does_not_seed_the_generators_for_what_follows(tmp_path: Path) -> None:
    after = []
    for seed in (5, 6):
        for generator in (random.seed, np.random.seed, torch.manual_seed):
            generator(seed)
        train("impala", "Plain", tmp_path / str(seed))
        after.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert all(a != b for a, b in zip(*after, strict=True))
    random.seed(6)
    assert random.random() == after[1][0]


@pytest.mark.parametrize("picture, says", [
    ("raises", "render() raised NotImplementedError: nothing to see"),
    ("floats", "render() gave shape [32, 32, 3] and dtype float32, not uint8 [H, W, 3]"),
    ("grows", "its pictures change from [32, 32, 3] to [34, 32, 3]"), ("rgba", ""), ("grey", ""),
])  # fmt: skip
def test_what_is_filmed(picture: str, says: str, tmp_path: Path, shoal: Shoal) -> None:
    from shoal.envs import EnvOptions
    from shoal.envs.film import film

    env, look, rate = film(f"{FILE}:Filmed", EnvOptions(env_kwargs={"picture": picture}))
    assert rate == 30.0, "what it says of its rate is no number"
    env.reset(0)
    if not says:
        assert look().shape == (32, 32, 3) and (look() == 200).all()
        return
    if picture == "grows":
        look()
        env.step(np.zeros(1, np.int64))
    with pytest.raises(package.UsageError) as caught:
        look()
    assert says in str(caught.value)
