"""Numbers in an environment's info at the end of an episode become metrics, of a run and of an evaluation."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.envs.infos import episode_numbers, numbers
from shoal.metering.aggregator import Aggregator
from shoal.metering.recorder import Recorder
from shoal.records.metric_files import read_curve
from shoal.run import Run
from shoal.run.evaluation import Evaluation

HERE = f"{Path(__file__).resolve()}:Telling"


class Telling(gym.Env[Any, Any]):
    """Four steps an episode; ``success`` in every other one, ``loss`` is 7; earlier steps tell nonsense."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.t = 0
        return np.zeros(2, np.float32), {"success": 99}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        end = self.t == 4
        self.episodes += end
        told = {"success": self.episodes % 2 == 1, "loss": 7} if end else {"success": 99}
        return np.zeros(2, np.float32), 1.0, end, False, told


def test_only_finite_numbers_count() -> None:
    told = {"a": 1, "b": np.float32(0.5), "c": True, "d": np.bool_(False), 5: np.int64(2)}
    junk = {"text": "1", "nan": np.nan, "inf": -np.inf, "big": 10**400, "none": None, "array": np.ones(1), "z": 1j}
    assert numbers(told | junk) == {"a": 1.0, "b": 0.5, "c": 1.0, "d": 0.0, "5": 2.0}
    assert numbers(None) == numbers([1]) == {}


def test_a_mask_says_whose_number_it_is() -> None:
    info = {
        "x": np.array([1.0, 2.0, 3.0]), "_x": np.array([True, False, True]), "y": np.array([4, 5, 6]), "z": 7,
        "nan": np.array([0.0, 0.0, np.nan]), "two": np.ones((3, 2)), "names": np.array(["a", "b", "c"]),
    }  # fmt: skip
    expected = [{"y": 5.0, "nan": 0.0}, {"x": 3.0, "y": 6.0}]
    assert episode_numbers(info, np.array([1, 2]), 3) == expected
    assert episode_numbers({"x": np.zeros(3), "final_info": info}, np.array([1, 2]), 3) == expected
    old = np.array([None, {"x": 1}, {"y": 2}], dtype=object)
    assert episode_numbers({"final_info": old}, np.array([1, 2]), 3) == [{"x": 1.0}, {"y": 2.0}]


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_run_and_its_evaluations_tell_them(runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    shoal.train(
        "impala", env=HERE, runtime=runtime, run_dir=path, steps=2_000, preset="none", actors=1, envs=1, unroll=8,
        device="cpu", hidden=(8,), evaluation=Evaluation(every=1_000, episodes=4),
    )  # fmt: skip
    last = read_curve(path)[-1]
    assert last["success"] == pytest.approx(0.5)  # of 100 episodes
    assert last["info/loss"] == 7.0 and last["loss"] != 7.0  # the learner's stays the learner's
    if runtime == "serial":  # each evaluation falls on its step: the first, then the second episodes of four copies
        assert [row["evaluation_success"] for row in read_curve(path) if "evaluation_success" in row] == [1.0, 0.0]
    with open(path / "evaluations.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(row["loss"] == "7" and row["success"] in "01" for row in rows)
    returns = Run.open(path).policy().evaluate(episodes=3, envs=1)
    assert returns == [4.0] * 3 and returns.info == {"success": pytest.approx(2 / 3), "loss": 7.0}
    assert main(["eval", str(path), "--episodes", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "success 1, loss 7 (means per episode)"


def test_a_resumed_count_goes_on() -> None:
    recorder, all_of_it = Recorder(), Aggregator()
    for i in range(150):
        recorder.episode(1.0, 2, {"success": float(i >= 100)})
    all_of_it.add("actor", recorder.drain())
    recorder.episode(1.0, 2)
    state = json.loads(json.dumps(all_of_it.state_dict()))
    again = Aggregator()
    again.load_state_dict(state)
    again.add("actor", recorder.drain())
    assert again.snapshot().infos == all_of_it.snapshot().infos == {"success": 0.5}
    del state["infos"]  # a checkpoint of an earlier version
    again.load_state_dict(state)
    assert again.snapshot().infos == {}


@pytest.mark.parametrize(
    "key, name",
    [
        ("two\nlines", "two lines"),
        (7, "7"),
        ("", "unnamed"),
        ("a\x1b[2J", "a?[2J"),
        ("x" * 300, "x" * 100),
        ("a,b", "a,b"),
    ],
)
def test_a_key_of_info_is_a_name_on_one_line(key: object, name: str) -> None:
    assert numbers({key: 1.0}) == {name: 1.0}
