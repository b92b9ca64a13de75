"""The actor: steps ``E`` environments with the latest parameters and sends unrolls of ``T`` steps.

Two layouts, both ``[T, E, ...]``. A *trajectory* is self-contained (observations ``T + 1``, the recurrent
state before the first), for on-policy learners. A *stream* is continued by the actor's next unroll, and
carries only the newest frame of a stack, for replay tables.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.api import (
    Act,
    Agent,
    Arrays,
    Context,
    EnvBatch,
    EnvSpec,
    EnvStep,
    Field,
    ParamsReader,
    Spec,
    Stateful,
    Tensors,
    Writer,
)
from shoal.roles.recorded_envs import RecordedEnvs
from shoal.types import State


def unroll_spec(
    env: EnvSpec,
    steps: int,
    envs: int,
    extras: Mapping[str, tuple[tuple[int, ...], str]],
    state: Mapping[str, tuple[int, ...]] | None = None,
    stream: bool = False,
) -> Spec:
    """Return the fields of an actor's message.

    extras: name -> (shape, dtype) of what the agent stores beside each action (a ``value`` also for the last
    observation of a trajectory); state: name -> shape of one environment's recurrent state, which a trajectory has
    before its first step and a stream before every step.
    """
    spec: dict[str, Field] = {}
    rows = steps if stream else steps + 1
    for name, leaf in env.observations.items():
        shape = (1, *leaf.shape[1:]) if stream and name == "obs" and env.stack > 1 else leaf.shape
        spec[name] = Field((rows, envs, *shape), leaf.dtype)
        if stream and env.autoreset == "same_step":
            spec[f"final/{name}"] = Field((steps, envs, *shape), leaf.dtype)
    spec["first"] = Field((rows, envs), "bool")
    spec["action"] = Field((steps, envs, *env.action.shape), env.action.dtype)
    spec["reward"] = Field((steps, envs))
    for name in ("terminated", "truncated", "valid"):
        spec[name] = Field((steps, envs), "bool")
    for name, (shape, dtype) in extras.items():
        spec[name] = Field((rows if name == "value" else steps, envs, *shape), dtype)
    for name, shape in (state or {}).items():
        spec[f"state/{name}"] = Field((steps, envs, *shape)) if stream else Field((envs, *shape), axis=0)
    if env.autoreset == "same_step" and (not stream or "q_max" in extras):
        spec["final/q_max" if stream else "final_value"] = Field((steps, envs))
    return spec


class Unrolls:
    """Environments and the code that writes their unrolls of ``spec``, for actors with and without their own
    network."""

    def __init__(self, ctx: Context, env: EnvBatch, spec: Spec) -> None:
        self.ctx = ctx
        self.env: EnvBatch = RecordedEnvs(env) if ctx.exact else env
        self.steps = spec["reward"].shape[0]
        self.stream = spec["first"].shape[0] == self.steps  # a trajectory has one more
        self.newest_only = self.stream and env.spec.stack > 1
        self.leaves = list(env.spec.observations)
        self.same_step = env.spec.autoreset == "same_step"
        self.stored = stored(spec, env.spec)
        self.states = [k for k in spec if k.startswith("state/")] if self.stream else []
        self.obs: Arrays = self.env.reset(ctx.seed)
        self.first = np.ones(env.num_envs, bool)
        self.state: Tensors = {}

    def close(self) -> None:
        self.env.close()

    def _begin(self, unroll: Arrays) -> None:
        """The recurrent state before a trajectory."""
        for name, value in self.state.items():
            unroll[f"state/{name}"][...] = value.numpy()

    def _before(self, unroll: Arrays, t: int) -> None:
        """Store the observations and state of row ``t``, before its actions are chosen."""
        self._store_observation(unroll, t)
        for name in self.states:
            unroll[name][t] = self.state[name.removeprefix("state/")].numpy()

    def _after(self, unroll: Arrays, t: int, act: Act) -> EnvStep:
        """Store the actions of row ``t``, and step every environment."""
        metrics = self.ctx.metrics
        unroll["action"][t] = act.action
        metrics.enter("env")
        step = self.env.step(act.action)
        metrics.enter("unroll")
        for name in self.stored:
            unroll[name][t] = act.extras[name]
        unroll["reward"][t] = step.reward
        unroll["terminated"][t] = step.terminated
        unroll["truncated"][t] = step.truncated
        unroll["valid"][t] = step.valid
        self.obs, self.state = step.obs, act.state
        self.first = step.terminated | step.truncated if self.same_step else ~step.valid
        for episode in step.episodes:
            metrics.episode(*episode)
        return step

    def _store_observation(self, unroll: Arrays, t: int) -> None:
        for name in self.leaves:
            obs = self.obs[name]
            unroll[name][t] = obs[:, -1:] if self.newest_only and name == "obs" else obs
        unroll["first"][t] = self.first

    def _store_final(self, unroll: Arrays, t: int, step: EnvStep) -> bool:
        """Store the true last observations of row ``t``, if environments reset within the step; return True if their
        values are missing."""
        if not self.same_step:
            return False
        if self.stream and (step.terminated | step.truncated).any():
            assert step.final_obs is not None
            for name in self.leaves:
                obs = step.final_obs[name]
                unroll[f"final/{name}"][t] = obs[:, -1:] if self.newest_only and name == "obs" else obs
        where, _ = self._final_value()
        if where not in unroll:
            return False
        unroll[where][t] = 0.0
        return bool(step.truncated.any())

    def _store_final_value(self, unroll: Arrays, t: int, truncated: np.ndarray, extras: Arrays) -> None:
        where, value = self._final_value()
        unroll[where][t] = np.where(truncated, extras[value], 0.0)

    def _final_value(self) -> tuple[str, str]:
        """The field of an unroll that holds the values of last observations, and what an agent calls such a value."""
        return ("final/q_max", "q_max") if self.stream else ("final_value", "value")


class ActorRole(Unrolls):
    """Role that collects experience. One step of the role is one unroll and one ``put``.

    With ``same_step`` autoreset a trajectory cannot hold an episode's true last observation, so the actor
    stores the value its own network gives it (``final_value``) where an episode was truncated; in a stream, which
    holds that observation, the value is for first priorities alone (``final/q_max``).
    """

    def __init__(
        self, ctx: Context, env: EnvBatch, agent: Agent, out: Writer, params: ParamsReader, spec: Spec
    ) -> None:
        super().__init__(ctx, env, spec)
        self.agent, self.out, self.params, self.version = agent, out, params, -1
        self.state = agent.initial_state(env.num_envs)

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("unroll")
        slot = self.out.slot()
        with slot as unroll:
            self._update_params()
            slot.version = self.version
            if not self.stream:
                self._begin(unroll)
            valid = 0
            for t in range(self.steps):
                valid += self._step_envs(unroll, t)
                metrics.making(valid)
            if not self.stream:
                self._end(unroll, self.steps)
            else:  # the learner reports the lag of a trajectory when it learns from it
                metrics.tally("policy_lag", (self.params.newest() - self.version,))
        metrics.making(0)
        metrics.count("env_steps", valid)
        metrics.count("actions", self.steps * self.env.num_envs)

    def state_dict(self) -> State:
        """State of the agent and, where the runtime is exact, of the environments; elsewhere new episodes begin."""
        out: State = {"agent": self.agent.state_dict() if isinstance(self.agent, Stateful) else {}}
        if isinstance(self.env, RecordedEnvs):
            out |= {"env": self.env.state_dict(), "version": self.version, "first": self.first, "state": self.state}
        return out

    def load_state_dict(self, state: State) -> None:
        if isinstance(self.agent, Stateful):
            self.agent.load_state_dict(state["agent"])
        if isinstance(self.env, RecordedEnvs):
            self.env.load_state_dict(state["env"])
            self.obs, self.version = self.env.obs, state["version"]
            self.first, self.state = state["first"], state["state"]

    def _end(self, unroll: Arrays, t: int) -> None:
        """The observation after a trajectory's ``t`` steps, and its value."""
        self._store_observation(unroll, t)
        if "value" in self.stored:
            self.ctx.metrics.enter("inference")
            act = self.agent.act(self.obs, self.first, self.state)
            self.ctx.metrics.enter("unroll")
            unroll["value"][t] = act.extras["value"]

    def _update_params(self) -> None:
        self.ctx.metrics.enter("params")
        if (new := self.params.latest(newer_than=self.version)) is not None:
            self.version, params = new
            self.agent.load(params, self.version)
        self.ctx.metrics.enter("unroll")

    def _step_envs(self, unroll: Arrays, t: int) -> int:
        """Store row ``t`` and step every environment; returns how many of the actions counted."""
        self._before(unroll, t)
        self.ctx.metrics.enter("inference")
        step = self._after(unroll, t, self.agent.act(self.obs, self.first, self.state))
        if self._store_final(unroll, t, step):
            assert step.final_obs is not None
            looks = self.stream  # at the best value; that of an action, which SARSA's is, is chosen as ever
            act = self.agent.act(step.final_obs, np.zeros_like(step.truncated), self.state, greedy=looks)
            self._store_final_value(unroll, t, step.truncated, act.extras)
        return int(np.count_nonzero(step.valid))


def stored(spec: Spec, env: EnvSpec) -> list[str]:
    """Return the fields of an unroll that an agent gives beside its actions."""
    return [k for k in spec if k not in _FILLED and k not in env.observations and "/" not in k]


VERSION = "version"
"""Field of a trajectory that an inference server has acted for, ``[T, groups]``: the version of the parameters that
chose the actions of each step of each group of its environments."""
_FILLED = {"first", "action", "reward", "terminated", "truncated", "valid", "final_value", VERSION}
