"""What actors that ask for their actions, and the server that answers them, save and go on from; and what the server
makes an agent with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes import Params, ScriptedEnvs, SummingAgent, Writer, context
from noted import noted
from test_inference import SCRIPT, Wires

from shoal.roles.actor import unroll_spec
from shoal.roles.inference import ServedActorRole
from shoal.roles.inference_server import InferenceRole


class Pair:
    """A served actor of one group, whose environments can be saved, and its server."""

    def __init__(self, mode: str = "next_step") -> None:
        self.mode, env = mode, ScriptedEnvs(SCRIPT, mode)
        extras = {"value": ((), "float32")}
        self.spec = unroll_spec(env.spec, 5, len(SCRIPT), extras, {"sum": (1,)})
        self.wires, self.params = Wires(env.spec, self.spec, len(SCRIPT), 1), Params()
        self.params.publish({"scale": torch.tensor(2.0)})
        self.role, self.server = self.actor(), self.serving()

    def actor(self) -> Any:
        ctx = context("actor", seed=11)
        object.__setattr__(ctx, "exact", True)
        envs: Any = [ScriptedEnvs(SCRIPT, self.mode)]
        wires: Any = self.wires
        return ServedActorRole(ctx, envs, wires.asking[0], wires.hearing[0], Writer(self.spec), self.spec)

    def serving(self) -> Any:
        wires: Any = self.wires
        return InferenceRole(
            context("inference"), lambda whose: SummingAgent(), wires.reading, wires.answering, self.params, wires.spec
        )


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(one, other))


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_actor_goes_on_from_whatever_moment_it_was_saved_at(mode: str) -> None:
    pair = Pair(mode)
    pair.role.start()
    asked, truncated, counted = set(), 0, 0
    for k in range(20):
        pair.server.step()
        pair.role.step()
        pair.params.publish({"scale": torch.tensor(float(k))})  # versions that differ within an unroll
        (group,), state, again = pair.role.groups, pair.role.state_dict(), pair.actor()
        (saved,) = state["groups"]
        now = group.asked, group.number, group.life, group.t, group.valid, group.done, tuple(group.versions)
        names = ("asked", "number", "life", "t", "valid", "done", "versions")
        assert equal(now, tuple(saved[name] for name in names)), k
        assert (state["server"], state["version"], state["actions"]) == (0, pair.role.version, pair.role.actions)
        again.load_state_dict(state)
        assert equal(again.state_dict(), state), k
        asked.add(group.asked)
        counted += group.valid > 0
        truncated += bool(np.any(saved["truncated"]))
    assert pair.role.actions == 5 * len(SCRIPT) * len(pair.role.out.items) > 0 and pair.role.version > 1
    assert asked == ({"act", "end", "final"} if mode == "same_step" else {"act", "end"})
    assert counted and bool(truncated) == (mode == "same_step")


def test_a_saved_unroll_holds_nothing_of_the_one_that_was_in_its_memory_before() -> None:
    """The slots of a writer are full of 77 (``fakes.Slot``): of a step that is not made yet, zeros are saved."""
    pair = Pair()
    pair.role.start()
    for made in range(1, 4):
        pair.server.step()
        pair.role.step()
        saved = {name: a for name, a in pair.role.state_dict()["unroll"].items() if not name.startswith("state/")}
        assert saved["reward"][made - 1].any()
        assert not any(array[made + 1 :].any() for array in saved.values()), made


def test_a_server_goes_on_with_the_recurrent_states_and_agents_that_it_had() -> None:
    pair = Pair()
    pair.role.start()
    for _ in range(7):
        pair.server.step()
        pair.role.step()
    state, again = pair.server.state_dict(), pair.serving()
    again.load_state_dict(state)
    (was, now) = (server.clients[0, 0] for server in (pair.server, again))
    assert (was.life, was.agent.calls) == (now.life, now.agent.calls) and was.agent.calls > 5
    assert torch.equal(was.state["sum"], now.state["sum"]) and not (was.state["sum"] == 50.0).any()
    assert equal(again.state_dict(), state)


@pytest.mark.parametrize("envs, actors", [(3, 341), (512, 2), (1024, 1), (1025, 1)])
def test_as_many_actors_are_answered_in_a_pass_as_have_at_most_1024_observations(envs: int, actors: int) -> None:
    spec = {"action": type("Shape", (), {"shape": (7, envs)})}
    assert InferenceRole(context("inference"), None, None, None, None, spec).most == actors  # type: ignore[arg-type]


class Movable(SummingAgent):
    """An agent that may share a pass of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[Any] = []

    def draw(self, *_: Any) -> Any: ...
    def respond(self, *_: Any) -> Any: ...
    def share(self, *_: Any) -> Any: ...

    def move(self, device: str, precision: str) -> None:
        self.moved.append((device, precision))


def test_the_agent_of_a_group_is_made_and_moved_as_its_actor_and_its_server_say() -> None:
    spec, told = {"action": type("Shape", (), {"shape": (3, 4)})}, list[Any]()
    server = InferenceRole(
        context("inference"), lambda whose: noted(told, whose, Movable()), None, None, None, spec, "player",  # type: ignore[arg-type]
        groups=2, device="cuda", precision="bf16",
    )  # fmt: skip
    client: Any = server._new(1, 1, 9, 40)
    assert [(w.role, w.index, w.replicas, w.counts, w.seed) for w in told] == [("player", 3, 6, {"actions": 40}, 9)]
    assert client.agent.moved == [("cuda", "bf16")]
