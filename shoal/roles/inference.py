"""Acting by a server: actors send observations, and one role that holds the newest parameters answers with actions.

Observations travel through a queue with a ring for each actor, and answers through a divided queue, of which each actor
has a part. An actor has one question under way at any moment, so a ring of two holds it and what an earlier life left.
"""

from __future__ import annotations

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
from shoal.roles.actor import Unrolls, stored
from shoal.roles.recorded_envs import RecordedEnvs
from shoal.types import State

ABOUT = "about"
"""Of a question: actor, its life, number, kind, actions so far, the version of the parameters that those which answer
it must be newer than. Of an answer: number, the server's life, whether it has a recurrent state."""
KINDS = ("act", "end", "final", "final greedy")  # what is asked; the recurrent state goes on after the first alone
CAPACITY = 2
NOTHING = -1  # number of no question

Kind = Literal["act", "end", "final"]


def question_spec(env: EnvSpec, envs: int) -> Spec:
    """The fields of an actor's question: its observations ``[E, ...]`` and which of them start an episode."""
    out = {name: Field((envs, *leaf.shape), leaf.dtype, axis=0) for name, leaf in env.observations.items()}
    return out | {"first": Field((envs,), "bool", axis=0), ABOUT: Field((6,), "int64", axis=0)}


def answer_spec(env: EnvSpec, spec: Spec, actors: int) -> Spec:
    """The fields of an item with a part ``[1, E, ...]`` for each actor, which writes unrolls of ``spec``: the action,
    what is stored beside it, and the recurrent state before it."""
    steps, envs = spec["reward"].shape
    stream = spec["first"].shape[0] == steps
    out = {ABOUT: Field((actors, 3), "int64", axis=0)}
    given = ["action", *stored(spec, env)]
    for name in given:
        out[name] = Field((actors, *spec[name].shape[1:]), spec[name].dtype, axis=0)
    for name in ("value", "q_max"):  # of an episode's last observation
        if ("final_value" if name == "value" else "final/q_max") in spec:
            out[name] = Field((actors, envs), axis=0)
    for name, f in spec.items():
        if name.startswith("state/"):
            out[name] = Field((actors, *(f.shape[1:] if stream else f.shape)), f.dtype, axis=0)
    return out


class ServedActorRole(Unrolls):
    """An actor that asks for its actions. One step = one answer, and the question that follows from it; the unroll is
    written in place over many steps, and put with the last.

    The version of an unroll is that of the parameters which chose its first actions: the oldest in it. Where the
    server was replaced, and the recurrent states are lost with it, the actor raises ShoalError, and so begins anew.
    lockstep: whether an unroll must be by newer parameters than the one before, for which its first actions wait.
    """

    def __init__(
        self, ctx: Context, env: EnvBatch, questions: Writer, answers: Reader, out: Writer, spec: Spec,
        lockstep: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(ctx, env, out, spec)
        self.questions, self.answers, self.lockstep = questions, answers, lockstep
        self.life, self.server = ctx.seed, NOTHING  # its own, as the server knows it; that of the server
        self.asked: Kind = "act"
        self.number = NOTHING
        self.t = self.valid = self.actions = 0  # actions: of this life
        self.versions = (NOTHING, NOTHING)  # of the first and the latest actions of the unroll
        self.truncated = np.zeros(env.num_envs, bool)  # of the row whose last observations are asked about
        self._slot: Slot | None = None
        self._unroll: Arrays = {}

    def start(self) -> None:
        self._ask("act", self.obs, self.first)

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("unroll")
        if self._slot is None:
            self._open()
        metrics.enter("inference")
        batch = self.answers.get()
        metrics.enter("unroll")
        items = {name: tensor[0] for name, tensor in batch.items.items()}
        number, server, recurrent = items.pop(ABOUT).tolist()
        if number != self.number:  # an earlier life had asked
            if self.number == NOTHING:
                self.start()
            return
        if recurrent and self.server not in (NOTHING, server):
            raise ShoalError("the inference server was replaced, and the recurrent states are lost: new episodes begin")
        self.server = server
        self._answered(items, batch.versions[0])

    def _answered(self, items: Tensors, version: int) -> None:
        unroll, t = self._unroll, self.t
        state = {name.removeprefix("state/"): v for name, v in items.items() if name.startswith("state/")}
        extras = {name: v.numpy() for name, v in items.items() if not name.startswith("state/")}
        if self.asked == "end":
            unroll["value"][t] = extras["value"]
            self._put()
            return
        if self.asked == "act":
            self.versions = (self.versions[0] if t else version, version)
            self.state = state
            if not t and not self.stream:
                self._begin(unroll)
            self._before(unroll, t)
            step = self._after(unroll, t, Act(np.array(extras.pop("action")), state, extras))
            self.valid += int(np.count_nonzero(step.valid))
            self.ctx.metrics.making(self.valid)
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
            self._put()
        else:
            self._ask("end", self.obs, self.first)

    def _open(self) -> None:
        self._slot = self.out.slot()
        self._unroll = self._slot.__enter__()
        if isinstance(self.env, RecordedEnvs):  # its state has no rows of an unroll that was there before
            for rows in self._unroll.values():
                rows.fill(0)

    def _put(self) -> None:
        """Send the unroll, and ask for the first actions of the next."""
        assert self._slot is not None
        metrics, (first, latest) = self.ctx.metrics, self.versions
        if self.stream:  # the learner reports the lag of a trajectory when it learns from it
            metrics.tally("policy_lag", (latest - first,))
        else:
            self._store_observation(self._unroll, self.steps)
        self._slot.version = first
        self._slot.__exit__(None, None, None)
        self._slot = None
        metrics.making(0)
        metrics.count("env_steps", self.valid)
        metrics.count("actions", self.steps * self.env.num_envs)
        self.actions += self.steps * self.env.num_envs
        self.t = self.valid = 0
        self._ask("act", self.obs, self.first)

    def _ask(self, kind: Kind, obs: Arrays, first: np.ndarray) -> None:
        self.asked = kind
        self.number += 1
        told = "final greedy" if kind == "final" and self.stream else kind
        metrics = self.ctx.metrics
        actions = self.ctx.counts.get("actions", 0) + self.actions
        after = self.versions[0] if self.lockstep and kind == "act" and not self.t else NOTHING
        about = np.array([self.ctx.index, self.life, self.number, KINDS.index(told), actions, after], np.int64)
        metrics.enter("inference")
        self.questions.put({**{name: obs[name] for name in self.leaves}, "first": first, ABOUT: about})
        metrics.enter("unroll")

    def state_dict(self) -> State:
        """Where the runtime is exact, all of it; elsewhere new episodes begin."""
        if not isinstance(self.env, RecordedEnvs):
            return {}
        return {
            "env": self.env.state_dict(), "first": self.first, "life": self.life, "server": self.server,
            "asked": self.asked, "number": self.number, "t": self.t, "valid": self.valid, "versions": self.versions,
            "truncated": self.truncated, "actions": self.actions,
            "unroll": self._unroll if self._slot is not None else None,
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Where environments begin anew, whatever is answered to the earlier life's question makes it ask its own."""
        if not isinstance(self.env, RecordedEnvs):
            return
        self.env.load_state_dict(state["env"])
        self.obs, self.first = self.env.obs, state["first"]
        self.life, self.server, self.number = state["life"], state["server"], state["number"]
        self.asked, self.t, self.valid = state["asked"], state["t"], state["valid"]
        self.versions, self.truncated = tuple(state["versions"]), state["truncated"]
        self.actions = state["actions"]
        if state["unroll"] is not None:
            self._open()
            for name, array in self._unroll.items():
                array[...] = state["unroll"][name]
