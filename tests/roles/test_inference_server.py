"""What an inference server answers together and what each agent is given; what an actor that asks it tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Params, ScriptedEnvs, SummingAgent, Writer, context
from test_inference import SCRIPT, Wires, pump
from test_inference_state import Movable

from shoal.api import Act
from shoal.roles.actor import unroll_spec
from shoal.roles.inference import ServedActorRole
from shoal.roles.inference_server import PATIENCE, Client, InferenceRole, Loaded, Question

SHAPES = {"action": SimpleNamespace(shape=(7, 3))}


class Stateless(SummingAgent):
    """One that has no recurrent state."""

    def initial_state(self, envs: int) -> Any:
        return {}

    def act(self, obs: Any, first: Any, state: Any, greedy: bool = False) -> Any:
        found = super().act(obs, np.ones_like(first), super().initial_state(len(first)), greedy)
        return found._replace(state={})


class Made:
    """An actor of ``groups`` groups, its wires, and servers of several lives."""

    def __init__(self, groups: int = 1, recurrent: bool = False) -> None:
        env = ScriptedEnvs(SCRIPT)
        state = {"sum": (1,)} if recurrent else {}
        self.spec = unroll_spec(env.spec, 5, groups * len(SCRIPT), {"value": ((), "float32")}, state)
        self.wires: Any = Wires(env.spec, self.spec, groups * len(SCRIPT), 1, groups)
        self.groups, self.params, self.agents = groups, Params(), list[Any]()
        self.kind = SummingAgent if recurrent else Stateless
        self.params.publish({"scale": torch.tensor(2.0)})
        self.envs: list[Any] = [ScriptedEnvs(SCRIPT) for _ in range(groups)]
        self.role: Any = ServedActorRole(
            context("actor", seed=11), self.envs, self.wires.asking[0], self.wires.hearing[0],
            Writer(self.spec), self.spec,
        )  # fmt: skip

    def server(self, generation: int = 0) -> Any:
        ctx = context("inference", seed=4)
        object.__setattr__(ctx, "generation", generation)

        def agent(_: Any) -> Any:
            self.agents.append(self.kind())
            return self.agents[-1]

        wires = self.wires
        return InferenceRole(
            ctx, agent, wires.reading, wires.answering, self.params, wires.spec, groups=self.groups
        )  # fmt: skip


def test_an_actor_without_recurrent_states_goes_on_within_its_episodes_when_the_server_is_replaced() -> None:
    made = Made()
    made.role.start()
    pump(made.server(0), made.role, unrolls=1)
    pump(made.server(1), made.role, unrolls=3)
    assert made.role.server == 1 and made.envs[0].seeds == [11], "no environment has begun anew"


def test_each_group_has_the_seeds_that_its_environments_would_have_in_one() -> None:
    made = Made(groups=2)
    assert [env.seeds for env in made.envs] == [[11], [11 + len(SCRIPT)]]
    assert [group.life for group in made.role.groups] == [11, 11 + len(SCRIPT)]


def test_the_steps_of_an_unfinished_unroll_are_told_of_all_groups() -> None:
    made, told = Made(groups=2), list[int]()
    made.role.ctx.metrics.made = told.append
    made.role.start()
    server = made.server()
    while len(made.role.out.items) < 1:
        pump(server, unrolls=0)
        before = [group.valid for group in made.role.groups]
        made.role.step()
        if not made.role.out.items:
            assert told[-1] == sum(group.valid for group in made.role.groups) >= sum(before)
    assert max(told) == int(made.role.out.items[0]["valid"].sum()) and told[-1] == 0, "a whole unroll is counted"


def test_an_agent_is_given_the_version_of_its_parameters_once() -> None:
    made = Made()
    made.role.start()
    server = made.server()
    pump(server, made.role, unrolls=1)
    made.params.publish({"scale": torch.tensor(3.0)})
    pump(server, made.role, unrolls=2)
    (agent,) = made.agents
    assert agent.loaded == [1, 2] and agent.scale == 3.0


@pytest.mark.parametrize("device, patience", [("cpu", 0.0), ("cuda", PATIENCE), ("cuda:1", PATIENCE)])
def test_a_gpu_waits_a_moment_for_more_questions_and_a_cpu_does_not(device: str, patience: float) -> None:
    asked: list[tuple[int, float]] = []

    class Questions:
        def waiting(self, most: int, patience: float = 0.0) -> dict[int, Any]:
            asked.append((most, patience))
            return {}

        def unseen(self) -> list[int]:
            return [0]

        def done(self, writers: Any) -> None: ...

    server = InferenceRole(context("inference"), None, Questions(), None, Params(), SHAPES, device=device)  # type: ignore[arg-type]
    server.step()
    assert asked == [(1024 // 3, patience)] and 0 < PATIENCE < 1e-3


class Prepared:
    """Questions of five actors: of two that act, of two that look at last observations greedily, of one that cannot
    share a pass, and of one more that waits for newer parameters."""

    def __init__(self) -> None:
        kinds = ["act", "final greedy", "act", "final greedy", "act", "act"]
        agents: list[Any] = [*(Movable() for _ in range(4)), SummingAgent(), Movable()]
        self.questions = [
            Question(k, 0, Client(0, a, Loaded(a)), 0, kind, 1 if k == 5 else -1, {}, np.zeros(3, bool))
            for k, (kind, a) in enumerate(zip(kinds, agents, strict=True))
        ]
        self.given: list[int] = []
        self.new = set(range(6))

    def waiting(self, most: int, patience: float = 0.0) -> dict[int, Any]:
        found, self.new = self.new, set()
        return {place: self.questions[place] for place in found}

    def unseen(self) -> list[int]:
        return sorted(self.new)

    def done(self, writers: Any) -> None:
        self.given += sorted(writers)


def test_greedy_looks_are_answered_apart_and_only_what_was_answered_is_given_back() -> None:
    questions, params, answered = Prepared(), Params(), list[list[int]]()
    params.publish({"scale": torch.tensor(1.0)})
    server: Any = InferenceRole(context("inference"), None, questions, None, params, SHAPES)  # type: ignore[arg-type]
    server._question = lambda question: question
    server._answer = lambda found: answered.append([question.actor for question in found])
    server.step()
    assert answered == [[0, 2], [1, 3], [4]] and questions.given == [0, 1, 2, 3, 4] and list(server.held) == [5]
    assert server.would_wait(), "its parameters are not there yet"
    params.publish({"scale": torch.tensor(1.0)})
    assert not server.would_wait()
    questions.new = {0}
    server.step()
    assert sorted(answered[-1]) == [0, 5], "what came meanwhile is answered with what had waited"
    assert questions.given[5:] == [0, 5] and not server.held


class Rows(Movable):
    """Its draws are rows of ones, and its recurrent state is what it is shown."""

    drawn = 0

    def draw(self, obs: Any, first: Any) -> Any:
        self.drawn += 1
        return (np.ones(len(first)),)

    def respond(self, obs: Any, first: Any, state: Any, drawn: Any) -> Any:
        shown = torch.from_numpy(obs["obs"])
        return Act(np.arange(len(first)), {"seen": shown}, {"greedy": np.full(len(first), not drawn)})


def test_each_client_keeps_its_own_rows_of_what_was_answered_in_one_pass_and_a_greedy_look_draws_nothing() -> None:
    spec, answers = {"action": SimpleNamespace(shape=(2, 3)), "state/seen": None, "greedy": None}, list[Any]()
    writer: Any = SimpleNamespace(put_part=lambda actor, items, version: answers.append((actor, items)))
    server: Any = InferenceRole(context("inference"), None, None, writer, Params(), spec)  # type: ignore[arg-type]
    server.version, server._params = 1, {"scale": torch.tensor(1.0)}

    def asked(kind: str) -> list[Question]:
        return [
            Question(k, 0, clients[k], 0, kind, -1, {"obs": np.full((3, 1), 10.0 * k)}, np.zeros(3, bool))
            for k in range(2)
        ]

    agents = [Rows(), Rows()]
    clients = [Client(k, a, Loaded(a), {"seen": torch.zeros(3, 1)}) for k, a in enumerate(agents)]
    server._answer(asked("act"))
    assert [c.state["seen"].flatten().tolist() for c in clients] == [[0.0] * 3, [10.0] * 3]
    assert [(actor, items["action"].tolist()) for actor, items in answers] == [(0, [[0, 1, 2]]), (1, [[3, 4, 5]])]
    clients[0].state = {"seen": torch.full((3, 1), 7.0)}
    server._answer(asked("final greedy"))
    assert clients[0].state["seen"].tolist() == [[7.0]] * 3, "a look moves no state"
    assert [agent.drawn for agent in agents] == [1, 1] and answers[-1][1]["greedy"].all()
