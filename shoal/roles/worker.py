"""An asynchronous worker: it copies parameters that all share, takes a few steps, and adds what it learned of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from shoal.api import Context, ParamsReader, SharedParams, Tensors, Update
from shoal.roles.collector import Collector, OwnParams


class GradientLearner(Protocol):
    """What a worker learns with; see ``algos.segments.SegmentLearner``."""

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

    def start(self) -> None:
        if self.ctx.index == 0:
            self.shared.offer(self.learner.params())

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("params")
        before, self._copied = self.shared.copy()
        self.learner.load(self._copied)
        self.own.version += 1  # the copy is another, whatever its number
        self.collector.advance(self.collector.steps)
        items = self.collector.take()
        metrics.enter("learn")
        rate = self.learning_rate(self.ctx.steps())
        gradient, update = self.learner.gradient(items)
        for name, value in update.metrics.items():
            metrics.record(name, float(value))
        if gradient is not None:
            metrics.enter("publish")
            after = self.shared.add(gradient, rate)
            metrics.record("learning_rate", rate)
            metrics.tally("update_lag", (after - before - 1,))
        metrics.count("updates")

    def close(self) -> None:
        self.collector.close()

    def state_dict(self) -> dict[str, Any]:
        return {"collector": self.collector.state_dict(), "version": self.own.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.collector.load_state_dict(state["collector"])
        self.own.version = state["version"]
