"""The learner: one batch in, one update, new parameters out."""

from __future__ import annotations

from typing import Any

from shoal.api import Context, Diverged, Learner, ParamsWriter, Reader


class LearnerRole:
    """Learns. One step of the role is one get, one ``Learner.update`` and one publish."""

    def __init__(self, ctx: Context, learner: Learner, batches: Reader, params: ParamsWriter) -> None:
        self.ctx, self.learner, self.batches, self.params = ctx, learner, batches, params
        self.version = 0

    def start(self) -> None:
        self.version = self.params.publish(self.learner.params())

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("batch")
        batch = self.batches.get()
        if lags := [self.version - version for version in batch.versions if version]:
            metrics.tally("policy_lag", lags)
        if batch.size:
            metrics.record("replay_size", batch.size)
        metrics.enter("learn")
        try:
            update = self.learner.update(batch)
        except Diverged as error:
            error.facts |= {"role": self.ctx.role, "update": self.learner.step}
            error.tensors = {f"batch/{k}": v for k, v in batch.items.items()}
            error.tensors |= {f"params/{k}": v for k, v in self.learner.params().items()}
            raise
        for name, value in update.metrics.items():
            metrics.record(name, float(value))
        if update.priorities is not None and batch.keys is not None:
            metrics.enter("priorities")
            self.batches.reprioritise(batch.keys, update.priorities)
        metrics.enter("publish")
        self.version = self.params.publish(self.learner.params())
        metrics.count("updates")

    def state_dict(self) -> dict[str, Any]:
        return {"learner": self.learner.state_dict(), "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.version = state["version"]
