"""The learner: one batch in, one update, new parameters out."""

from __future__ import annotations

from shoal.api import Batch, Context, Diverged, Learner, ParamsWriter, Reader, Update
from shoal.roles.divergence import explain
from shoal.types import State

MAX_TRACKED_VERSIONS = 1_024  # versions; an older one counts as if it were the oldest of them


class LearnerRole:
    """Learns. One step of the role is one get, one ``Learner.update`` and one publish.

    params: None for one of several learners, of which another publishes.
    """

    def __init__(self, ctx: Context, learner: Learner, batches: Reader, params: ParamsWriter | None) -> None:
        self.ctx, self.learner, self.batches, self.params = ctx, learner, batches, params
        self.version = 0
        # version -> gradient steps before it, of the newest ``MAX_TRACKED_VERSIONS``
        self._published: dict[int, int] = {}
        if (step := getattr(learner, "gradient_step", None)) is not None:
            step.beat = lambda: ctx.metrics.enter("learn")  # a sign of life with every minibatch

    def start(self) -> None:
        self._publish()

    def step(self) -> None:
        batch = self._receive()
        self.ctx.metrics.enter("learn")
        try:
            update = self.learner.update(batch)
        except Diverged as error:
            explain(error, self.ctx, self.learner.step, batch.items, self.learner.params())
            raise
        if update.priorities is not None and batch.keys is not None:
            self.ctx.metrics.enter("priorities")
            self.batches.reprioritise(batch.keys, update.priorities)
        self._finish(update)

    def _receive(self) -> Batch:
        """The next batch; how old the parameters are that it was made with."""
        metrics = self.ctx.metrics
        metrics.enter("batch")
        batch = self.batches.get()
        if versions := [version for version in batch.versions if version]:
            oldest = next(iter(self._published.values()))
            metrics.tally("policy_lag", [self.learner.step - self._published.get(v, oldest) for v in versions])
        if batch.size:
            metrics.record("replay_size", batch.size)
        return batch

    def _finish(self, update: Update) -> None:
        """Tell of an update, and publish what it made."""
        metrics = self.ctx.metrics
        if self.params is not None:
            metrics.record_all(update.metrics)
            metrics.enter("publish")
            metrics.count("updates")
        self._publish()

    def _publish(self) -> None:
        self.version = self.version + 1 if self.params is None else self.params.publish(self.learner.params())
        self._published[self.version] = self.learner.step
        if len(self._published) > MAX_TRACKED_VERSIONS:
            del self._published[next(iter(self._published))]

    def state_dict(self) -> State:
        return {"learner": self.learner.state_dict(), "version": self.version, "published": dict(self._published)}

    def load_state_dict(self, state: State) -> None:
        self.learner.load_state_dict(state["learner"])
        self.version = state["version"]
        self._published = dict(state.get("published", {self.version: self.learner.step}))
