"""Arguments and names of other libraries in Python: each is answered with what serves here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import shoal
from shoal import UsageError
from shoal.run import RunOptions, changes

SMALL: dict[str, Any] = dict(preset="none", runtime="serial", device="cpu", total_envs=2, hidden=(8,), steps=16)


def test_arguments_of_other_libraries_are_answered_where_a_policy_plays(tmp_path: Path) -> None:
    run: Any = shoal.train("dqn", env="CartPole-v1", run_dir=tmp_path / "r", **SMALL)
    policy, evaluate = run.policy(), cast(Any, shoal.evaluate)
    obs = np.zeros(4, np.float32)
    for call, words in (
        (lambda: policy.act(obs, deterministic=True), r"act has no argument 'deterministic': greedy=True plays"),
        (lambda: policy.act(obs, state=None), "the policy keeps its recurrent state"),
        (lambda: policy.act(obs, colour=1), r"'colour': it takes obs, greedy, reward, first, action_mask$"),
        (lambda: policy.evaluate(n_eval_episodes=2), "episodes= says"),
        (lambda: run.evaluate(n_eval_episodes=2), "evaluate has no argument 'n_eval_episodes': episodes= says"),
        (lambda: evaluate(policy, deterministic=True), "greedy=True plays"),
    ):
        with pytest.raises(UsageError, match=words):
            call()
    with pytest.raises(TypeError, match="missing 1 required"):  # other mistakes stay what they are
        policy.act()
    assert policy.act(obs, greedy=True) in (0, 1)
    for thing, name, words in (
        (policy, "q_net", r"policy\.params"),
        (run, "best_checkpoint", "which='best'"),
        (shoal, "EvalCallback", "eval_every"),
    ):
        with pytest.raises(AttributeError, match=words):
            getattr(thing, name)


def test_arguments_of_other_libraries_are_answered_by_train() -> None:
    for given, words in (
        ({"callback": print}, r"unknown setting 'callback' of dqn: .*observers=f"),
        ({"policy_kwargs": {"net_arch": [8]}}, r"'policy_kwargs' of dqn: .*hidden=\(64, 64\)"),
        ({"env_config": {}}, "did you mean 'env_kwargs'"),
    ):
        with pytest.raises(UsageError, match=words):
            shoal.train("dqn", env="CartPole-v1", **given)


def test_parts_of_an_evaluation_have_the_names_of_their_flags(tmp_path: Path) -> None:
    run: Any = shoal.train("dqn", env="CartPole-v1", run_dir=tmp_path / "r", eval_every=8, eval_episodes=1, **SMALL)
    stored = json.loads((tmp_path / "r" / "config.json").read_text())["evaluation"]
    assert (stored["every"], stored["episodes"]) == (8, 1) and run.policy(which="best")
    # a serial run cannot change it, and says so of the part
    with pytest.raises(UsageError, match="'evaluation' cannot change when a run goes on"):
        shoal.resume(run, steps=32, eval_episodes=2)
    facts = {"evaluation": stored, "runtime": "local"}
    options, _ = RunOptions.divide({"eval_episodes": 2}, whole=False)
    assert changes.evaluation(facts, options["evaluation"], False)["evaluation"].every == 8  # the others stay


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: shoal.evaluate(cast(Any, 5)), "shoal.evaluate expects the directory of a run, or a file, found 5"),
        (lambda: shoal.read_curve(cast(Any, 5)), "shoal.read_curve expects the directory of a run, or a file, found 5"),
        (lambda: shoal.Run.open(cast(Any, None)), "shoal.Run.open expects the directory of a run, or a file, found"),
        (lambda: shoal.launch(cast(Any, 5), steps=1), "shoal.launch expects a Program, found 5"),
        (lambda: shoal.linear(cast(Any, "a"), 0), "shoal.linear goes from one number to another, found 'a'"),
        (lambda: shoal.Interval(cast(Any, "a"), 1), "an Interval has numbers as its ends, found 'a'"),
        (lambda: shoal.Interval(True, 2), "an Interval has numbers as its ends, found True"),
        (lambda: shoal.Choice(cast(Any, 5)), "a Choice takes its values as one list or tuple, found 5"),
        (lambda: shoal.Choice(cast(Any, "relu")), "a Choice takes its values as one list or tuple, found 'relu'"),
        (lambda: shoal.systems("ppo"), "takes no argument: shoal.train('recurrent-ppo', ...) trains it, and"),
        (lambda: shoal.systems["r2d2"], "is one: shoal.train('r2d2', ...) trains it, and shoal.systems.r2d2"),
    ],
)
def test_what_a_function_cannot_take_is_one_sentence(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        call()
    assert told in str(error.value) and "\n" not in str(error.value)


def test_numbers_of_numpy_are_ends_of_intervals_and_schedules() -> None:
    assert shoal.Interval(np.int64(1), np.float32(2)).low == 1
    assert shoal.linear(np.int64(1), np.float32(0)).start == 1


def test_a_policy_says_how_many_observations_it_takes_and_where_it_cannot_be_saved(tmp_path: Path) -> None:
    policy = shoal.train("dqn", env="CartPole-v1", run_dir=tmp_path / "r", **SMALL).policy()
    with pytest.raises(UsageError, match=r"found \(3, 4\): after policy.reset\(3\), so many are taken together"):
        policy.act(np.zeros((3, 4), np.float32))
    with pytest.raises(UsageError, match=r"found \(3,\)$"):
        policy.act(np.zeros(3, np.float32))
    with pytest.raises(UsageError, match=r"policy\.save expects the path of a file, found None"):
        policy.save(cast(Any, None))


def test_a_directory_without_a_run_is_said_to_have_none_whatever_else_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path.parent)
    for look in (shoal.load, shoal.Run.open, shoal.evaluate):
        with pytest.raises(UsageError, match="holds no run: there is no config"):
            look(tmp_path)
    with pytest.raises(UsageError, match="holds no run"):
        shoal.train("dqn", env="CartPole-v1", init_from=tmp_path, **SMALL)
