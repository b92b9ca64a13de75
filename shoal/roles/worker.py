"""An asynchronous worker: it copies parameters that all share, takes a few steps, and adds what it learned of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from shoal.api import Context, Diverged, Field, ParamsReader, SharedParams, Spec, Stateful, Tensors, Update
from shoal.roles.collector import Collector, OwnParams
from shoal.roles.divergence import explain
from shoal.types import State


class GradientLearner(Protocol):
    """What a worker learns with; see ``learning.segment_learner.SegmentLearner``."""

    def params(self) -> Tensors: ...
    def load(self, params: Tensors) -> None: ...
    def gradient(self, items: Tensors) -> tuple[Tensors | None, Update]: ...


class WorkerRole:
    """One step = one copy, one segment, one addition. Nobody waits for anybody (Mnih et al. 2016, algorithm S3).

    learning_rate: as a function of the environment steps that all workers have taken.
    """

    def __init__(
        self, ctx: Context, actor: Callable[[ParamsReader], Collector], learner: GradientLearner,
        learning_rate: Callable[[int], float], params: SharedParams,
    ) -> None:  # fmt: skip
        self.ctx, self.learner, self.learning_rate, self.shared = ctx, learner, learning_rate, params
        self.own = OwnParams(lambda: self._copied)
        self._copied: Tensors = {}
        self.collector = actor(self.own)
        self._adopt: Callable[[Tensors], None] = getattr(self.collector.agent, "adopt", lambda params: None)

    def start(self) -> None:
        if self.ctx.index == 0:
            self.shared.offer(self.learner.params())

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("params")
        before, self._copied = self.shared.copy()
        self.learner.load(self._copied)
        self._adopt(self._copied)  # one copy is enough for both, as neither changes it
        self.own.version += 1  # the copy is another, whatever its number
        self.collector.advance(self.collector.steps)
        items = self.collector.take()
        metrics.enter("learn")
        rate = self.learning_rate(self.ctx.steps())
        try:
            gradient, update = self.learner.gradient(items)
        except Diverged as error:
            explain(error, self.ctx, before, items, self._copied)
            raise
        metrics.record_all(update.metrics)
        if gradient is not None:
            metrics.enter("publish")
            after = self.shared.add(gradient, rate)
            metrics.record("learning_rate", rate)
            metrics.tally("update_lag", (after - before - 1,))
        metrics.count("updates")

    def close(self) -> None:
        self.collector.close()

    def state_dict(self) -> State:
        learner = self.learner.state_dict() if isinstance(self.learner, Stateful) else {}
        return {"collector": self.collector.state_dict(), "version": self.own.version, "learner": learner}

    def load_state_dict(self, state: State) -> None:
        self.collector.load_state_dict(state["collector"])
        self.own.version = state["version"]
        if isinstance(self.learner, Stateful):
            self.learner.load_state_dict(state["learner"])


TAKEN = "steps"  # field of a target network's channel: the environment steps of all workers at which it was copied


def target_spec(params: Spec) -> Spec:
    """The fields of a channel that shares a target network of these parameters."""
    return {**params, TAKEN: Field((), "int64", 0)}


class TargetLearner(GradientLearner, Protocol):
    """Learns with a target network as well; see ``systems.async_q.SegmentQLearner``."""

    def load_target(self, params: Tensors) -> None: ...


class TargetWorkerRole(WorkerRole):
    """A worker whose learner has a target network, one for all workers: whoever first finds that they have taken
    ``period`` more environment steps together copies the parameters into it (Mnih et al. 2016, algorithm 1).

    target: a channel of ``target_spec`` with the rule ``ops.Replace``.
    """

    learner: TargetLearner

    def __init__(
        self, ctx: Context, actor: Callable[[ParamsReader], Collector], learner: TargetLearner,
        learning_rate: Callable[[int], float], params: SharedParams, target: SharedParams, period: int,
    ) -> None:  # fmt: skip
        super().__init__(ctx, actor, learner, learning_rate, params)
        self.target, self.period = target, period
        self._loaded = -1  # in which period the target network was read

    def start(self) -> None:
        super().start()
        if self.ctx.index == 0:
            self.target.offer({**self.learner.params(), TAKEN: torch.tensor(0)})

    def step(self) -> None:
        self.ctx.metrics.enter("params")
        taken = self.ctx.steps()
        if taken // self.period != self._loaded:
            self._loaded = taken // self.period
            self._renew(taken)
        super().step()

    def _renew(self, taken: int) -> None:
        """Read the target network; copy the parameters into it before, if nobody has in this period."""
        _, held = self.target.copy()
        if int(held[TAKEN]) // self.period < self._loaded:  # one of a later period stays, if this worker was held up
            _, params = self.shared.copy()
            held = {**params, TAKEN: torch.tensor(taken)}
            self.target.add(held, 0.0)
        self.learner.load_target({name: tensor for name, tensor in held.items() if name != TAKEN})
