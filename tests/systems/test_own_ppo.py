"""PPO's learner with an algorithm of one's own: what it saves, and what it says where a part is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import config

from shoal.api import Batch, Update, UsageError
from shoal.learning.algorithm import Algorithm
from shoal.learning.ppo_learner import PPOLearner
from shoal.systems import recurrent_ppo
from shoal.systems.recurrent_ppo import PPO


class Adaptive(PPO):
    """A KL penalty whose weight grows with every batch (Schulman et al. 2017, section 4)."""

    weight = 1.0

    def learn(self, batch: Batch, minibatches: Any) -> Update:
        update = super().learn(batch, minibatches)
        self.weight *= 2
        return update

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = state["weight"]


class Silent(PPO):
    """A loss that reports nothing."""

    def loss(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, Update]:
        return super().loss(outputs, batch)[0], Update({})


class Plain(Algorithm):
    """A loss, but no passes over a batch."""

    def __init__(self, cfg: Any, nets: Any) -> None:
        super().__init__(nets)
        self.cfg = cfg


def learner(kind: Any, **fields: Any) -> PPOLearner:
    cfg = config("recurrent-ppo", env="CartPole-v1", device="cpu", **fields)
    torch.manual_seed(0)
    return PPOLearner(kind(cfg, recurrent_ppo.network(cfg)), cfg.steps, 0)


def rollout(learner: PPOLearner) -> Batch:
    spec = recurrent_ppo.program(config("recurrent-ppo", env="CartPole-v1", device="cpu")).channels["rollouts"].spec
    items = {k: torch.zeros(f.shape, dtype=getattr(torch, f.dtype)) for k, f in spec.items()}
    items["valid"].fill_(True)
    items["obs"].normal_(generator=torch.Generator().manual_seed(0))
    return Batch(items)


def test_the_state_of_an_own_ppo_is_saved_with_its_learners() -> None:
    before, after = learner(Adaptive), learner(Adaptive)
    before.update(rollout(before))
    after.load_state_dict(before.state_dict())
    assert before.algorithm.weight == after.algorithm.weight == 2.0


def test_ppo_itself_adds_nothing_to_its_learners_state() -> None:
    assert "algorithm" not in learner(PPO).state_dict()


def test_a_loss_that_reports_nothing_learns_unless_passes_are_to_stop_by_its_kl() -> None:
    one = learner(Silent)
    metrics = one.update(rollout(one)).metrics
    assert metrics["minibatches"] == 4 and "ratio_error" not in metrics
    one = learner(Silent, target_kl=0.01)
    with pytest.raises(UsageError, match="the loss reports no metric 'kl'"):
        one.update(rollout(one))


def test_ppos_learner_refuses_an_algorithm_without_passes() -> None:
    with pytest.raises(UsageError, match=r"calls learn\(batch, minibatches\), which Plain does not have"):
        learner(Plain)
