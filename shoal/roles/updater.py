"""Labels between a replay and a learner: roles that make them, and a learner that publishes what they are made with."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from shoal.api import (
    Arrays,
    Batch,
    Context,
    Learner,
    ParamsReader,
    ParamsWriter,
    Reader,
    Tensors,
    Update,
    Writer,
)
from shoal.roles.learner import LearnerRole
from shoal.roles.publication import Publication
from shoal.roles.server import GradientRole, ServerRole, Shard, published
from shoal.types import State


class Labeller(Protocol):
    """What makes labels; see ``systems.qt_opt.rule.Bellman``."""

    def load(self, first: Tensors | None, second: Tensors | None) -> None:
        """Take the newest parameters of the two target networks; None: they are no others."""

    def label(self, batch: Batch, step: int) -> tuple[Arrays, dict[str, float]]:
        """A labelled batch, made with parameters of so many gradient steps (which it says as ``step``), and metrics."""

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class UpdaterRole:
    """One step = one batch of transitions labelled. Where there is no room for it, the next step waits, and does
    nothing else: so that the role is between two steps, and can be saved, wherever it waits."""

    def __init__(
        self, ctx: Context, labeller: Labeller, transitions: Reader, labelled: Writer, params: ParamsReader,
        lagged: ParamsReader,
    ) -> None:  # fmt: skip
        self.ctx, self.labeller, self.transitions, self.labelled = ctx, labeller, transitions, labelled
        self.params, self.lagged = params, lagged
        self.versions = [-1, -1]  # of the two target networks
        self.held: Arrays | None = None  # labelled, and not yet sent

    def step(self) -> None:
        metrics = self.ctx.metrics
        if self.held is None:
            metrics.enter("batch")
            batch = self.transitions.get()
            if batch.size:
                metrics.record("replay_size", batch.size)
            metrics.enter("params")
            self.labeller.load(self._newest(0, self.params), self._newest(1, self.lagged))
            metrics.enter("label")
            self.held, found = self.labeller.label(batch, self.versions[0] - 1)
            metrics.record_all(found)
            if not self.labelled.ready():
                return
        metrics.enter("publish")
        self.labelled.put(self.held)
        self.held = None

    def _newest(self, which: int, reader: ParamsReader) -> Tensors | None:
        if (new := reader.latest(newer_than=self.versions[which])) is None:
            return None
        self.versions[which], params = new
        return params

    def state_dict(self) -> State:
        return {"labeller": self.labeller.state_dict(), "versions": self.versions, "held": self.held}

    def load_state_dict(self, state: State) -> None:
        self.labeller.load_state_dict(state["labeller"])
        self.held = state["held"]
        if self.ctx.exact:  # elsewhere the newest parameters are others than those of the state
            self.versions = list(state["versions"])


class LaggingLearner(Learner, Protocol):
    """A learner with a second set of parameters to publish."""

    def lagged(self) -> Tensors | None:
        """None: those of the update before."""


class LabelledLearnerRole(LearnerRole):
    """Learns from labelled transitions; it also publishes the second target network, and tells how old labels are."""

    learner: LaggingLearner

    def __init__(
        self, ctx: Context, learner: LaggingLearner, labelled: Reader, params: ParamsWriter, lagged: ParamsWriter
    ) -> None:
        super().__init__(ctx, learner, labelled, params)
        self.lagged = Publication(lagged, late=self._pipelined)
        self._labelled_at: list[int] = []  # gradient steps before the labels of the batch that came last

    def _get(self) -> Batch:
        batch = super()._get()
        self._labelled_at = batch.items.pop("step").tolist()
        return batch

    def _tell(self, batch: Batch) -> None:
        super()._tell(batch)
        self.ctx.metrics.tally("label_age", [self.learner.step - at for at in self._labelled_at])

    def _publish(self) -> None:
        super()._publish()
        if (tensors := self.learner.lagged()) is not None:
            self.lagged.begin(tensors)

    def _flush(self) -> None:
        super()._flush()
        self.lagged.flush()


class LabelledGradientRole(GradientRole):
    """One of several learners from labelled transitions, which tells how old labels are."""

    def _add(self, batch: Batch) -> Update:
        seen = self.version - 1  # updates of its parameters; an older copy than the label's is no negative age
        self.ctx.metrics.tally("label_age", (seen - batch.items.pop("step")).clamp(min=0).tolist())
        return super()._add(batch)


class FollowingTargets(Protocol):
    """A server's part of the two target networks; see ``systems.qt_opt.rule.Averages``."""

    tensors: Tensors
    kept: deque[Tensors]

    def follow(self, newest: Tensors, step: int) -> None: ...
    def begin(self, average: Tensors, kept: Iterable[Tensors]) -> None: ...
    def lagged(self, step: int) -> Tensors | None: ...


class TargetServerRole(ServerRole):
    """A server that also keeps its part of both target networks, and publishes it beside that of the parameters: the
    first with the same version, so that it tells the updates that a label's parameters have seen."""

    def __init__(
        self, ctx: Context, shard: Shard, gradients: Reader, params: ParamsWriter, max_lag: int | None, pieces: int,
        *, targets: Callable[[Tensors], FollowingTargets], average: ParamsWriter, lagged: ParamsWriter,
    ) -> None:  # fmt: skip
        super().__init__(ctx, shard, gradients, params, max_lag, pieces)
        self.targets = targets(_copies(shard.params()))
        self.average, self.lagged = average, lagged

    def start(self) -> None:
        super().start()
        if self.params.version:  # what an earlier life has published, as far as it had come
            first = _copies(published(self.average) if self.average.version else self.shard.params())
            self.targets.begin(first, [_copies(published(self.lagged)) if self.lagged.version else first])
            self._catch_up()

    def _moved(self) -> None:
        newest, step = self.shard.params(), self.params.version - 1
        if step:
            self.targets.follow(newest, step)
        else:
            self.targets.begin(newest, [_copies(newest)])
        self.average.publish(self.targets.tensors)
        if (lagged := self.targets.lagged(step)) is not None:
            self.lagged.publish(lagged)

    def _catch_up(self) -> None:
        """Publish what an earlier life, which ended between two channels, has not."""
        while self.average.version < self.params.version:
            self.average.publish(self.targets.tensors)
        if not self.lagged.version:
            self.lagged.publish(self.targets.kept[0])

    def state_dict(self) -> State:
        return {**super().state_dict(), "average": _copies(self.targets.tensors), "kept": list(self.targets.kept)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if state["version"]:
            self.targets.begin(state["average"], state["kept"])
            if self.params.version:
                self._catch_up()


def _copies(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}
