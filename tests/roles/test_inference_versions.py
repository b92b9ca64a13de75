"""Which parameters chose the actions of each step that an inference server has acted for, and how old they were."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Params, ScriptedEnvs, SummingAgent, Writer, context
from noted import noted
from test_inference import SCRIPT, Wires

from shoal.api import Field
from shoal.roles.actor import VERSION, unroll_spec
from shoal.roles.inference import ServedActorRole
from shoal.roles.inference_server import InferenceRole

sys.path.insert(0, str(Path(__file__).parents[1] / "systems"))
from helpers import config, run, spy

from shoal.systems import load

STEPS, ENVS = 4, len(SCRIPT)


def played(stream: bool, groups: int, unrolls: int = 2) -> tuple[Any, list[list[int]]]:
    """An actor whose server has newer parameters at each answer, and the versions of the answers to each group."""
    env = ScriptedEnvs(SCRIPT)
    extras = dict.fromkeys(("q_taken", "q_max") if stream else ("value",), ((), "float32"))
    spec: dict[str, Any] = dict(unroll_spec(env.spec, STEPS, groups * ENVS, extras, {"sum": (1,)}, stream))
    if not stream:
        spec[VERSION] = Field((STEPS, groups), "int64")
    wires: Any = Wires(env.spec, spec, groups * ENVS, 1, groups)
    params = Params()
    params.publish({"scale": torch.tensor(2.0)})
    server = InferenceRole(
        context("inference"), lambda whose: SummingAgent(), wires.reading, wires.answering, params, wires.spec,
        groups=groups,
    )  # fmt: skip
    envs: list[Any] = [ScriptedEnvs(SCRIPT) for _ in range(groups)]
    role: Any = ServedActorRole(context("actor"), envs, wires.asking[0], wires.hearing[0], Writer(spec), spec)
    answered: list[list[int]] = [[] for _ in range(groups)]
    for group in role.groups:

        def noted(items: Any, version: int, group: Any = group, answer: Any = group.answered) -> None:
            if group.asked == "act":
                answered[group.index].append(version)
            answer(items, version)

        group.answered = noted
    role.start()
    while len(role.out.items) < unrolls:
        server.step()
        params.publish({"scale": torch.tensor(2.0)})
        role.step()
    return role, answered


@pytest.mark.parametrize("groups", [1, 2])
def test_a_trajectory_has_the_version_of_each_step_of_each_group(groups: int) -> None:
    role, answered = played(False, groups)
    for number, item in enumerate(role.out.items):
        part = slice(number * STEPS, (number + 1) * STEPS)
        wanted = np.array([versions[part] for versions in answered]).T
        assert np.array_equal(item[VERSION], wanted) and len(np.unique(wanted)) > STEPS - 1
        assert role.out.versions[number] == wanted.min()
    assert "policy_lag" not in role.ctx.metrics.drain().tallies, "the learner tells it"


def test_the_lag_of_a_stream_is_told_of_each_step() -> None:
    role, (answered,) = played(True, 1)
    wanted: dict[int, int] = {}
    for number in range(2):
        versions = answered[number * STEPS : (number + 1) * STEPS]
        for version in versions:
            wanted[max(versions) - version] = wanted.get(max(versions) - version, 0) + 1
    assert role.ctx.metrics.drain().tallies["policy_lag"] == wanted and len(wanted) == STEPS


@pytest.mark.parametrize("system, fields", [("impala", dict(batch=2)), ("recurrent-ppo", dict(minibatches=2))])
def test_a_learner_tells_the_lag_of_each_step_and_learns_from_no_version(system: str, fields: dict[str, Any]) -> None:
    """Of each step of each item, by an actor's two groups."""
    cfg = config(system, inference="server", double_buffer="on", device="cpu", actors=2, **fields)
    learned: list[Any] = []
    lags: list[dict[int, int]] = []

    def keep(role: Any) -> None:
        update, tally = role.learner.update, role.ctx.metrics.tally

        def counted(name: str, values: Any) -> None:
            values = list(values)
            lags.append({lag: values.count(lag) for lag in values})
            tally(name, values)

        role.learner.update = lambda batch: noted(learned, batch.items, update(batch))
        role.ctx.metrics.tally = counted

    run(spy(load(system).program(cfg), "learner", keep), 4)
    assert len(learned) == 4 and not any(VERSION in items for items in learned)
    actors = learned[0]["reward"].shape[1] // cfg.envs
    assert [sum(found.values()) for found in lags] == [cfg.unroll * 2 * actors] * 4
    assert system != "impala" or any(len(found) > 1 for found in lags), "parameters change within an unroll"


@pytest.mark.parametrize("system", ["impala", "dqn"])
def test_nothing_is_sent_for_it_where_actors_act_by_themselves_nor_to_a_replay(system: str) -> None:
    """There each unroll has one version, and a table would keep one for each step."""
    for inference in ("actor", "server"):
        program = load(system).program(config(system, inference=inference, device="cpu"))
        (sent,) = (channel for channel in program.channels.values() if "reward" in channel.spec)
        assert (VERSION in sent.spec) == (system == "impala" and inference == "server")
