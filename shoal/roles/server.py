"""A parameter server: replicas that each own a part of the parameters, and learners that send it gradients."""

from __future__ import annotations

import logging
from typing import Protocol

import torch

from shoal.api import (
    PART,
    Arrays,
    Batch,
    Context,
    Diverged,
    ParamsWriter,
    PartsReader,
    PartsWriter,
    Reader,
    State,
    Stateful,
    Tensors,
    Update,
)
from shoal.roles.divergence import explain
from shoal.words import counted

log = logging.getLogger("shoal.roles")

OFFER = 0  # version of a message that is no gradient but the first parameters


class Shard(Protocol):
    """What a server's replica owns; see ``learning.parameter_server.Shard``."""

    def params(self) -> Tensors: ...
    def offer(self, part: torch.Tensor) -> None: ...
    def descend(self, gradient: torch.Tensor, steps: int, into: torch.Tensor) -> float: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class RemoteLearner(Protocol):
    """What makes gradients; see ``learning.parameter_server.RemoteLearner``."""

    total: torch.Tensor
    weights: torch.Tensor

    @property
    def empty(self) -> bool: ...
    def params(self) -> Tensors: ...
    def loaded(self, steps: int) -> None: ...
    def add(self, batch: Batch) -> Update: ...
    def reset(self) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class ServerRole:
    """One step receives one gradient, applies or drops it, and publishes the shard's parameters. It does not wait for
    other processes.

    Version ``v`` of the part is that after ``v - 1`` steps. A gradient made with a version that was moved more than
    ``max_lag`` times since is dropped (None: never). What replaces a killed replica goes on from its checkpoint or,
    before the first, with the part that was published last and an optimiser that begins anew; it says what is lost.

    pieces: 1 for the above. With more, so many gradients made with the newest version are averaged into one step, and
    any other is dropped: synchronous batches in pieces, of which a fast learner makes more than a slow one.
    """

    def __init__(
        self, ctx: Context, shard: Shard, gradients: Reader, params: ParamsWriter, max_lag: int | None = None,
        pieces: int = 1,
    ) -> None:  # fmt: skip
        self.ctx, self.shard, self.gradients, self.params = ctx, shard, gradients, params
        self.max_lag, self.pieces = max_lag if pieces == 1 else 0, pieces
        self._sum: torch.Tensor | None = None  # of the pieces that are there
        self._count = 0

    def start(self) -> None:
        if self.params.version:  # an earlier life has published, and was never saved
            (part,) = published(self.params).values()
            self.shard.offer(part)
            told = "%s[%d] goes on with the parameters it published last, after %s; its optimiser begins anew"
            log.warning(told, self.ctx.role, self.ctx.index, counted(self.params.version - 1, "update"))

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("batch")
        batch = self.gradients.get()
        (part,), (made_with,) = batch.items.values(), batch.versions
        metrics.count("bytes", part.nbytes)
        if made_with == OFFER:
            if not self.params.version:
                self.shard.offer(part)
                self.params.publish(self.shard.params())
                self._moved()
            return
        version = self.params.version
        lag = max(0, version - made_with)
        metrics.tally("gradient_lag", (lag,))
        stale = self.max_lag is not None and lag > self.max_lag
        metrics.record("stale_gradients", float(stale))
        if stale:
            return
        metrics.enter("learn")
        if self.pieces > 1:
            self._sum = part.clone() if self._sum is None else self._sum.add_(part)
            self._count += 1
            if self._count < self.pieces:
                return
            part, self._sum, self._count = self._sum.div_(self.pieces), None, 0
        with self.params.slot() as new:
            metrics.record("learning_rate", self.shard.descend(part, version - 1, new[PART]))
        self._moved()
        if self.ctx.index == 0:
            metrics.count("updates")

    def _moved(self) -> None:
        """Called when a version of the part has been published: the place to follow it."""

    def state_dict(self) -> State:
        pieces = {"sum": self._sum, "count": self._count}
        return {"shard": self.shard.state_dict(), "version": self.params.version, **pieces}

    def load_state_dict(self, state: State) -> None:
        if not state["version"]:  # saved before it had parameters
            self.start()
            return
        self.shard.load_state_dict(state["shard"])
        self._sum, self._count = state["sum"], state["count"]
        if (lost := self.params.version - state["version"]) > 0:
            told = "%s[%d] goes on from its checkpoint after %s: the %d since are lost in its part of the parameters"
            log.warning(told, self.ctx.role, self.ctx.index, counted(state["version"] - 1, "update"), lost)
            self.ctx.metrics.record("lost_updates", lost)
            self._sum, self._count = None, 0


class GradientRole:
    """One step = one batch. The parameters are fetched for every ``fetch_every``-th batch, and the sum of gradients is
    sent after every ``push_every``-th (Dean et al. 2012, algorithm 7.1), with the versions of the parts that the oldest
    of them was made with. Where the server has no room for it, the next step waits, and does nothing else: so that the
    role is between two steps, and can be saved, wherever it waits.
    """

    def __init__(
        self, ctx: Context, learner: RemoteLearner, batches: Reader, params: PartsReader, gradients: PartsWriter,
        fetch_every: int = 1, push_every: int = 1,
    ) -> None:  # fmt: skip
        self.ctx, self.learner, self.batches, self.params, self.gradients = ctx, learner, batches, params, gradients
        self.fetch_every, self.push_every = fetch_every, push_every
        self.steps, self.version, self.full = 0, 0, False  # batches; version of the parameters; the sum is to be sent
        self.fetched: tuple[int, ...] = ()  # versions of the parts that it has
        self.made_with: tuple[int, ...] = ()  # of those that the sum was begun with
        self._message: Arrays = {"gradient": learner.total.numpy()}

    def start(self) -> None:
        if self.ctx.index == 0:
            self.gradients.put({"gradient": self.learner.weights.numpy()}, [OFFER] * len(self.params.versions))

    def step(self) -> None:
        metrics = self.ctx.metrics
        if self.full:
            self._push()
            return
        metrics.enter("batch")
        batch = self.batches.get()
        if batch.size:
            metrics.record("replay_size", batch.size)
        if self.steps % self.fetch_every == 0:
            metrics.enter("params")
            self._fetch()
        metrics.enter("learn")
        if self.learner.empty:
            self.made_with = self.fetched
        update = self._add(batch)
        metrics.record_all(update.metrics)
        if update.priorities is not None and batch.keys is not None:
            metrics.enter("priorities")
            self.batches.reprioritise(batch.keys, update.priorities)
        self.steps += 1
        self.full = self.steps % self.push_every == 0 and not self.learner.empty
        if self.full and self.gradients.ready():
            self._push()

    def _push(self) -> None:
        self.ctx.metrics.enter("publish")
        self.gradients.put(self._message, self.made_with)
        self.learner.reset()
        self.full = False

    def _fetch(self) -> None:
        weights = self.learner.weights
        if (version := self.params.fetch(weights, newer_than=self.version)) is not None:
            self.version, self.fetched = version, self.params.versions
            self.learner.loaded(version - 1)
            self.ctx.metrics.count("bytes", weights.nbytes)

    def _add(self, batch: Batch) -> Update:
        try:
            return self.learner.add(batch)
        except Diverged as error:
            explain(error, self.ctx, self.version - 1, batch.items, self.learner.params())
            raise

    def state_dict(self) -> State:
        return {
            "learner": self.learner.state_dict(), "steps": self.steps, "version": self.version,
            "fetched": self.fetched, "made_with": self.made_with, "full": self.full,
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.learner.load_state_dict(state["learner"])
        self.steps, self.version = state["steps"], state["version"]
        self.fetched, self.made_with = tuple(state["fetched"]), tuple(state["made_with"])
        self.full = state["full"]
        if not self.version:  # saved before the server had parameters
            self.start()


def published(params: ParamsWriter) -> Tensors:
    """Return the parameters published last, by this process or by the one that it replaces."""
    assert isinstance(params, Stateful)
    tensors: Tensors = params.state_dict()["tensors"]
    return tensors
