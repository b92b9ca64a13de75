"""Arguments and names of other libraries in Python: each is answered with what serves here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import shoal
from shoal import UsageError

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
