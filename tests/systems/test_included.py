"""A program that is part of a larger one: it trains, reports, evaluates, saves and resumes under its prefix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.api import Field, ShoalError, UsageError, WiringError
from shoal.program import Channel, Program
from shoal.records.param_files import load_params
from shoal.run.evaluation import Evaluation

SYSTEM = '''
"""IMPALA as a part of something larger."""
from shoal.program import Program
from shoal.systems import impala
from shoal.systems.impala import PRESETS, Config, agent

def program(cfg):
    whole = Program("whole", policy={policy!r})
    for part in {parts!r}:
        whole.include(impala.program(cfg), part)
    return whole
'''
SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", steps=600, actors=1, envs=4, unroll=8, hidden=(8,), device="cpu"
)


def written(path: Path, *parts: str, policy: str | None = None) -> str:
    path.write_text(SYSTEM.format(parts=parts, policy=policy), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_an_included_program_trains_reports_evaluates_and_saves(runtime: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    how: dict[str, Any] = dict(SMALL, runtime=runtime, evaluation=Evaluation(every=200, episodes=2))
    run = shoal.train(written(tmp_path / "house.py", "team"), run_dir=tmp_path / "r", **how)
    assert run.report is not None and run.report.reason == "steps" and run.report.params.keys() == {"team/params"}
    assert json.loads((run.path / "config.json").read_text())["policy"] == "team/params"
    lines = (run.path / "evaluations.csv").read_text().splitlines()
    assert len(lines) > 1 and lines[-1].startswith(f"{run.report.steps},"), "the last parameters, too"
    if runtime == "local":
        assert {p.name for p in (run.path / "logs").iterdir()} >= {"team.actor-0.log", "team.learner-0.log"}

    opened = shoal.Run.open(run.path)
    for which in ("last", "best"):
        policy = opened.policy(which=which)
        assert policy.params.keys() == run.report.params["team/params"].keys()
        assert len(policy.evaluate(2)) == 2
    last = opened.policy().params
    assert all(torch.equal(last[k], v) for k, v in run.report.params["team/params"].items())

    (run.path / "params.json").unlink()  # as if the run had been killed: its newest checkpoint has them
    assert all(torch.equal(last[k], v) for k, v in shoal.Run.open(run.path).policy().params.items())
    assert load_params(run.path)[1].keys() == last.keys(), "it has only one"
    again = shoal.resume(run.path, steps=1_000)
    assert again.report is not None and again.report.steps >= 1_000 and again.policy().version > 0


def test_of_two_policies_one_must_be_named(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    two, how = written(tmp_path / "two.py", "left", "right"), dict(SMALL, runtime="serial")
    with pytest.raises(UsageError, match=r"expected one params channel, .*'left/params', 'right/params'"):
        shoal.train(two, run_dir=tmp_path / "a", evaluation=Evaluation(every=200), **how)
    run = shoal.train(two, run_dir=tmp_path / "b", **how)  # without evaluation there is nothing to be told
    with pytest.raises(ShoalError, match=r"several channels \(\['left/params', 'right/params'\]\): expected Program"):
        run.policy()
    (run.path / "params.json").unlink()
    with pytest.raises(ShoalError, match=r"several channels \(\['left/params', 'right/params'\]\): expected Program"):
        run.policy()

    named = written(tmp_path / "named.py", "left", "right", policy="right/params")
    run = shoal.train(named, run_dir=tmp_path / "c", evaluation=Evaluation(every=200, episodes=1), **how)
    assert run.report is not None and run.report.params.keys() == {"left/params", "right/params"}
    found, right = run.policy().params, run.report.params["right/params"]
    assert all(torch.equal(found[k], v) for k, v in right.items())
    best = json.loads((run.path / "best" / "params.json").read_text())
    assert list(best["channels"]) == ["right/params"]


def program(name: str, *params: str, policy: str | None = None) -> Program:
    p = Program(name, policy=policy)
    for channel in params:
        p.channel(Channel(channel, "params", {"w": Field((1,))}))
    return p


def test_the_channel_of_a_policy() -> None:
    assert program("one", "weights").policy_channel().name == "weights"
    assert program("two", "policy", "model", policy="policy").policy_channel().name == "policy"
    with pytest.raises(WiringError, match=r"none: expected one params channel.* name one; it has none"):
        program("none").policy_channel()
    with pytest.raises(WiringError, match="it has 'policy', 'model'"):
        program("two", "policy", "model").policy_channel()
    wrong = program("wrong", policy="polcy")
    items = wrong.channel(Channel("policy", "params", {"w": Field((1,))}))
    wrong.role("writer", object, w=items.writer())
    wrong.role("reader", object, r=items.reader())
    with pytest.raises(WiringError, match="params channel 'polcy'; there is only 'policy'"):
        wrong.validate()


def test_an_included_program_brings_its_policy() -> None:
    whole = Program("whole")
    whole.include(program("two", "policy", "model", policy="policy"), "a")
    assert whole.policy_channel().name == "a/policy"
    whole.include(program("two", "policy", "model", policy="policy"), "b")
    assert whole.policy_channel().name == "a/policy"
    named = Program("named", policy="b/weights")
    named.include(program("two", "policy", "model", policy="policy"), "a")
    named.include(program("one", "weights"), "b")
    assert named.policy_channel().name == "b/weights"
