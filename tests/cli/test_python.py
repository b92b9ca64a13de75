"""What a program in Python types: systems by name or by config, policies in loops of its own, evaluations elsewhere."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import pytest

import shoal
from shoal.settings.other_names import ALIASES
from shoal.systems import SYSTEMS, SystemName, impala, name_of
from shoal.systems.dqn import Config as DQNConfig

SMALL: dict[str, Any] = dict(actors=1, envs=2, unroll=8, hidden=(8,), device="cpu", steps=200)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    path = tmp_path_factory.mktemp("runs") / "r"
    return shoal.train("impala", env="CartPole-v1", preset="none", runtime="serial", run_dir=path, quiet=True, **SMALL)


def test_the_systems_are_listed_and_named_for_completion() -> None:
    listed = shoal.systems()
    assert listed.keys() == SYSTEMS.keys() and listed["impala"].startswith("IMPALA: actors send ")
    assert {*get_args(SystemName)} == {*SYSTEMS, *ALIASES}
    assert import_module("shoal.systems").load("dqn").Config is DQNConfig, "it is the folder of their modules, too"


def test_a_config_names_its_system() -> None:
    assert {name: name_of(import_module(module).Config()) for name, module in SYSTEMS.items()} == {
        n: n for n in SYSTEMS
    }


def test_what_a_config_was_given_counts_as_if_given_by_name(tmp_path: Path) -> None:
    """Also where it is the default, which a preset would replace."""
    default = impala.Config().learning_rate
    cfg = impala.Config(env="CartPole-v1", learning_rate=default, unroll=4, steps=100, actors=1, envs=2, hidden=(8,))
    trained = shoal.train(cfg, unroll=8, runtime="serial", run_dir=tmp_path / "r", quiet=True)
    facts = json.loads((trained.path / "config.json").read_text())
    assert (facts["system"], facts["preset"]) == ("impala", "classic")
    assert (facts["config"]["learning_rate"], facts["config"]["unroll"]) == (str(default), 8)
    preset = {name for name, origin in facts["origins"].items() if origin == "preset classic"}
    assert preset and not preset & {"learning_rate", "unroll"}


def test_a_config_keeps_what_it_was_given_where_it_goes() -> None:
    cfg = impala.Config(unroll=4)
    assert cfg.given_fields() == pickle.loads(pickle.dumps(cfg)).given_fields() == {"unroll": 4}
    assert replace(cfg, unroll=5).given_fields()["unroll"] == 5 and cfg == impala.Config(unroll=4)


def test_a_config_of_no_system_is_refused() -> None:
    class Own(impala.Config):
        pass

    with pytest.raises(shoal.UsageError, match="is the Config of no system"):
        shoal.train(Own())


def test_a_policy_plays_in_another_environment(run: shoal.Run) -> None:
    policy = run.policy()
    expected = policy.evaluate(3, seed=1, envs=1)
    assert shoal.evaluate(policy, episodes=3, seed=1, envs=1) == expected
    made = gym.make("CartPole-v1")
    for env in ("CartPole-v1", lambda: gym.make("CartPole-v1"), made):
        assert shoal.evaluate(policy, env, episodes=3, seed=1, envs=1) == expected
        assert shoal.evaluate(run.path, env, episodes=3, seed=1, envs=1) == expected
    assert made.reset()[0].shape == (4,), "it is still open"
    short = shoal.evaluate(policy, lambda: gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 5), episodes=2)
    assert short == [5.0, 5.0]
    with pytest.raises(shoal.UsageError, match="trained with other observations than those of Pendulum-v1"):
        shoal.evaluate(policy, "Pendulum-v1")


def test_a_run_is_given_wherever_its_directory_is(run: shoal.Run, tmp_path: Path) -> None:
    assert os.fspath(run) == str(run.path) and shoal.Run.open(run).path == run.path
    assert shoal.load(run).version == run.policy().version
    with pytest.raises(shoal.UsageError, match="did you mean 'steps'"):
        shoal.resume(run, step=300)
    begun = shoal.train("impala", config=run, init_from=run, runtime="serial", run_dir=tmp_path / "r", quiet=True)
    assert begun.init_from == str(run.path) and begun.config["hidden"] == [8]


def test_a_policy_says_what_it_is(run: shoal.Run) -> None:
    assert repr(run.policy()).startswith("<Policy of impala on CartPole-v1, Discrete(2), version")


def test_a_saved_policy_plays_in_five_lines(run: shoal.Run, tmp_path: Path) -> None:
    run.policy().save(tmp_path / "policy.safetensors")
    policy, env = shoal.load(tmp_path / "policy.safetensors"), gym.make("CartPole-v1")
    (obs, _), ended, total = env.reset(seed=0), False, 0.0
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        ended, total = terminated or truncated, total + float(reward)
    assert total >= 1


def test_one_line_says_which_preset_a_program_got(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, lines in ((None, 1), (True, 0)):
        shoal.train("impala", env="CartPole-v1", runtime="serial", run_dir=tmp_path / f"{quiet}", quiet=quiet, **SMALL)
        out, err = capsys.readouterr()
        assert out == "" and err.count("impala on CartPole-v1, preset classic") == lines
