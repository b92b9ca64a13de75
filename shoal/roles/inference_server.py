"""The server of ``roles.inference``: it answers the waiting requests of several actors in one forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from shoal.api import Act, Agent, Arrays, Context, ParamsReader, PartsWriter, Spec, Stateful, Tensors
from shoal.roles.inference import ABOUT, KINDS, NOTHING
from shoal.types import State

MAX_ROWS = 1024  # observations in a pass, or those of one actor
PATIENCE = 200e-6  # seconds that a GPU waits for more of them; a CPU batches what has come while it was at work
PAUSE = 500e-6  # seconds between two looks for new parameters


class Questions(Protocol):
    """Reader of a queue whose items are read in place and released in any order."""

    def waiting(self, most: int, patience: float = 0.0) -> dict[int, Tensors]:
        """The oldest item of each of ``most`` writers at most, by the writer's place, but for those that are not done
        with. Blocks until there is one, and then up to ``patience`` seconds for more."""

    def unseen(self) -> list[int]:
        """The writers of which ``waiting`` would tell."""

    def done(self, writers: Collection[int]) -> None:
        """Release the items of these writers."""


@runtime_checkable
class BatchedAgent(Protocol):
    """An agent that may share a pass of a network: see ``nets.batched_agent.BatchedAgent``."""

    def draw(self, obs: Arrays, first: np.ndarray) -> tuple[np.ndarray, ...]: ...
    def respond(self, obs: Arrays, first: np.ndarray, state: Tensors, drawn: tuple[np.ndarray, ...]) -> Act: ...
    def share(self, other: Any) -> None: ...
    def move(self, device: str, precision: Any) -> None: ...


@dataclass
class Loaded:
    """An agent whose network is its own, and the version of the parameters that it has."""

    agent: Agent
    version: int = NOTHING


@dataclass
class Client:
    """Facts that a server keeps about an actor: the agent for its current process, the network that it uses, its
    recurrent state."""

    life: int
    agent: Agent
    loaded: Loaded
    state: Tensors = field(default_factory=dict)


@dataclass
class Question:
    """Observations of a group of an actor's environments that wait for actions; after: the version that those of the
    answer must be newer than."""

    actor: int
    group: int
    client: Client
    number: int
    kind: str
    after: int
    obs: Arrays
    first: np.ndarray

    @property
    def greedy(self) -> bool:
        return self.kind == "final greedy"


class InferenceRole:
    """Answer actors with the newest parameters. One step answers all waiting requests, of several actors in one forward
    pass.

    agent: makes what acts for an actor, given the actor's context: it draws as the actor's own would, so that the same
    parameters choose the same actions, whoever else is answered with it. For a question that is alone this holds bit
    for bit; the sums of a larger batch may be rounded otherwise. Agents that are no ``BatchedAgent`` are asked one by
    one, on the CPU. What replaces a killed server draws other random numbers. spec: of the answers. device: where the
    network lies, and precision what it computes in.
    """

    def __init__(
        self, ctx: Context, agent: Callable[[Context], Agent], questions: Questions, answers: PartsWriter,
        params: ParamsReader, spec: Spec, actor_role: str = "actor", groups: int = 1, device: str = "cpu",
        precision: str = "auto",
    ) -> None:  # fmt: skip
        self.ctx, self.agent, self.questions, self.answers, self.params = ctx, agent, questions, answers, params
        self.spec, self.actor_role, self.groups = spec, actor_role, groups
        self.device, self.precision = device, precision
        self.actors, self.envs = spec["action"].shape[:2]
        self.most = max(1, MAX_ROWS // self.envs)
        self.patience = 0.0 if device == "cpu" else PATIENCE
        self.clients: dict[tuple[int, int], Client] = {}  # by actor and group
        self.held: dict[int, Question] = {}  # by their writers' places: those that wait for newer parameters
        self.version = NOTHING
        self._params: Tensors = {}
        self._shared: Loaded | None = None  # the network of all agents that share one

    def would_wait(self) -> bool:
        """Return whether there is nothing to answer: no new question, and no newer parameters for those held."""
        return not self.questions.unseen() and not self._released()

    def _released(self) -> bool:
        """Whether there are the newer parameters that a question waited for."""
        return bool(self.held) and min(question.after for question in self.held.values()) < self.params.newest()

    def step(self) -> None:
        self.ctx.metrics.enter("inference")
        released = self._released()
        if not released and len(self.held) == self.actors:  # all wait for the learner
            time.sleep(PAUSE)
            return
        if not released or self.questions.unseen():
            for place, items in self.questions.waiting(self.most, self.patience).items():
                self.held[place] = self._question(items)
        if (new := self.params.latest(newer_than=self.version)) is not None:
            self.version, self._params = new
        ready = {place: question for place, question in self.held.items() if question.after < self.version}
        together: dict[object, list[Question]] = {}
        for place, question in ready.items():
            one = isinstance(question.client.agent, BatchedAgent)
            together.setdefault(("greedy", question.greedy) if one else place, []).append(question)
        for questions in together.values():
            self._answer(questions)
        self.questions.done(ready)
        for place in ready:
            del self.held[place]

    def _question(self, items: Tensors) -> Question:
        arrays = {name: tensor.numpy() for name, tensor in items.items()}
        actor, group, life, number, kind, actions, after = arrays.pop(ABOUT).tolist()
        first, client = arrays.pop("first"), self._client(actor, group, life, actions)
        return Question(actor, group, client, number, KINDS[kind], after, arrays, first)

    def _answer(self, questions: Sequence[Question]) -> None:
        """Answer what may be answered together."""
        for question in questions:
            loaded = question.client.loaded
            if loaded.version != self.version:
                loaded.agent.load(self._params, self.version)
                loaded.version = self.version
        act, rows = together(questions), 0
        for question in questions:
            part = slice(rows, rows := rows + len(question.first))
            state, client = question.client.state, question.client
            answer = {"action": act.action[part], **{name: array[part] for name, array in act.extras.items()}}
            answer |= {f"state/{name}": tensor.numpy(force=True) for name, tensor in state.items()}
            about = question.group, client.life, question.number, self.ctx.generation, bool(state)
            answer[ABOUT] = np.array(about, np.int64)
            self.answers.put_part(question.actor, {name: answer[name][None] for name in self.spec}, self.version)
            if question.kind == "act":
                client.state = {name: tensor[part] for name, tensor in act.state.items()}

    def _client(self, actor: int, group: int, life: int, actions: int) -> Client:
        """What answers this life of a group."""
        client = self.clients.get((actor, group))
        if client is None or client.life != life:
            client = self.clients[actor, group] = self._new(actor, group, life, actions)
        return client

    def _new(self, actor: int, group: int, life: int, actions: int = 0) -> Client:
        """What answers a life of a group that has taken so many ``actions`` before."""
        whose = replace(
            self.ctx, role=self.actor_role, index=actor * self.groups + group, replicas=self.actors * self.groups,
            counts={"actions": actions}, seed=life ^ self.ctx.seed if self.ctx.generation else life,
        )  # fmt: skip
        agent = self.agent(whose)
        loaded = Loaded(agent)
        if isinstance(agent, BatchedAgent):
            if self._shared is None:
                self._shared = loaded
                if self.device != "cpu":
                    agent.move(self.device, self.precision)
            else:
                loaded = self._shared
                agent.share(loaded.agent)
        return Client(life, agent, loaded, agent.initial_state(self.envs))

    def state_dict(self) -> State:
        return {
            "clients": [
                {
                    "actor": actor, "group": group, "life": client.life, "state": client.state,
                    "agent": client.agent.state_dict() if isinstance(client.agent, Stateful) else {},
                }
                for (actor, group), client in self.clients.items()
            ]
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        for saved in state["clients"]:
            actor, group = saved["actor"], saved["group"]
            client = self.clients[actor, group] = self._new(actor, group, saved["life"])
            client.state = {name: tensor.to(client.state[name].device) for name, tensor in saved["state"].items()}
            if isinstance(client.agent, Stateful):
                client.agent.load_state_dict(saved["agent"])


def together(questions: Sequence[Question]) -> Act:
    """Return the actions for several requests, row after row, each with its own agent's random numbers."""
    (first, *others) = questions
    agent = first.client.agent
    if not isinstance(agent, BatchedAgent):
        return agent.act(first.obs, first.first, first.client.state, greedy=first.greedy)
    draws = [() if q.greedy else q.client.agent.draw(q.obs, q.first) for q in questions]  # type: ignore[attr-defined]
    if not others:
        return agent.respond(first.obs, first.first, first.client.state, draws[0])
    obs = {name: np.concatenate([q.obs[name] for q in questions]) for name in first.obs}
    state = {name: torch.cat([q.client.state[name] for q in questions]) for name in first.client.state}
    drawn = tuple(np.concatenate(column) for column in zip(*draws, strict=True))
    return agent.respond(obs, np.concatenate([q.first for q in questions]), state, drawn)
