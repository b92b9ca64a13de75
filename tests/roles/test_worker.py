"""An asynchronous worker: a copy, a segment, an addition (Mnih et al. 2016, algorithms 1 and S3)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fakes import ScriptedEnvs, SummingAgent, context

from shoal.api import Diverged, Update
from shoal.roles.actor import unroll_spec
from shoal.roles.collector import Collector
from shoal.roles.worker import TAKEN, TargetWorkerRole, WorkerRole, target_spec

STEPS = 4


class Shared:
    """Parameters that all share: adding a gradient subtracts it, in units of the learning rate."""

    def __init__(self, value: float = 5.0) -> None:
        self.params: Any = {"scale": torch.tensor(value)}
        self.steps, self.others = 0, 0
        self.offers: list[Any] = []
        self.rates: list[float] = []

    def offer(self, params: Any) -> None:
        self.offers.append(params)

    def copy(self) -> Any:
        return self.steps, {name: tensor.clone() for name, tensor in self.params.items()}

    def add(self, gradient: Any, lr: float) -> int:
        self.rates.append(lr)
        if TAKEN in gradient:  # a target network is replaced
            self.params = {name: tensor.clone() for name, tensor in gradient.items()}
        else:
            self.params = {name: tensor - lr * gradient[name] for name, tensor in self.params.items()}
        self.steps += 1 + self.others
        return self.steps


class Learner:
    """Its gradient is 1; of the segments whose number is in ``skips`` there is none."""

    def __init__(self) -> None:
        self.loads: list[float] = []
        self.targets: list[float] = []
        self.rewards: list[torch.Tensor] = []
        self.skips: set[int] = set()

    def params(self) -> Any:
        return {"scale": torch.tensor(7.0)}

    def load(self, params: Any) -> None:
        self.loads.append(float(params["scale"]))

    def load_target(self, params: Any) -> None:
        assert TAKEN not in params
        self.targets.append(float(params["scale"]))

    def gradient(self, items: Any) -> Any:
        self.rewards.append(items["reward"].clone())
        update = Update({"loss": 1.0})
        return (None if len(self.rewards) in self.skips else {"scale": torch.tensor(1.0)}), update

    def state_dict(self) -> Any:
        return {"loads": list(self.loads)}

    def load_state_dict(self, state: Any) -> None:
        self.loads = list(state["loads"])


class Clock:
    steps = 0


def worker(index: int = 0, period: int = 0, clock: Any = None, target: Shared | None = None) -> Any:
    clock = clock or Clock()
    ctx = context("worker", index, 3, exact=True, steps=lambda: clock.steps)

    def actor(params: Any) -> Collector:
        env = ScriptedEnvs([[(3, "terminated")], [(100, "terminated")]])
        spec = unroll_spec(env.spec, STEPS, 2, {"value": ((), "float32")}, {"sum": (1,)})
        return Collector(ctx, env, SummingAgent(), params, spec)

    args: list[Any] = [ctx, actor, Learner(), lambda steps: 0.5 / (1 + steps), Shared()]
    return TargetWorkerRole(*[*args, target, period]) if target is not None else WorkerRole(*args)


def test_a_step_is_a_copy_a_segment_and_an_addition() -> None:
    clock = Clock()
    role = worker(clock=clock)
    clock.steps = 1
    role.step()
    assert role.learner.loads == [5.0] and role.collector.agent.scale == 5.0 and len(role.learner.rewards[0]) == STEPS
    assert role.shared.rates == [0.25] and float(role.shared.params["scale"]) == 4.75, "the rate of the run's steps"
    role.step()
    assert role.learner.loads == [5.0, 4.75] and role.collector.agent.scale == 4.75
    assert role.collector.agent.loaded == [1, 2] and role.collector.taken == 0
    told = role.ctx.metrics.drain()
    assert told.counts["updates"] == 2 and told.records["loss"] == (2.0, 2)
    assert told.records["learning_rate"] == (0.5, 2) and told.tallies["update_lag"] == {0: 2}
    role.close()
    assert role.collector.env.inner.closed


def test_the_lag_of_an_update_is_what_others_added_meanwhile() -> None:
    role = worker()
    role.shared.others = 2
    role.step()
    assert role.ctx.metrics.drain().tallies["update_lag"] == {2: 1}


def test_a_segment_without_a_gradient_adds_nothing() -> None:
    role = worker()
    role.learner.skips = {1}
    role.step()
    told = role.ctx.metrics.drain()
    assert role.shared.rates == [] and "update_lag" not in told.tallies and "learning_rate" not in told.records
    assert told.counts["updates"] == 1 and told.records["loss"] == (1.0, 1)


def test_an_agent_may_adopt_the_copy() -> None:
    adopted: list[Any] = []
    given = worker()
    given.collector.agent.adopt = adopted.append

    def actor(params: Any) -> Collector:
        given.collector.params = params
        return given.collector

    role = WorkerRole(given.ctx, actor, given.learner, given.learning_rate, given.shared)
    role.step()
    assert adopted[0] is role._copied and float(adopted[0]["scale"]) == 5.0


@pytest.mark.parametrize("index,offers", [(0, 1), (1, 0)])
def test_one_worker_offers_the_first_parameters(index: int, offers: int) -> None:
    target = Shared()
    for role in (worker(index), worker(index, 10, target=target)):
        role.start()
        assert [float(given["scale"]) for given in role.shared.offers] == [7.0] * offers
    assert [int(given[TAKEN]) for given in target.offers] == [0] * offers
    assert [float(given["scale"]) for given in target.offers] == [7.0] * offers


def test_the_state_of_a_worker() -> None:
    first, second = worker(), worker()
    first.step()
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.shared.params = dict(first.shared.params)
    assert second.own.version == 2 and second.learner.loads == first.learner.loads
    first.step()
    second.step()
    assert second.learner.rewards[-1].equal(first.learner.rewards[-1])
    assert second.collector.agent.loaded[-1] == first.collector.agent.loaded[-1] == 3


def test_a_learner_may_have_no_state() -> None:
    role = worker()
    role.learner = object()
    state = role.state_dict()
    assert state["learner"] == {}
    role.load_state_dict(state)


def test_a_divergence_says_after_how_many_steps_of_all() -> None:
    role = worker()
    role.shared.steps = 9

    def diverges(items: Any) -> Any:
        raise Diverged("not finite")

    role.learner.gradient = diverges
    with pytest.raises(Diverged) as error:
        role.step()
    assert error.value.facts == {"role": "worker-0", "update": 9}
    assert float(error.value.tensors["params/scale"]) == 5.0 and "batch/reward" in error.value.tensors


def test_the_target_network_is_copied_once_a_period() -> None:
    """By whoever is first in it; the others read it, once a period too."""
    clock, target = Clock(), Shared(1.0)
    target.params[TAKEN] = torch.tensor(0)
    roles = [worker(i, 10, clock, target) for i in range(2)]
    for role in roles:
        role.shared = roles[0].shared
    found = []
    for clock.steps in (0, 9, 10, 15, 19, 20, 47, 50):
        for role in roles:
            role.step()
        found.append((int(target.params[TAKEN]), target.steps))
    assert found == [(0, 0), (0, 0), (10, 1), (10, 1), (10, 1), (20, 2), (47, 3), (50, 4)]
    first, second = (role.learner.targets for role in roles)
    assert len(first) == len(second) == 5 and first == second and first[0] == 1.0 and len(set(first)) == 5
    assert first[-1] == float(target.params["scale"]) and set(target.rates) == {0.0}
    assert set(target_spec({"scale": None})) == {"scale", TAKEN}  # type: ignore[dict-item]
    assert target_spec({})[TAKEN].dtype == "int64" and target_spec({})[TAKEN].shape == ()


def test_a_target_network_of_a_later_period_stays() -> None:
    """Where a worker was held up between its look at the steps and its copy."""
    clock, target = Clock(), Shared(1.0)
    target.params[TAKEN] = torch.tensor(35)
    role = worker(1, 10, clock, target)
    clock.steps = 20
    role.step()
    assert target.steps == 0 and role.learner.targets == [1.0]
