"""A rank: it collects with its own environments, and learns in step with its siblings. There is no server.

Wijmans et al. 2020 (DD-PPO), section 3: rollouts are synchronous, but a rank that lags behind the others is preempted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from shoal.api import (
    Arrays,
    Board,
    Context,
    Diverged,
    ParamsReader,
    ParamsWriter,
    Reducer,
    Tensors,
    Update,
)
from shoal.roles.collector import Collector, OwnParams
from shoal.roles.divergence import explain
from shoal.roles.publication import Publication
from shoal.types import State

ROLLOUT_SLICES = 32  # parts of a rollout, between which a rank looks whether the others have finished theirs
PROGRESS = "rollouts"  # the field of the board: rollouts that a rank has finished


class SynchronousLearner(Protocol):
    """What a rank learns with; see ``systems.dd_ppo.RankLearner``."""

    def moments(self, items: Tensors) -> Arrays: ...
    def begin(self, sums: Tensors) -> int: ...
    def gradient(self, out: Arrays) -> None: ...
    def descend(self, means: Tensors) -> bool: ...
    def report(self) -> Update: ...
    def params(self) -> Tensors: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class RankRole:
    """One step is a part of a rollout, or the get of a reduced item and the put of the next.

    sync_frac, min_fraction: a rank that has at least ``min_fraction`` of its rollout ends it as soon as ``sync_frac``
    of all ranks have ended theirs. progress: the board of rollouts ended; they are only counted up, and compared with
    one's own, so that nothing has to be set back. params: of rank 0 only; initial: where all get its first parameters.
    """

    def __init__(
        self, ctx: Context, actor: Callable[[ParamsReader], Collector], learner: SynchronousLearner, *,
        moments: Reducer, gradients: Reducer, progress: Board, params: ParamsWriter | None, initial: ParamsReader,
        sync_frac: float, min_fraction: float, load: Callable[[Tensors], None],
    ) -> None:  # fmt: skip
        self.ctx, self.learner, self.load = ctx, learner, load
        self.moments, self.gradients, self.progress = moments, gradients, progress
        self.publication = None if params is None else Publication(params, late=False)
        self.initial = initial
        self.sync_frac, self.min_fraction = sync_frac, min_fraction
        self.own = OwnParams(learner.params)
        self.collector = actor(self.own)
        self.slice = -(-self.collector.steps // ROLLOUT_SLICES)
        self.rollouts = 0  # ended
        self.begun = False  # it has the parameters that all begin with
        self._rollout: Tensors = {}  # that it learns from

    def start(self) -> None:
        if self.publication is not None:
            self.publication.begin(self.learner.params())

    def step(self) -> None:
        metrics = self.ctx.metrics
        if not self.begun:
            self._synchronise()
        if self.moments.pending:
            metrics.enter("learn")
            self.learner.begin(self.moments.get())
            self._put_gradient()
        elif self.gradients.pending:
            metrics.enter("learn")
            if self._descend():
                self._finish()
            else:
                self._put_gradient()
        else:
            self.collector.advance(self.slice)
            if self._ended():
                self._learn()

    def close(self) -> None:
        self.collector.close()

    def state_dict(self) -> State:
        return {
            "collector": self.collector.state_dict(),
            "learner": self.learner.state_dict(),
            "rollouts": self.rollouts,
            "begun": self.begun,
            "version": self.own.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.learner.load_state_dict(state["learner"])
        self.own.version, self.rollouts, self.begun = state["version"], state["rollouts"], state["begun"]
        self.collector.load_state_dict(state["collector"])

    def _synchronise(self) -> None:
        """Load the parameters of rank 0 on all ranks."""
        found = self.initial.latest()
        if found is not None:
            self.load(found[1])
        self.begun = True

    def _ended(self) -> bool:
        """Return True if this rank's rollout ends here: it is complete, or enough other ranks have ended theirs."""
        taken, steps = self.collector.taken, self.collector.steps
        if taken == steps:
            return True
        if taken < self.min_fraction * steps:
            return False
        ended = int(np.count_nonzero(self.progress.get().values[PROGRESS] > self.rollouts))
        return ended >= self.sync_frac * self.ctx.replicas

    def _learn(self) -> None:
        """Count this rollout on the board, and put its sums into the reduction."""
        metrics = self.ctx.metrics
        metrics.record("rollout_fraction", self.collector.taken / self.collector.steps)
        self.rollouts += 1
        self.progress.put({PROGRESS: np.array(self.rollouts)})
        self._rollout = self.collector.take()
        metrics.enter("learn")
        self.moments.put(self.learner.moments(self._rollout))

    def _descend(self) -> bool:
        """Apply the ranks' mean gradient; return True if the update is complete."""
        try:
            return self.learner.descend(self.gradients.get())
        except Diverged as error:
            explain(error, self.ctx, self.own.version, self._rollout, self.learner.params())
            raise

    def _put_gradient(self) -> None:
        with self.gradients.slot() as slot:
            self.learner.gradient(slot)

    def _finish(self) -> None:
        metrics = self.ctx.metrics
        self.own.version += 1
        if self.publication is None:
            return
        metrics.record_all(self.learner.report().metrics)
        metrics.enter("publish")
        self.publication.begin(self.learner.params())
        metrics.count("updates")
