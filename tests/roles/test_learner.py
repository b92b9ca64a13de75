"""The learner: one batch, one update, one publish; how old the parameters are that a batch was made with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fakes import CountingLearner, Params, Reader, context

from shoal.api import Batch, Diverged
from shoal.roles import learner as learner_module
from shoal.roles.learner import LearnerRole


def batch(x: float, **fields: Any) -> Batch:
    return Batch({"x": torch.tensor([x])}, **fields)


def role_of(*batches: Batch, per: int = 1, params: Any = None) -> Any:
    return LearnerRole(context("learner"), CountingLearner(per), Reader(*batches), params)


def test_a_step_learns_and_publishes() -> None:
    keys = torch.tensor([3, 5])
    role = role_of(batch(1.5), batch(2.0, keys=keys, size=40), params=(params := Params()))
    role.start()
    assert params.version == 1 and params.published[-1]["weight"].tolist() == [0.0]
    role.step()
    assert params.version == 2 and params.published[-1]["weight"].tolist() == [1.5]
    assert role.batches.priorities == []
    role.step()
    assert params.published[-1]["weight"].tolist() == [3.5] and role.batches.priorities == [([3, 5], [6.0, 10.0])]
    told = role.ctx.metrics.drain()
    assert told.counts == {"updates": 2} and told.records["loss"] == (3.5, 2)
    assert told.records["replay_size"] == (40.0, 1), "of a replay alone"


def test_priorities_need_both_an_item_and_a_value() -> None:
    keys = torch.tensor([4])
    role = role_of(batch(1.0), batch(1.0, keys=keys), batch(1.0, keys=keys + 1), params=Params())
    update, given = role.learner.update, [torch.tensor([1.0]), None, torch.tensor([2.0])]
    role.learner.update = lambda batch: update(batch)._replace(priorities=given.pop(0))
    for _ in range(3):
        role._published = {0: 0}
        role.step()
    assert role.batches.priorities == [([5], [2.0])]


@pytest.mark.parametrize("per", [1, 3])
def test_the_lag_is_counted_in_gradient_steps(per: int) -> None:
    """Of each joined item with a version: the learner's gradient steps since that version was published."""
    given = [(1,), (1, 2), (0, 3), (2, 4, 4)]
    role = role_of(*(batch(0.0, versions=v) for v in given), per=per, params=Params())
    role.start()
    for wanted in ([0], [per, 0], [0], [2 * per, 0, 0]):
        role.step()
        lags = role.ctx.metrics.drain().tallies["policy_lag"]
        assert sorted(lag for lag, n in lags.items() for _ in range(n)) == sorted(wanted)


def test_items_without_versions_have_no_lag() -> None:
    role = role_of(batch(0.0), batch(0.0, versions=(0, 0)), params=Params())
    role.start()
    role.step()
    role.step()
    assert "policy_lag" not in role.ctx.metrics.drain().tallies


def test_a_version_that_is_forgotten_is_as_old_as_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_module, "MAX_TRACKED_VERSIONS", 3)
    role = role_of(*(batch(0.0, versions=(1,)) for _ in range(5)), per=2, params=Params())
    role.start()
    found = []
    for _ in range(5):
        role.step()
        found += list(role.ctx.metrics.drain().tallies["policy_lag"])
    assert found == [0, 2, 4, 4, 4], "three versions are remembered"


def test_one_of_several_learners_does_not_publish() -> None:
    """It counts versions as its sibling does, so that it knows the lag; what it tells would be told twice."""
    role = role_of(batch(1.0), batch(1.0, versions=(1,)))
    role.start()
    role.step()
    role.step()
    told = role.ctx.metrics.drain()
    assert role.version == 3 and told.tallies["policy_lag"] == {1: 1}
    assert not told.counts and not told.records


def test_the_state_goes_on() -> None:
    params = Params()
    role = role_of(batch(1.0), batch(2.0), batch(4.0, versions=(2,)), per=2, params=params)
    role.start()
    role.step()
    role.step()
    saved = copy.deepcopy(role.state_dict())
    other = role_of(batch(4.0, versions=(2,)), per=2, params=None)
    other.load_state_dict(saved)
    assert other.version == 3 and other.learner.weight.tolist() == [3.0] and other.learner.step == 4
    for one in (role, other):
        one.ctx.metrics.drain()
        one.step()
        assert one.ctx.metrics.drain().tallies["policy_lag"] == {2: 1}
    assert role.state_dict() == other.state_dict()
    del saved["published"]  # of an older checkpoint
    other = role_of(batch(0.0, versions=(2,)), per=2)
    other.load_state_dict(saved)
    other.step()
    assert other.ctx.metrics.drain().tallies["policy_lag"] == {0: 1}


@pytest.mark.parametrize("replicas,name", [(1, "learner"), (2, "learner-1")])
def test_a_divergence_is_explained(replicas: int, name: str) -> None:
    role = role_of(batch(1.0), batch(7.0), params=Params())
    role.ctx.replicas, role.ctx.index = replicas, replicas - 1
    role.start()
    role.step()

    def diverges(batch: Batch) -> Any:
        raise Diverged("loss is not finite")

    role.learner.update = diverges
    with pytest.raises(Diverged) as error:
        role.step()
    assert error.value.facts["role"] == name and error.value.facts["update"] == 1
    assert error.value.tensors["batch/x"].tolist() == [7.0] and error.value.tensors["params/weight"].tolist() == [1.0]


def test_every_minibatch_is_a_sign_of_life() -> None:
    learner: Any = CountingLearner()
    learner.gradient_step = type("GradientStep", (), {"beat": None})()
    role = LearnerRole(context("learner"), learner, Reader(), Params())
    shown: list[str] = []
    role.ctx.metrics.show = shown.append  # type: ignore[attr-defined]
    learner.gradient_step.beat()
    assert shown == ["learn"]
