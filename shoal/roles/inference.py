"""Acting by a server: actors send observations, and one role that holds the newest parameters answers with actions.

Observations travel through a queue with a ring for each actor, and answers through a divided queue, of which each actor
has a part. An actor's environments are in one or two groups, and each has one question under way at most: while one
waits for its answer the other is stepped (double-buffered sampling, Petrenko et al. 2020, section 3.1). A ring holds
these questions and as many that an earlier life left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from shoal.api import (
    Act,
    Arrays,
    Context,
    EnvBatch,
    EnvSpec,
    Field,
    Reader,
    ShoalError,
    Slot,
    Spec,
    Tensors,
    Writer,
)
from shoal.roles.actor import VERSION, Unrolls, stored
from shoal.roles.recorded_envs import RecordedEnvs
from shoal.types import State

ABOUT = "about"
"""Of a question: actor, group, its life, number, kind, actions so far, the version of the parameters that those which
answer it must be newer than. Of an answer: group, its life, number, the server's life, whether it has a recurrent
state."""
KINDS = ("act", "end", "final", "final greedy")  # what is asked; the recurrent state goes on after the first alone
LIVES = 2  # of an actor, whose questions may be in its ring
NOTHING = -1  # number of no question

Kind = Literal["act", "end", "final"]


def question_spec(env: EnvSpec, envs: int) -> Spec:
    """Return the fields of a request: the observations ``[E, ...]`` of a group, and which of them start an episode."""
    out = {name: Field((envs, *leaf.shape), leaf.dtype, axis=0) for name, leaf in env.observations.items()}
    return out | {"first": Field((envs,), "bool", axis=0), ABOUT: Field((7,), "int64", axis=0)}


def answer_spec(env: EnvSpec, spec: Spec, actors: int, groups: int = 1) -> Spec:
    """The fields of an item with a part ``[1, E, ...]`` for each actor, which writes unrolls of ``spec`` with ``E``
    environments in each group: the action, what is stored beside it, and the recurrent state before it."""
    steps, all_envs = spec["reward"].shape
    envs, stream = all_envs // groups, spec["first"].shape[0] == steps
    out = {ABOUT: Field((actors, 5), "int64", axis=0)}
    for name in ("action", *stored(spec, env)):
        out[name] = Field((actors, envs, *spec[name].shape[2:]), spec[name].dtype, axis=0)
    for name in ("value", "q_max"):  # of an episode's last observation
        if ("final_value" if name == "value" else "final/q_max") in spec:
            out[name] = Field((actors, envs), axis=0)
    for name, f in spec.items():
        if name.startswith("state/"):
            out[name] = Field((actors, envs, *(f.shape[2:] if stream else f.shape[1:])), f.dtype, axis=0)
    return out


class ServedActorRole:
    """An actor that asks for its actions. One step = the answer to one group of its environments, and the question that
    follows from it; the unroll is written in place over many steps, and put with the last.

    envs: of each group. The version of an unroll is that of the parameters which chose its first actions: the oldest in
    it. Where the server was replaced, and the recurrent states are lost with it, the actor raises ShoalError, and so
    begins anew. lockstep: whether an unroll must be by newer parameters than the one before, for which its first
    actions wait.
    """

    def __init__(
        self, ctx: Context, envs: Sequence[EnvBatch], questions: Writer, answers: Reader, out: Writer, spec: Spec,
        lockstep: bool = False,
    ) -> None:  # fmt: skip
        self.ctx, self.questions, self.answers, self.out, self.spec = ctx, questions, answers, out, spec
        self.lockstep, self.server = lockstep, NOTHING  # the server's life
        self.actions = 0  # of this life
        self.version = NOTHING  # of the first actions of the last unroll
        self.groups: list[Group] = []
        rows = 0
        for number, env in enumerate(envs):
            whose = replace(ctx, seed=ctx.seed + rows)  # its environments have the seeds that they would have in one
            self.groups.append(Group(whose, env, self._ask, number, slice(rows, rows := rows + env.num_envs), spec))
        self._slot: Slot | None = None
        self._unroll: Arrays = {}

    def close(self) -> None:
        for group in self.groups:
            group.close()

    def start(self) -> None:
        for group in self.groups:
            if group.number == NOTHING:
                group.begin()

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("unroll")
        if self._slot is None:
            self._open()
        metrics.enter("inference")
        batch = self.answers.get()
        metrics.enter("unroll")
        items = {name: tensor[0] for name, tensor in batch.items.items()}
        number, life, question, server, recurrent = items.pop(ABOUT).tolist()
        group = self.groups[number]
        if (life, question) != (group.life, group.number):  # an earlier life had asked
            self.start()
            return
        if recurrent and self.server not in (NOTHING, server):
            raise ShoalError("the inference server was replaced, and the recurrent states are lost: new episodes begin")
        self.server = server
        group.answered(items, batch.versions[0])
        metrics.making(sum(group.valid for group in self.groups))
        if all(group.done for group in self.groups):
            self._put()

    def _open(self) -> None:
        self._slot = self.out.slot()
        self._unroll = self._slot.__enter__()
        if isinstance(self.groups[0].env, RecordedEnvs):  # its state has no rows of an unroll that was there before
            for rows in self._unroll.values():
                rows.fill(0)
        for group in self.groups:
            group.unroll = group.part(self._unroll)

    def _put(self) -> None:
        """Send the unroll, and ask for the first actions of the next."""
        assert self._slot is not None
        metrics, steps = self.ctx.metrics, self.groups[0].steps
        versions = [version for group in self.groups for version in group.versions]
        self.version, latest = min(versions), max(versions)
        if self.groups[0].stream:  # the learner reports the lag of a trajectory when it learns from it
            metrics.tally("policy_lag", (latest - version for version in versions))
        self._slot.version = self.version
        self._slot.__exit__(None, None, None)
        self._slot = None
        metrics.making(0)
        actions = steps * sum(group.env.num_envs for group in self.groups)
        metrics.count("env_steps", sum(group.valid for group in self.groups))
        metrics.count("actions", actions)
        self.actions += actions
        for group in self.groups:
            group.begin()

    def _ask(self, group: Group, kind: str, obs: Arrays, first: np.ndarray) -> None:
        metrics = self.ctx.metrics
        actions = (self.ctx.counts.get("actions", 0) + self.actions) // len(self.groups)
        after = self.version if self.lockstep and kind == "act" and not group.t else NOTHING
        told = self.ctx.index, group.index, group.life, group.number, KINDS.index(kind), actions, after
        metrics.enter("inference")
        self.questions.put({**obs, "first": first, ABOUT: np.array(told, np.int64)})
        metrics.enter("unroll")

    def state_dict(self) -> State:
        """Where the runtime is exact, all of it; elsewhere new episodes begin."""
        groups = [group.state_dict() for group in self.groups]
        if not all(groups):
            return {}
        unroll = self._unroll if self._slot is not None else None
        return {
            "groups": groups,
            "server": self.server,
            "version": self.version,
            "actions": self.actions,
            "unroll": unroll,
        }

    def load_state_dict(self, state: State) -> None:
        """Where environments begin anew, whatever is answered to the earlier life's questions makes it ask its own."""
        if not state:
            return
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.load_state_dict(saved)
        self.server, self.version, self.actions = state["server"], state["version"], state["actions"]
        if state["unroll"] is not None:
            self._open()
            for name, array in self._unroll.items():
                array[...] = state["unroll"][name]


class Group(Unrolls):
    """Environments of a served actor that are stepped together, and the ``rows`` of its unrolls that are theirs.

    ask: sends a question of a kind, about observations of which some begin an episode. unroll: these rows of the one
    that is being written.
    """

    def __init__(
        self, ctx: Context, env: EnvBatch, ask: Callable[[Group, str, Arrays, np.ndarray], None], index: int,
        rows: slice, spec: Spec,
    ) -> None:  # fmt: skip
        super().__init__(ctx, env, spec)
        self.ask, self.index, self.rows = ask, index, rows
        self.life = ctx.seed  # as the server knows it
        self.asked: Kind = "act"
        self.number = NOTHING  # of the question
        self.t = self.valid = 0
        self.done = False
        self.versions: list[int] = []  # of the parameters that chose the actions of each step of the unroll
        self.truncated = np.zeros(env.num_envs, bool)  # of the row whose last observations are asked about
        self.unroll: Arrays = {}

    def part(self, unroll: Arrays) -> Arrays:
        """Return the group's rows of an actor's unroll."""
        rows = self.rows
        before = () if self.stream else {name for name in unroll if name.startswith("state/")}  # [E, ...]
        part = {name: array[rows] if name in before else array[:, rows] for name, array in unroll.items()}
        if VERSION in unroll:
            part[VERSION] = unroll[VERSION][:, self.index]
        return part

    def begin(self) -> None:
        """Ask for the first actions of an unroll."""
        self.t = self.valid = 0
        self.done = False
        self._ask("act", self.obs, self.first)

    def answered(self, items: Tensors, version: int) -> None:
        unroll, t = self.unroll, self.t
        state = {name.removeprefix("state/"): v for name, v in items.items() if name.startswith("state/")}
        extras = {name: v.numpy() for name, v in items.items() if not name.startswith("state/")}
        if self.asked == "end":
            unroll["value"][t] = extras["value"]
            self._finish()
            return
        if self.asked == "act":
            del self.versions[t:]
            self.versions.append(version)
            if VERSION in unroll:
                unroll[VERSION][t] = version
            self.state = state
            if not t and not self.stream:
                self._begin(unroll)
            self._before(unroll, t)
            step = self._after(unroll, t, Act(np.array(extras.pop("action")), state, extras))
            self.valid += int(np.count_nonzero(step.valid))
            if self._store_final(unroll, t, step):
                assert step.final_obs is not None
                self.truncated = step.truncated.copy()
                self._ask("final", step.final_obs, np.zeros_like(step.truncated))
                return
        else:
            self._store_final_value(unroll, t, self.truncated, extras)
        self.t += 1
        if self.t < self.steps:
            self._ask("act", self.obs, self.first)
        elif self.stream or "value" not in self.stored:
            self._finish()
        else:
            self._ask("end", self.obs, self.first)

    def _finish(self) -> None:
        if not self.stream:
            self._store_observation(self.unroll, self.steps)
        self.done = True

    def _ask(self, kind: Kind, obs: Arrays, first: np.ndarray) -> None:
        self.asked = kind
        self.number += 1
        told = "final greedy" if kind == "final" and self.stream else kind
        self.ask(self, told, {name: obs[name] for name in self.leaves}, first)

    def state_dict(self) -> State:
        """All of it where its environments can be saved, else nothing."""
        if not isinstance(self.env, RecordedEnvs):
            return {}
        return {
            "env": self.env.state_dict(), "first": self.first, "life": self.life, "asked": self.asked,
            "number": self.number, "t": self.t, "valid": self.valid, "done": self.done, "versions": list(self.versions),
            "truncated": self.truncated,
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        assert isinstance(self.env, RecordedEnvs)
        self.env.load_state_dict(state["env"])
        self.obs, self.first = self.env.obs, state["first"]
        self.life, self.number, self.asked = state["life"], state["number"], state["asked"]
        self.t, self.valid, self.done = state["t"], state["valid"], state["done"]
        self.versions, self.truncated = list(state["versions"]), state["truncated"]
