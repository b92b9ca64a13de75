"""The learner: one batch in, one update, new parameters out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shoal import transfer
from shoal.api import Batch, Context, Diverged, Learner, ParamsWriter, Reader, Update
from shoal.roles.actor import VERSION
from shoal.roles.divergence import explain
from shoal.roles.publication import Publication
from shoal.types import State

MAX_TRACKED_VERSIONS = 1_024  # versions; an older one counts as if it were the oldest of them


class LearnerRole:
    """Role that learns. One step of the role is one ``get``, one ``Learner.update`` and one ``publish``. With
    ``Context.pipelined`` and a learner on a GPU, it fetches the next batch, if there is one, and publishes the
    parameters of the previous update while the GPU computes a gradient.

    params: None for one of several learners, of which another publishes.
    """

    def __init__(self, ctx: Context, learner: Learner, batches: Reader, params: ParamsWriter | None) -> None:
        self.ctx, self.learner, self.batches, self.params = ctx, learner, batches, params
        self.version = 0
        self._between = True  # two steps
        device = torch.device(getattr(learner, "device", "cpu"))
        self._pipelined = ctx.pipelined and transfer.streams(device) is not None
        self.publication = None if params is None else Publication(params, late=self._pipelined)
        self._device, self._ahead = device, None  # the next batch, on its way to the device
        # version -> gradient steps before it, of the newest ``MAX_TRACKED_VERSIONS``
        self._published: dict[int, int] = {}
        if (step := getattr(learner, "gradient_step", None)) is not None:
            step.beat = lambda: ctx.metrics.enter("learn")  # a sign of life with every minibatch
            if self._pipelined:
                step.meanwhile = self._meanwhile

    _ahead: Callable[[], Batch] | None

    def start(self) -> None:
        self._publish()
        self._flush()

    def close(self) -> None:
        if self._between:  # else an update has failed, and perhaps the device
            self._flush()

    def step(self) -> None:
        batch = self._receive()
        self._between = False
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
        self._between = True

    def _receive(self) -> Batch:
        """Return the next batch, and record the age of the parameters it was made with."""
        if self._ahead is not None:
            batch, self._ahead = self._ahead(), None
        elif self._pipelined:
            self._flush()  # somebody may wait for it with the next batch
            batch = transfer.upload(self._get(), self._device)()
        else:
            batch = self._get()
        self._tell(batch)
        return batch

    def _meanwhile(self) -> None:
        """While the device computes: publish the parameters of the previous update, and fetch the next batch."""
        self._flush()
        if self._ahead is None and self.batches.poll():
            self._ahead = transfer.upload(self._get(), self._device)
            self.ctx.metrics.enter("learn")

    def _get(self) -> Batch:
        """Return the next batch. If it has the versions of its steps, record them as metrics and remove them."""
        self.ctx.metrics.enter("batch")
        batch = self.batches.get()
        if VERSION not in batch.items:
            return batch
        items = dict(batch.items)
        return batch._replace(versions=tuple(items.pop(VERSION).flatten().tolist()), items=items)

    def _tell(self, batch: Batch) -> None:
        """Record metrics of a batch before learning from it."""
        metrics = self.ctx.metrics
        if versions := [version for version in batch.versions if version]:
            oldest = next(iter(self._published.values()))
            metrics.tally("policy_lag", [self.learner.step - self._published.get(v, oldest) for v in versions])
        if batch.size:
            metrics.record("replay_size", batch.size)

    def _finish(self, update: Update) -> None:
        """Record metrics of an update, and publish its parameters."""
        metrics = self.ctx.metrics
        if self.params is not None:
            metrics.record_all(update.metrics)
            metrics.enter("publish")
            metrics.count("updates")
        self._publish()

    def _publish(self) -> None:
        self.version = self.version + 1 if self.publication is None else self.publication.begin(self.learner.params())
        self._published[self.version] = self.learner.step
        if len(self._published) > MAX_TRACKED_VERSIONS:
            del self._published[next(iter(self._published))]

    def _flush(self) -> None:
        if self.publication is not None:
            self.publication.flush()

    def state_dict(self) -> State:
        self._flush()
        return {"learner": self.learner.state_dict(), "version": self.version, "published": dict(self._published)}

    def load_state_dict(self, state: State) -> None:
        self.learner.load_state_dict(state["learner"])
        self.version = state["version"]
        self._published = dict(state.get("published", {self.version: self.learner.step}))
