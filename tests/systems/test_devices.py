"""What a learner has kept goes to the device that its run goes on with; and how the lag of its actors is counted."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from helpers import config, ppo_learner, record_batches, run

from shoal.api import Batch, Context, Tensors, Update
from shoal.learning.learner import SGDLearner
from shoal.learning.ppo_learner import PPOLearner
from shoal.metering.recorder import Recorder
from shoal.ops import Adam
from shoal.roles.learner import LearnerRole
from shoal.systems import load, qt_opt, recurrent_ppo
from shoal.systems.impala import TrajectoryReplay
from shoal.systems.qt_opt.rule import Bellman

META = torch.device("meta")


def adam(device: str) -> Adam:
    return Adam([torch.nn.Parameter(torch.ones(3, device=device)), torch.nn.Parameter(torch.ones(2, device=device))])


def step(optimiser: Adam) -> None:
    for p in optimiser.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    optimiser.step()


def test_all_of_adams_state_is_where_the_parameters_are() -> None:
    before = adam("cpu")
    step(before)
    after = adam("meta")
    after.load_state_dict(before.state_dict())
    params = after.param_groups[0]["params"]
    after._numbers(params, "step")
    assert {v.device for p in params for v in after.state[p].values()} == {META}


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta")
def test_ppos_carried_returns_are_where_the_network_is() -> None:
    cfg = config("recurrent-ppo", normalise_reward=True, device="cpu")
    before = ppo_learner(cfg)
    assert before.nets.rewards is not None
    before.nets.rewards.carried = torch.ones(4, dtype=torch.float64)
    nets = recurrent_ppo.network(cfg, "meta").to(META)
    after = PPOLearner(recurrent_ppo.PPO(cfg, nets), cfg.steps, 0)
    after.load_state_dict(before.state_dict())
    assert nets.rewards is not None and nets.rewards.carried is not None and nets.rewards.carried.device == META


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta")
def test_what_labels_are_drawn_with_goes_to_any_device() -> None:
    """The state of a GPU's generator is of another size than that of the CPU's."""
    cfg = config("qt-opt", device="cpu")
    before = Bellman(qt_opt.network(cfg), 3)
    state = before.rng.get_state()
    after = Bellman(qt_opt.network(cfg, "meta").to(META), 0)
    after.rng.set_state(state)
    assert torch.equal(after.rng.get_state(), state)
    assert after.first.draw(5, after.rng).device == META
    before.first.draw(5, before.rng)
    assert torch.equal(after.rng.get_state(), before.rng.get_state()), "as many numbers"


def test_impalas_kept_trajectories_are_where_its_batches_are() -> None:
    program = load("impala").program(config("impala", env="CartPole-v1", replay=8, device="cpu"))
    role = next(r for r in program.roles if r.name == "learner")

    class End:
        def publish(self, params: Any) -> int:
            return 1

    def make() -> SGDLearner:
        made = role.make(Context("learner", 0, 1, 0, 0, Recorder()), **dict.fromkeys(role.ports, End()))
        return made.learner  # type: ignore[attr-defined]

    seen = record_batches(program)
    run(program, 1)
    before, after = make(), make()
    before.update(seen[0][0])
    after.device = META
    after.load_state_dict(before.state_dict())
    assert {v.device for v in cast(TrajectoryReplay, after.replay).kept.values()} == {META}


def test_policy_lag_counts_gradient_steps() -> None:
    """A learner that makes four of them of each batch, and one message acted on by the version before the last."""

    class Learner:
        step = 0

        def update(self, batch: Batch) -> Update:
            self.step += 4
            return Update({})

        def params(self) -> Tensors:
            return {}

        def state_dict(self) -> dict[str, Any]:
            return {"step": self.step}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.step = state["step"]

    class Params:
        version = 0

        def publish(self, params: Tensors) -> int:
            self.version += 1
            return self.version

    class Batches:
        versions: tuple[int, ...] = ()

        def get(self) -> Batch:
            return Batch({}, versions=self.versions)

    def role() -> LearnerRole:
        return LearnerRole(Context("learner", 0, 1, 0, 0, Recorder()), Learner(), Batches(), Params())  # type: ignore[arg-type]

    lags: list[int] = []
    first = role()
    first.start()
    for versions in ((1,), (1, 2), (2, 3)):
        first.batches.versions = versions  # type: ignore[attr-defined]
        first.ctx.metrics.tally = lambda name, values: lags.extend(values)  # type: ignore[method-assign]
        first.step()
    assert lags == [0, 4, 0, 4, 0]
    second = role()
    second.load_state_dict(first.state_dict())
    second.batches.versions = (3, 4)  # type: ignore[attr-defined]
    second.ctx.metrics.tally = lambda name, values: lags.extend(values)  # type: ignore[method-assign]
    second.step()
    assert lags[5:] == [4, 0]
