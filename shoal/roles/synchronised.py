"""One of several learners that stay equal: one batch in, its gradient out; the mean of all in, a step along it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from shoal.api import Arrays, Batch, Context, Diverged, ParamsReader, ParamsWriter, Reader, Reducer, Tensors, Update
from shoal.roles.divergence import explain
from shoal.roles.learner import LearnerRole
from shoal.types import State


class Synchronised(Protocol):
    """What such a role learns with; see ``learning.synchronised_learner.SynchronisedLearner``."""

    step: int

    def update(self, batch: Batch) -> Update: ...
    def begin(self, batch: Batch) -> None: ...
    def gradient(self, out: Arrays) -> None: ...
    def descend(self, means: Tensors) -> Update | None: ...
    def params(self) -> Tensors: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class SynchronisedRole(LearnerRole):
    """One step of the role gets a batch and puts its gradient, or gets the mean and steps along it.

    params: of learner 0 only; initial: where all get its first parameters, to ``load``.
    """

    learner: Synchronised

    def __init__(
        self, ctx: Context, learner: Synchronised, batches: Reader, params: ParamsWriter | None, *, gradients: Reducer,
        initial: ParamsReader, load: Callable[[Tensors], Any],
    ) -> None:  # fmt: skip
        super().__init__(ctx, learner, batches, params)
        self.gradients, self.initial, self.load = gradients, initial, load
        self.begun = False  # it has the parameters that all begin with
        self._batch: Tensors = {}  # that it learns from

    def step(self) -> None:
        metrics = self.ctx.metrics
        if not self.begun:
            if (found := self.initial.latest()) is not None:
                self.load(found[1])
            self.begun = True
        if not self.gradients.pending:
            batch = self._receive()
            metrics.enter("learn")
            self._batch = batch.items
            self.learner.begin(batch)
            self._put()
            return
        metrics.enter("learn")
        try:
            update = self.learner.descend(self.gradients.get())
        except Diverged as error:
            explain(error, self.ctx, self.learner.step, self._batch, self.learner.params())
            raise
        if update is None:
            self._put()
        else:
            self._finish(update)

    def _put(self) -> None:
        with self.gradients.slot() as slot:
            self.learner.gradient(slot)

    def state_dict(self) -> State:
        return {**super().state_dict(), "begun": self.begun}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.begun = state["begun"]
