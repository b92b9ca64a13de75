"""The actor: every number of its trajectories and streams, from environments and an agent that can be worked out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Params, PlainAgent, ScriptedEnvs, SummingAgent, Writer, context

from shoal.api import Field
from shoal.roles.actor import ActorRole, unroll_spec

SCRIPT = [[(3, "terminated"), (2, "truncated")], [(4, "truncated"), (1, "terminated")], [(2, "terminated truncated")]]
STEPS, ENVS = 5, len(SCRIPT)


def actor(mode: str, stream: bool = False, stack: int = 1, extras: tuple[str, ...] = ("value",), **ctx: Any) -> Any:
    env = ScriptedEnvs(SCRIPT, mode, stack)
    named = dict.fromkeys(extras, ((), "float32"))
    spec = unroll_spec(env.spec, STEPS, ENVS, named, {"sum": (1,)}, stream)
    params = Params()
    params.publish({"scale": torch.tensor(2.0)})
    role = ActorRole(context("actor", seed=11, **ctx), env, SummingAgent(), Writer(spec), params, spec)
    return role


class Oracle:
    """What happens, worked out one environment and one step at a time."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.at = [(0, 0)] * ENVS
        self.sum = np.full(ENVS, 50.0)
        self.over = [False] * ENVS
        self.first = [True] * ENVS
        self.scale = 2.0

    def frame(self, e: int, back: int = 0) -> float:
        episode, step = self.at[e]
        return 1_000.0 * e + 100 * episode + max(0, step - back)

    def before(self, e: int) -> float:
        return float(self.sum[e])

    def step(self, e: int) -> dict[str, Any]:
        row: dict[str, Any] = dict(
            obs=self.frame(e), before=self.frame(e, 1), first=self.first[e], state=self.before(e)
        )
        total = (0.0 if self.first[e] else self.sum[e]) + self.frame(e)
        row |= dict(value=10 * self.scale * total, action=int(total) % 7)
        self.sum[e] = total
        row |= dict(valid=not self.over[e], reward=0.0, terminated=False, truncated=False, final=None, final_sum=0.0)
        if self.over[e]:
            self.over[e] = False
            self.at[e], self.first[e] = (self.at[e][0] + 1, 0), True
            return row
        episode, step = self.at[e]
        length, how = SCRIPT[e][episode % len(SCRIPT[e])]
        row["reward"] = 1.0 + e + row["action"]
        self.at[e], self.first[e] = (episode, step + 1), False
        if step + 1 == length:
            row |= dict(terminated="terminated" in how, truncated="truncated" in how)
            if self.mode == "same_step":
                row |= dict(final=self.frame(e), final_sum=total + self.frame(e))
                self.at[e], self.first[e] = (episode + 1, 0), True
            else:
                self.over[e] = True
        return row


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_every_number_of_a_trajectory(mode: str, stack: int) -> None:
    """Whole stacks; each unroll goes on where the one before stopped, the second with newer parameters."""
    role, oracle = actor(mode, stack=stack), Oracle(mode)
    for number in range(3):
        if number == 1:
            role.params.publish({"scale": torch.tensor(3.0)})
            oracle.scale = 3.0
        states = [oracle.before(e) for e in range(ENVS)]
        role.step()
        found = role.out.items[-1]
        assert found["state/sum"][:, 0].tolist() == states, "before the first step, not cleared where one begins"
        for t in range(STEPS):
            for e in range(ENVS):
                wanted = oracle.step(e)
                for name in ("first", "value", "action", "reward", "terminated", "truncated", "valid"):
                    assert found[name][t, e] == wanted[name], (name, t, e)
                assert found["obs"][t, e].ravel().tolist() == [e if stack == 1 else wanted["before"], wanted["obs"]]
                assert found["obs/side"][t, e].tolist() == [-wanted["obs"], e]
                if mode == "same_step":
                    value = 10 * oracle.scale * wanted["final_sum"] if wanted["truncated"] else 0.0
                    assert found["final_value"][t, e] == value, (t, e)
        for e in range(ENVS):
            last = (0.0 if oracle.first[e] else oracle.sum[e]) + oracle.frame(e)
            assert found["obs"][STEPS, e].ravel()[-1] == oracle.frame(e)
            assert found["first"][STEPS, e] == oracle.first[e]
            assert found["value"][STEPS, e] == 10 * oracle.scale * last
    assert role.out.versions == [1, 2, 2] and role.agent.loaded == [1, 2] and role.params.asked == [-1, 1, 2]
    valid = sum(int(item["valid"].sum()) for item in role.out.items)
    assert role.ctx.metrics.totals == {"env_steps": valid, "actions": 3 * STEPS * ENVS}
    assert valid < 3 * STEPS * ENVS if mode == "next_step" else valid == 3 * STEPS * ENVS
    assert "policy_lag" not in role.ctx.metrics.drain().tallies and not any(role.agent.greedy)
    looks = sum(int(item["truncated"].any(1).sum()) for item in role.out.items) if mode == "same_step" else 0
    assert role.env.seeds == [11] and role.agent.calls == 3 * (STEPS + 1) + looks > 0, "no more than there is to know"


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_every_number_of_a_stream(mode: str, stack: int) -> None:
    """Only the newest frame of a stack; the state before every step; the true last observation and its best value."""
    role, oracle = actor(mode, stream=True, stack=stack, extras=("q_taken", "q_max")), Oracle(mode)
    for number in range(3):
        role.step()
        found = role.out.items[-1]
        assert found["obs"].shape == ((STEPS, ENVS, 1, 1, 1) if stack > 1 else (STEPS, ENVS, 2))
        assert ("final/obs" in found) == ("final/q_max" in found) == (mode == "same_step")
        assert "value" not in found and "final_value" not in found
        for t in range(STEPS):
            any_end = False
            rows = [oracle.step(e) for e in range(ENVS)]
            any_end = any(row["terminated"] or row["truncated"] for row in rows)
            for e, wanted in enumerate(rows):
                assert found["obs"][t, e].ravel().tolist() == ([e] if stack == 1 else []) + [wanted["obs"]]
                assert found["obs/side"][t, e].tolist() == [-wanted["obs"], e]
                assert found["state/sum"][t, e, 0] == wanted["state"], (number, t, e)
                assert found["q_max"][t, e] == wanted["value"] + 1 and found["q_taken"][t, e] == wanted["value"] - 1
                for name in ("first", "action", "reward", "terminated", "truncated", "valid"):
                    assert found[name][t, e] == wanted[name], (name, t, e)
                if mode == "same_step":
                    best = 20 * wanted["final_sum"] + 2 if wanted["truncated"] else 0.0
                    assert found["final/q_max"][t, e] == best, "a greedy look, with the state of the episode that ended"
                    if any_end and wanted["final"] is not None:
                        assert found["final/obs"][t, e].ravel().tolist() == ([e] if stack == 1 else []) + [
                            wanted["final"]
                        ]
                        assert found["final/obs/side"][t, e].tolist() == [-wanted["final"], e]
    assert "policy_lag" in role.ctx.metrics.drain().tallies


def test_first_and_valid_follow_an_episode_that_is_ended_by_both() -> None:
    """Terminated and truncated in one step: the row after it is not valid, and the one after that is the first."""
    role = actor("next_step")
    role.step()
    found = role.out.items[0]
    assert found["valid"][:, 2].tolist() == [True, True, False, True, True]
    assert found["first"][:, 2].tolist() == [True, False, False, True, False, False]


def test_the_lag_of_a_stream_is_in_versions_behind_the_newest() -> None:
    role = actor("next_step", stream=True, extras=())
    latest, versions = role.params.latest, iter([(4, {"scale": torch.tensor(1.0)}), None])
    role.params.latest = lambda newer_than=-1: next(versions)
    role.params.version = 6
    role.step()
    role.step()
    assert role.ctx.metrics.drain().tallies["policy_lag"] == {2: 2} and role.out.versions == [4, 4]
    assert latest(6) is None


def test_episodes_are_told_with_their_numbers() -> None:
    role = actor("next_step")
    for _ in range(2):
        role.step()
    told = role.ctx.metrics.drain()
    assert [length for _, length in told.episodes] == [2, 3, 4, 2, 2, 1, 2, 3]
    assert told.infos["number"] == [20.0, 0.0, 10.0, 21.0, 1.0, 11.0, 22.0, 2.0]


def test_closing_the_actor_closes_its_environments() -> None:
    role = actor("next_step")
    role.close()
    assert role.env.closed


def test_neither_values_nor_a_state_are_needed() -> None:
    """Of an agent that has none."""

    env = ScriptedEnvs(SCRIPT)
    spec = unroll_spec(env.spec, STEPS, ENVS, {})
    role = ActorRole(context("actor"), env, PlainAgent(), Writer(spec), Params(), spec)
    role.step()
    assert "value" not in role.out.items[0] and role.state_dict() == {"agent": {}}  # type: ignore[attr-defined]
    role.load_state_dict({"agent": {"of": "another"}})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_exact_state_goes_on_as_if_nothing_had_been(mode: str, stream: bool) -> None:
    """From a state in the middle of episodes: the next unrolls are equal, number by number."""
    first, second = (actor(mode, stream, extras=("value",), exact=True) for _ in range(2))
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.agent.calls == first.agent.calls > 0
    for role in (first, second):
        role.step()
        role.step()
    for one, two in zip(first.out.items[1:], second.out.items, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert first.out.versions[1:] == second.out.versions and second.agent.loaded == [], "nothing newer was there"


def test_a_state_that_is_not_exact_is_the_agents_alone() -> None:
    role, other = actor("next_step"), actor("next_step")
    role.step()
    assert role.state_dict() == {"agent": {"calls": STEPS + 1, "scale": 2.0}}
    other.load_state_dict(role.state_dict())
    assert other.agent.calls == STEPS + 1 and other.version == -1 and other.first.all()


def test_the_fields_of_a_message() -> None:
    """Of a trajectory T + 1 observations and values; of a stream T of each, and the newest frame alone."""
    env = {mode: ScriptedEnvs(SCRIPT, mode, 3).spec for mode in ("next_step", "same_step")}
    extras: Any = {"value": ((), "float32"), "policy": ((7,), "float32")}
    whole = unroll_spec(env["next_step"], STEPS, ENVS, extras, {"sum": (4,)})
    assert whole["obs"] == Field((STEPS + 1, ENVS, 3, 1, 1), "float32") and whole["first"].shape == (STEPS + 1, ENVS)
    assert whole["value"].shape == (STEPS + 1, ENVS) and whole["policy"].shape == (STEPS, ENVS, 7)
    assert whole["action"] == Field((STEPS, ENVS), "int64") and whole["reward"].shape == (STEPS, ENVS)
    assert whole["state/sum"] == Field((ENVS, 4), axis=0) and "final_value" not in whole
    assert {whole[name].dtype for name in ("first", "terminated", "truncated", "valid")} == {"bool"}
    assert unroll_spec(env["same_step"], STEPS, ENVS, extras)["final_value"].shape == (STEPS, ENVS)
    stream = unroll_spec(env["same_step"], STEPS, ENVS, {"q_max": ((), "float32")}, {"sum": (4,)}, stream=True)
    assert stream["obs"].shape == stream["final/obs"].shape == (STEPS, ENVS, 1, 1, 1)
    assert stream["obs/side"].shape == (STEPS, ENVS, 2) and stream["state/sum"] == Field((STEPS, ENVS, 4))
    assert stream["final/q_max"].shape == stream["first"].shape == (STEPS, ENVS) and "final_value" not in stream
    plain = unroll_spec(env["same_step"], STEPS, ENVS, {}, stream=True)
    assert "final/q_max" not in plain and "final/obs" in plain
    plain = unroll_spec(env["next_step"], STEPS, ENVS, {"q_max": ((), "float32")}, stream=True)
    assert not any(name.startswith("final") for name in plain)


def test_steps_of_a_message_that_is_not_complete_are_told_as_they_are_made() -> None:
    role, told = actor("next_step"), list[int]()
    role.ctx.metrics.made = told.append
    role.step()
    valid = role.out.items[0]["valid"].sum(1).cumsum()
    assert told == [*valid, 0], "they are counted at the end"
