"""The collector: a trajectory that grows part by part, and is as long as what was taken of it."""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import pytest
import torch
from fakes import ScriptedEnvs, SummingAgent, Writer, context

from shoal.metering.recorder import Recorder
from shoal.roles.actor import ActorRole, unroll_spec
from shoal.roles.collector import Collector, OwnParams

SCRIPT = [[(3, "terminated"), (2, "truncated")], [(4, "truncated"), (1, "terminated")]]
STEPS, ENVS = 6, len(SCRIPT)


def collector(mode: str = "next_step", **ctx: Any) -> Collector:
    env = ScriptedEnvs(SCRIPT, mode)
    spec = unroll_spec(env.spec, STEPS, ENVS, {"value": ((), "float32")}, {"sum": (1,)})
    own = OwnParams(lambda: {"scale": torch.tensor(2.0)})
    own.version = 1
    return Collector(context(seed=11, **ctx), env, SummingAgent(), own, spec)


def actor(mode: str) -> tuple[ActorRole, Writer]:
    env = ScriptedEnvs(SCRIPT, mode)
    spec = unroll_spec(env.spec, STEPS, ENVS, {"value": ((), "float32")}, {"sum": (1,)})
    out, own = Writer(spec), OwnParams(lambda: {"scale": torch.tensor(2.0)})
    own.version = 1
    return ActorRole(context(seed=11), env, SummingAgent(), out, own, spec), out


def totals(role: Collector | ActorRole) -> Any:
    return cast(Recorder, role.ctx.metrics).totals


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_parts_make_the_trajectory_of_an_actor(mode: str) -> None:
    role, (whole, out) = collector(mode), actor(mode)
    for _ in range(2):
        whole.step()
        for part in (1, 3, 2):
            role.advance(part)
        found = role.take()
        assert found.keys() == out.items[-1].keys()
        for name, array in out.items[-1].items():
            np.testing.assert_array_equal(found[name].numpy(), array, err_msg=name)
    assert totals(role) == totals(whole)


def test_a_trajectory_taken_early_has_one_row_more_of_what_an_end_has() -> None:
    """And the next one begins where it ended. More than is missing is never taken."""
    role, (whole, out) = collector(), actor("next_step")
    role.advance(4)
    first = {name: tensor.clone() for name, tensor in role.take().items()}
    lengths = {name: len(tensor) for name, tensor in first.items()}
    assert lengths == {
        "obs": 5, "obs/side": 5, "first": 5, "value": 5, "action": 4, "reward": 4, "terminated": 4, "truncated": 4,
        "valid": 4, "state/sum": ENVS,
    }  # fmt: skip
    role.advance(5)
    role.advance(5)
    assert role.taken == STEPS and totals(role)["actions"] == (4 + STEPS) * ENVS
    second = role.take()
    assert role.taken == 0 and len(second["reward"]) == STEPS and second["obs"][0].equal(first["obs"][4])
    for _ in range(2):
        whole.step()
    joined = torch.cat([first["reward"], second["reward"]]).numpy()
    np.testing.assert_array_equal(joined, np.concatenate([item["reward"] for item in out.items])[: 4 + STEPS])
    assert first["value"][4].equal(second["value"][0])
    valid = int(first["valid"].sum() + second["valid"].sum())
    assert totals(role)["env_steps"] == valid < (4 + STEPS) * ENVS


def test_own_parameters_have_a_version_from_the_beginning() -> None:
    own = OwnParams(lambda: {"scale": torch.tensor(2.0)})
    found = own.latest()
    assert found is not None and found[0] == own.newest() == 0 and own.latest(0) is None


def test_parameters_are_looked_for_once_a_trajectory() -> None:
    """A trajectory is of one policy; the state before it is kept when it begins."""
    role = collector()
    assert role.params.ready()
    role.advance(2)
    cast(OwnParams, role.params).version = 5
    role.advance(2)
    assert role.agent.loaded == [1] and role.params.newest() == 5  # type: ignore[attr-defined]
    assert role.take()["state/sum"][:, 0].tolist() == [50.0, 50.0]
    role.advance(1)
    assert role.agent.loaded == [1, 5]  # type: ignore[attr-defined]
    assert (role.unroll["state/sum"][:, 0] != 50).all()
    role.take()
    role.advance(1)
    assert role.agent.loaded == [1, 5], "it has them already"  # type: ignore[attr-defined]


@pytest.mark.parametrize("parts", [0, 2, 5])
def test_an_exact_state_goes_on_in_the_middle_of_a_trajectory(parts: int) -> None:
    first, second = collector(exact=True), collector(exact=True)
    first.advance(STEPS)
    first.take()
    if parts:
        first.advance(parts)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.taken == parts
    for role in (first, second):
        role.advance(STEPS)
    one, two = first.take(), second.take()
    for name in one:
        assert one[name].equal(two[name]), name


def test_where_environments_begin_anew_so_does_the_trajectory() -> None:
    first, second = collector(), collector()
    first.advance(2)
    state = first.state_dict()
    assert "unroll" not in state and "taken" not in state
    second.load_state_dict(state)
    assert second.taken == 0
