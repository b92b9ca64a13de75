"""Roles between a reader and a writer that may have no room: replay, labels, gradients, servers, shards."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from fakes import CountingLearner, Params, Reader, Reducers, Writer, context

from shoal.api import PART, Batch, Diverged, Field, Update
from shoal.roles.replay import ReplayRole
from shoal.roles.server import OFFER, GradientRole, ServerRole
from shoal.roles.synchronised import SynchronisedRole
from shoal.roles.updater import LabelledLearnerRole, UpdaterRole


def batch(x: float, **fields: Any) -> Batch:
    return Batch({"x": torch.tensor([x])}, **fields)


# ------------------------------------------------------------------------------------ the replay
def replay(*batches: Batch) -> Any:
    return ReplayRole(context("replay"), Reader(*batches), Writer(), 3)  # type: ignore[arg-type]


def test_a_replay_sends_what_it_draws() -> None:
    role = replay(batch(1.0, size=7), batch(2.0, size=9), batch(3.0, size=9))
    role.step()
    assert [item["x"].tolist() for item in role.batches.items] == [[1.0]] and role.batches.versions == [(0, 0, 0)]
    role.batches.room = False
    role.step()
    assert len(role.batches.items) == 1 and role.held["x"].tolist() == [2.0] and len(role.transitions.batches) == 1
    role.batches.room = True
    role.step()
    assert [item["x"].tolist() for item in role.batches.items] == [[1.0], [2.0]] and role.held is None
    assert len(role.transitions.batches) == 1, "one that waits draws nothing else"
    told = role.ctx.metrics.drain()
    assert told.counts == {"bytes": 8} and told.records["replay_size"] == (16.0, 2)


def test_the_state_of_a_replay_is_what_waits() -> None:
    first, second = replay(batch(1.0)), replay()
    first.batches.room = False
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.step()
    assert [item["x"].tolist() for item in second.batches.items] == [[1.0]]


# ------------------------------------------------------------------------------------ the labels
class Labeller:
    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def load(self, first: Any, second: Any) -> None:
        self.loaded.append(tuple(None if t is None else float(t["scale"]) for t in (first, second)))

    def label(self, batch: Batch, step: int) -> Any:
        return {"x": batch.items["x"].numpy(), "step": np.array([step])}, {"label": float(step)}

    def state_dict(self) -> Any:
        return {"loaded": list(self.loaded)}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = list(state["loaded"])


def updater(*batches: Batch, **ctx: Any) -> Any:
    params, lagged = Params(), Params()
    params.publish({"scale": torch.tensor(10.0)})
    lagged.publish({"scale": torch.tensor(20.0)})
    return UpdaterRole(context("updater", **ctx), Labeller(), Reader(*batches), Writer(), params, lagged)


def test_labels_are_made_with_the_newest_of_both_networks() -> None:
    """And say of which gradient step: version v is that after v - 1."""
    role = updater(*(batch(float(i), size=5 * (i > 0)) for i in range(4)))
    role.step()
    role.params.publish({"scale": torch.tensor(11.0)})
    role.params.publish({"scale": torch.tensor(12.0)})
    role.step()
    role.lagged.publish({"scale": torch.tensor(21.0)})
    role.step()
    role.step()
    assert role.labeller.loaded == [(10.0, 20.0), (12.0, None), (None, 21.0), (None, None)]
    assert [int(item["step"][0]) for item in role.labelled.items] == [0, 2, 2, 2]
    told = role.ctx.metrics.drain()
    assert told.records["label"] == (6.0, 4) and told.records["replay_size"] == (15.0, 3)


def test_labels_are_made_with_parameters_of_any_version() -> None:
    """Those of version 0 are the first; what waits at the beginning is nothing."""
    role = updater(batch(1.0))
    role.params, role.lagged = Params(), Params()
    assert role.held is None
    role.step()
    assert role.labeller.loaded == [(1.0, 1.0)] and role.versions == [0, 0]


def test_a_label_waits_for_room() -> None:
    role = updater(batch(1.0), batch(2.0))
    role.labelled.room = False
    role.step()
    assert not role.labelled.items and role.held is not None
    role.labelled.room = True
    role.step()
    assert len(role.labelled.items) == 1 and len(role.labeller.loaded) == 1 and role.held is None
    role.step()
    assert [item["x"].tolist() for item in role.labelled.items] == [[1.0], [2.0]]


@pytest.mark.parametrize("exact", [True, False])
def test_the_state_of_an_updater(exact: bool) -> None:
    first, second = updater(batch(1.0), batch(2.0), exact=exact), updater(batch(3.0), exact=exact)
    first.step()
    first.labelled.room = False
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.step()
    assert [item["x"].tolist() for item in second.labelled.items] == [[2.0]]
    second.step()
    loaded = [(10.0, 20.0), (None, None)]
    assert second.labeller.loaded == [*loaded, (None, None) if exact else (10.0, 20.0)]


class Lagging(CountingLearner):
    def lagged(self) -> Any:
        return None if self.step % 2 else {"scale": torch.tensor(float(self.step))}


def test_a_learner_of_labels_publishes_both_networks() -> None:
    given = [batch(1.0), batch(1.0), batch(1.0)]
    for b, step in zip(given, (0, 0, 1), strict=True):
        b.items["step"] = torch.tensor([step, 0])
    params, lagged = Params(), Params()
    role = LabelledLearnerRole(context("learner"), Lagging(), Reader(*given), params, lagged)
    role.start()
    assert lagged.version == 1
    for versions in (1, 2, 2):
        role.step()
        assert lagged.version == versions
    assert params.version == 4 and float(lagged.published[-1]["scale"]) == 2.0
    assert role.ctx.metrics.drain().tallies["label_age"] == {0: 2, 1: 3, 2: 1}  # type: ignore[attr-defined]
    assert "step" not in given[0].items


# ------------------------------------------------------------------------------- the parameter server
class Shard:
    """Its step subtracts the gradient."""

    def __init__(self) -> None:
        self.part = torch.zeros(2)
        self.steps: list[int] = []

    def params(self) -> Any:
        return {PART: self.part}

    def offer(self, part: Any) -> None:
        self.part = part.clone()

    def descend(self, gradient: Any, steps: int, into: Any) -> float:
        self.steps.append(steps)
        self.part = self.part - gradient
        into.copy_(self.part)
        return 0.1 * steps

    def state_dict(self) -> Any:
        return {"part": self.part, "steps": list(self.steps)}

    def load_state_dict(self, state: Any) -> None:
        self.part, self.steps = state["part"], list(state["steps"])


class PartParams(Params):
    """The write end of a part; it also says what was published last."""

    def slot(self) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def written() -> Any:
            new = {PART: torch.zeros(2)}
            yield new
            self.publish(new)

        return written()

    def state_dict(self) -> Any:
        return {"tensors": self.published[-1]}

    def load_state_dict(self, state: Any) -> None: ...


def gradient(x: float, version: int) -> Batch:
    return Batch({"gradient": torch.tensor([x, 2 * x])}, versions=(version,))


def server(*batches: Batch, index: int = 0, **options: Any) -> Any:
    return ServerRole(context("server", index, 2), Shard(), Reader(*batches), PartParams(), **options)


def test_a_server_begins_with_the_first_offer() -> None:
    role = server(gradient(5.0, OFFER), gradient(9.0, OFFER), gradient(1.0, 1), gradient(1.0, 2))
    role.start()
    for _ in range(2):
        role.step()
        assert role.params.version == 1 and role.params.published[-1][PART].tolist() == [5.0, 10.0]
    role.step()
    assert role.params.version == 2 and role.params.published[-1][PART].tolist() == [4.0, 8.0]
    role.step()
    assert role.params.published[-1][PART].tolist() == [3.0, 6.0] and role.shard.steps == [0, 1]
    told = role.ctx.metrics.drain()
    assert told.counts == {"bytes": 4 * 8, "updates": 2} and told.tallies["gradient_lag"] == {0: 2}
    assert told.records["learning_rate"] == (pytest.approx(0.1), 2) and told.records["stale_gradients"] == (0.0, 2)


@pytest.mark.parametrize("max_lag,taken", [(None, 4), (0, 1), (1, 2), (2, 3)])
def test_a_gradient_that_is_too_late_is_dropped(max_lag: int | None, taken: int) -> None:
    """Of three steps, then gradients made with the newest version, and one, two and three before."""
    given = [gradient(5.0, OFFER), *(gradient(0.0, v) for v in (1, 2, 3))]
    role = server(*given, max_lag=max_lag)
    for _ in given:
        role.step()
    role.ctx.metrics.drain()
    done = 0
    for lag in (0, 1, 2, 3):
        version = role.params.version
        role.gradients.batches = [gradient(1.0, version - lag)]
        role.step()
        told = role.ctx.metrics.drain()
        assert told.tallies["gradient_lag"] == {lag: 1}
        assert told.records["stale_gradients"] == (float(role.params.version == version), 1)
        assert told.counts.get("updates", 0) == role.params.version - version
        done += role.params.version - version
    assert done == taken


def test_a_gradient_of_a_later_life_has_no_lag() -> None:
    """Where a server went back to its checkpoint, learners are ahead of it."""
    role = server(gradient(5.0, OFFER), gradient(1.0, 8), max_lag=0)
    role.step()
    role.step()
    assert role.params.version == 2 and role.ctx.metrics.drain().tallies["gradient_lag"] == {0: 1}


def test_only_the_first_server_counts_updates() -> None:
    role = server(gradient(5.0, OFFER), gradient(1.0, 1), index=1)
    role.step()
    role.step()
    assert role.params.version == 2 and "updates" not in role.ctx.metrics.drain().counts


def test_pieces_are_averaged_into_one_step() -> None:
    """And a piece made with anything but the newest version is dropped."""
    role = server(
        gradient(5.0, OFFER), gradient(1.0, 1), gradient(2.0, 1), gradient(6.0, 1), gradient(3.0, 1), gradient(3.0, 2),
        gradient(4.0, 2), gradient(5.0, 2), max_lag=9, pieces=3,
    )  # fmt: skip
    versions = []
    while role.gradients.batches:
        role.step()
        versions.append(role.params.version)
    assert versions == [1, 1, 1, 2, 2, 2, 2, 3]
    parts = [params[PART].tolist() for params in role.params.published[1:]]
    assert parts == [[5.0, 10.0], [2.0, 4.0], [-2.0, -4.0]] and role.shard.steps == [0, 1]
    assert role.ctx.metrics.drain().records["stale_gradients"] == (1.0, 7)


@pytest.mark.parametrize("after", range(1, 7))
def test_the_state_of_a_server(after: int) -> None:
    versions = [(5.0, OFFER), (1.0, 1), (2.0, 1), (3.0, 2), (4.0, 2), (9.0, 3), (8.0, 3)]
    given = [gradient(x, version) for x, version in versions]
    whole, second = server(*given, pieces=2), server(*given[after:], pieces=2)
    for _ in range(after):
        whole.step()
    second.load_state_dict(copy.deepcopy(whole.state_dict()))
    second.params.version = whole.params.version
    for role in (whole, second):
        while role.gradients.batches:
            role.step()
    assert (
        whole.shard.part.tolist() == second.shard.part.tolist() and whole.params.version == second.params.version == 4
    )
    assert whole.shard.steps == second.shard.steps


def test_a_server_that_goes_back_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The pieces that it had are of parameters that are gone."""
    role = server(gradient(5.0, OFFER), gradient(1.0, 1), gradient(2.0, 1), gradient(4.0, 2), pieces=2)
    while role.gradients.batches:
        role.step()
    saved = copy.deepcopy(role.state_dict())
    assert saved["count"] == 1 and saved["version"] == 2
    second = server(gradient(1.0, 5), gradient(3.0, 5), pieces=2)
    second.params.version = 5
    second.load_state_dict(saved)
    assert "after 1 update: the 3 since are lost" in caplog.text
    assert second.ctx.metrics.drain().records["lost_updates"] == (3.0, 1)
    second.step()
    second.step()
    assert second.params.version == 6 and second.shard.part.tolist() == [3.5 - 2.0, 7.0 - 4.0]
    same = server(gradient(6.0, 2), pieces=2)
    same.params.version = 2
    caplog.clear()
    same.load_state_dict(saved)
    same.step()
    assert not caplog.text and same.params.version == 3 and "lost_updates" not in same.ctx.metrics.drain().records


@pytest.mark.parametrize("saved", [True, False])
def test_a_server_that_was_never_saved_goes_on_with_what_it_published(
    saved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    role = server(gradient(1.0, 4))
    role.params.publish({PART: torch.tensor([7.0, 8.0])})
    role.params.version = 4
    if saved:  # ... before there were parameters
        role.load_state_dict({"version": 0})
    else:
        role.start()
    assert "goes on with the parameters it published last, after 3 updates" in caplog.text
    role.step()
    assert role.shard.part.tolist() == [6.0, 6.0] and role.shard.steps == [3]


class Remote:
    """A learner whose gradient is the batch."""

    def __init__(self) -> None:
        self.total, self.weights = torch.zeros(2), torch.zeros(2)
        self.count = 0
        self.steps: list[int] = []
        self.diverges = False

    @property
    def empty(self) -> bool:
        return self.count == 0

    def params(self) -> Any:
        return {"w": self.weights}

    def loaded(self, steps: int) -> None:
        self.steps.append(steps)

    def add(self, batch: Batch) -> Update:
        if self.diverges:
            raise Diverged("not finite")
        x = float(batch.items["x"])
        if x:  # else it is skipped
            self.total += x
            self.count += 1
        return Update({"loss": x}, None if batch.keys is None else batch.keys * 1.0)

    def reset(self) -> None:
        self.total.zero_()
        self.count = 0

    def state_dict(self) -> Any:
        return {"total": self.total, "count": self.count, "weights": self.weights}

    def load_state_dict(self, state: Any) -> None:
        self.total.copy_(state["total"])
        self.weights.copy_(state["weights"])
        self.count = state["count"]


class Parts:
    """The read end of parameters in two parts."""

    def __init__(self) -> None:
        self.versions: tuple[int, ...] = (0, 0)
        self.value = 0.0
        self.fetches = 0

    def publish(self, value: float, *versions: int) -> None:
        self.now, self.value = versions, value

    now: tuple[int, ...] = (1, 1)

    def fetch(self, into: torch.Tensor, newer_than: int = -1) -> int | None:
        self.fetches += 1
        if min(self.now) <= newer_than:
            return None
        self.versions = self.now
        into.fill_(self.value)
        return min(self.now)


def remote(*batches: Batch, **options: Any) -> Any:
    return GradientRole(context("learner"), Remote(), Reader(*batches), Parts(), Writer(), **options)  # type: ignore[arg-type]


def test_the_first_learner_offers_its_parameters() -> None:
    role = remote()
    role.learner.weights += 3.0
    role.start()
    assert role.gradients.items[0]["gradient"].tolist() == [3.0, 3.0]
    assert role.gradients.versions == [[OFFER, OFFER]]
    role.ctx.index, role.gradients.items = 1, []
    role.start()
    assert not role.gradients.items


def test_parameters_are_fetched_and_gradients_pushed_every_so_often() -> None:
    """With the versions that the oldest of the sum was made with."""
    role = remote(*(batch(float(i)) for i in range(1, 8)), fetch_every=2, push_every=3)
    for i in range(1, 8):
        role.params.publish(10.0 * i, i, i + 1)
        role.step()
    assert role.params.fetches == 4 and role.learner.steps == [0, 2, 4, 6]
    assert [item["gradient"][0] for item in role.gradients.items] == [1.0 + 2 + 3, 4.0 + 5 + 6]
    assert role.gradients.versions == [(1, 2), (3, 4)] and role.learner.total.tolist() == [7.0, 7.0]
    assert role.learner.weights.tolist() == [70.0, 70.0]
    told = role.ctx.metrics.drain()
    assert told.counts == {"bytes": 4 * 8} and told.records["loss"] == (28.0, 7)
    assert "replay_size" not in told.records, "its batches are of no replay"


def test_parameters_that_are_not_newer_stay() -> None:
    role = remote(batch(1.0), batch(1.0))
    role.step()
    role.step()
    assert role.params.fetches == 2 and role.learner.steps == [0] and role.gradients.versions == [(1, 1), (1, 1)]


def test_an_empty_sum_is_not_pushed() -> None:
    """As after a gradient that was not finite; what is pushed next was begun with the parameters of then."""
    role = remote(batch(0.0), batch(2.0))
    role.step()
    assert not role.gradients.items and not role.full
    role.params.publish(5.0, 6, 7)
    role.step()
    assert role.gradients.versions == [(6, 7)]


def test_priorities_need_both_an_item_and_a_value() -> None:
    role = remote(batch(1.0), batch(1.0, keys=torch.tensor([4])), batch(1.0, keys=torch.tensor([5])))
    add, given = role.learner.add, [torch.tensor([1.0]), None, torch.tensor([2.0])]
    role.learner.add = lambda batch: add(batch)._replace(priorities=given.pop(0))
    for _ in range(3):
        role.step()
    assert role.batches.priorities == [([5], [2.0])]


def test_a_gradient_waits_for_room() -> None:
    keys = torch.tensor([4])
    role = remote(batch(1.0, keys=keys, size=30), batch(2.0))
    role.gradients.room = False
    role.step()
    assert role.full and not role.gradients.items and role.batches.priorities == [([4], [4.0])]
    role.gradients.room = True
    role.step()
    assert [item["gradient"][0] for item in role.gradients.items] == [1.0] and len(role.batches.batches) == 1
    assert not role.full and role.learner.empty
    assert role.ctx.metrics.drain().records["replay_size"] == (30.0, 1)


@pytest.mark.parametrize("after", range(1, 7))
def test_the_state_of_a_learner_with_a_server(after: int) -> None:
    given = [batch(float(i)) for i in range(1, 9)]
    whole, second = (remote(*part, fetch_every=3, push_every=2) for part in (given, given[after:]))
    whole.params.publish(1.0, 2, 3)
    for i in range(after):
        whole.gradients.room = i != after - 1
        whole.step()
    second.load_state_dict(copy.deepcopy(whole.state_dict()))
    second.batches.batches = copy.deepcopy(whole.batches.batches)
    whole.gradients.items.clear()
    whole.gradients.versions.clear()
    for role in (whole, second):
        role.gradients.room = True
        role.params.publish(9.0, 4, 5)
        while role.batches.batches:
            role.step()
    assert [item["gradient"].tolist() for item in whole.gradients.items] == [
        item["gradient"].tolist() for item in second.gradients.items
    ]
    assert whole.gradients.versions == second.gradients.versions and whole.gradients.versions
    assert whole.params.fetches > second.params.fetches and whole.learner.weights.equal(second.learner.weights)
    assert not second.learner.steps or second.learner.steps == whole.learner.steps[1:]


def test_a_state_from_before_there_were_parameters_offers_them_again() -> None:
    role = remote()
    saved = copy.deepcopy(role.state_dict())
    role.load_state_dict(saved)
    assert role.gradients.versions == [[OFFER, OFFER]]


def test_a_divergence_says_after_how_many_updates() -> None:
    role = remote(batch(1.0))
    role.params.publish(1.0, 6, 7)
    role.learner.diverges = True
    with pytest.raises(Diverged) as error:
        role.step()
    assert error.value.facts == {"role": "learner", "update": 5}


# --------------------------------------------------------------------------- several learners
class Equal(CountingLearner):
    """Each batch is two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = 0

    def begin(self, batch: Batch) -> None:
        self.parts, self.x = 2, float(batch.items["x"])

    def gradient(self, out: Any) -> None:
        out["gradient"][:] = self.x * self.parts

    def descend(self, means: Any) -> Update | None:
        self.weight = self.weight - means["gradient"]
        self.step += 1
        self.parts -= 1
        return None if self.parts else Update({"loss": self.x})


def equal(*batches: Batch, params: Any = None) -> Any:
    loaded: list[float] = []
    initial = Params()
    initial.publish({"scale": torch.tensor(5.0)})
    role: Any = SynchronisedRole(
        context("learner"), Equal(), Reader(*batches), params, gradients=Reducers({"gradient": Field((1,))}),
        initial=initial, load=lambda given: loaded.append(float(given["scale"])),
    )  # fmt: skip
    role.loaded = loaded
    return role


def test_learners_that_stay_equal_put_and_get_in_turn() -> None:
    params = Params()
    role = equal(batch(1.0), batch(3.0), params=params)
    role.start()
    found = []
    for _ in range(6):
        role.step()
        found.append((role.gradients.pending, params.version, float(role.learner.weight)))
    assert found == [
        (True, 1, 0.0),
        (True, 1, -2.0),
        (False, 2, -3.0),
        (True, 2, -3.0),
        (True, 2, -9.0),
        (False, 3, -12.0),
    ]
    assert role.loaded == [5.0], "all begin with the parameters of one"
    told = role.ctx.metrics.drain()
    assert told.counts == {"updates": 2} and told.records["loss"] == (4.0, 2)


def test_the_state_of_learners_that_stay_equal() -> None:
    first = equal(batch(1.0), batch(3.0))
    first.start()
    for _ in range(3):
        first.step()
    second = equal(batch(3.0))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for role in (first, second):
        for _ in range(3):
            role.step()
    assert second.loaded == [] and first.learner.weight.equal(second.learner.weight) and second.version == first.version
    fresh = equal(batch(3.0))
    fresh.load_state_dict({**first.state_dict(), "begun": False})
    fresh.step()
    assert fresh.loaded == [5.0]
    nothing = equal(batch(3.0))
    nothing.initial.latest = lambda newer_than=-1: None
    nothing.step()
    assert nothing.begun and not nothing.loaded


def test_a_divergence_of_equal_learners_is_explained() -> None:
    role = equal(batch(1.0))
    role.step()

    def diverges(means: Any) -> Any:
        raise Diverged("not finite")

    role.learner.descend = diverges
    with pytest.raises(Diverged) as error:
        role.step()
    assert error.value.facts == {"role": "learner", "update": 0} and error.value.tensors["batch/x"].tolist() == [1.0]


def test_one_update_that_is_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    role = server()
    role.params.version = 3
    state = role.state_dict()
    role.params.version = 4
    role.load_state_dict(state)
    assert "after 2 updates: the 1 since are lost" in caplog.text
    assert role.ctx.metrics.drain().records["lost_updates"] == (1.0, 1)
