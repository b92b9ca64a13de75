"""The phases of every role cover its time, and the part that is slowed is the one that is named."""

from __future__ import annotations

import time
from typing import Any

import pytest
from helpers import config, spy

from shoal.local.runtime import LocalRuntime
from shoal.metering.bottleneck import bottleneck
from shoal.metering.trace import Trace
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.systems import SYSTEMS, load


@pytest.mark.parametrize("system", SYSTEMS)
def test_named_phases_cover_the_time_of_every_role(system: str) -> None:
    fields: dict[str, Any] = {"demonstrations": ""} if system == "r2d3" else {}
    if system in ("apex-dpg", "d4pg", "qt-opt"):  # whose updates are long
        fields["samples_per_insert"] = 1.0
    program = load(system).program(config(system, **fields))
    for _ in range(3):  # a run in which other tests hold a role up between two phases says nothing
        trace = Trace()
        LocalRuntime().launch(program, Launch(seed=0, stop=Stop(steps=4_000), display=trace, interval=0.1))
        found = trace.shares()
        assert found.keys() == {role.name for role in program.roles}
        named = {role: sum(phases.values()) - phases.get("other", 0.0) for role, phases in found.items()}
        if min(named.values()) >= 0.95:
            break
    assert min(named.values()) >= 0.95, found


def slow(call: Any, seconds: float) -> Any:
    def slowed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return slowed


def slow_env(role: Any) -> None:
    role.env.step = slow(role.env.step, 0.01)


def slow_inference(role: Any) -> None:
    role.agent.act = slow(role.agent.act, 0.01)


def slow_replay(role: Any) -> None:
    reader = role.batches
    table = reader.table if hasattr(reader, "table") else reader._table
    table.sample = slow(table.sample, 0.05)


def slow_learner(role: Any) -> None:
    role.learner.update = slow(role.learner.update, 0.05)


@pytest.mark.parametrize("runtime", [SerialRuntime, LocalRuntime])
@pytest.mark.parametrize(
    "make_slow, role, kind",
    [
        (slow_env, "actor", "actor"),
        (slow_inference, "actor", "inference"),
        (slow_replay, "learner", "replay"),
        (slow_learner, "learner", "learner"),
    ],
)
def test_the_slowed_part_is_named(make_slow: Any, role: str, kind: str, runtime: Any) -> None:
    program = spy(load("dqn").program(config("dqn", samples_per_insert=1.0)), role, make_slow)
    trace = Trace()  # leaves out what was before the first update: compiling the table takes longer than the run
    runtime().launch(program, Launch(seed=0, stop=Stop(updates=60), display=trace, interval=0.1))
    found = bottleneck(trace.shares())
    assert found is not None and (found.kind, found.role) == (kind, role), (found, trace.shares())


def test_an_evaluator_holds_nobody_up() -> None:
    learner = {"learn": 0.5, "wait:transitions": 0.5}
    for phase in ("evaluate", "film"):
        found = bottleneck({"evaluator": {phase: 0.9, "wait:rest": 0.1}, "learner": learner})
        assert found is not None and (found.role, found.kind) == ("learner", "learner")
