"""Losses and gradients that are not finite: skipped and counted, and after ten updates in a row the run ends with
what is needed to find the cause."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import shoal
from shoal.api import Batch, Diverged, Learner, RoleFailed, ShoalError, Update
from shoal.learning.algorithm import Algorithm
from shoal.learning.gradient_step import MAX_SKIPPED
from shoal.learning.learner import SGDLearner
from shoal.learning.ppo_learner import PPOLearner
from shoal.systems import recurrent_ppo


class Line(Algorithm):
    """Fits y = w x. A batch may spoil the loss (its gradient stays finite) or the gradient."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1, bias=False))

    def loss(self, outputs: None, batch: Batch) -> tuple[torch.Tensor, Update]:
        items = batch.items
        error = (self.nets(items["x"]) - items["x"]).square().mean()
        loss = error * items.get("factor", torch.tensor(1.0)) + items.get("spoil", torch.tensor(0.0))
        return loss, Update({"own": error.detach()}, torch.full((2,), math.nan))


GOOD = Batch({"x": torch.ones(2, 1)})
SPOILT = [
    Batch({"x": torch.ones(2, 1), "spoil": torch.tensor(math.nan)}),
    Batch({"x": torch.ones(2, 1), "spoil": torch.tensor(math.inf)}),
    Batch({"x": torch.ones(2, 1), "factor": torch.tensor(math.nan)}),
]


def many(learner: Learner, batch: Batch, times: int) -> None:
    for _ in range(times):
        learner.update(batch)


def line() -> SGDLearner:
    algorithm = Line()
    return SGDLearner(algorithm, torch.optim.Adam(algorithm.nets.parameters(), lr=0.1))


@pytest.mark.parametrize("bad", SPOILT, ids=["NaN loss", "infinite loss", "NaN gradient"])
def test_a_bad_update_is_skipped_and_counted(bad: Batch) -> None:
    learner = line()
    learner.update(GOOD)
    before = {k: v.clone() for k, v in learner.params().items()}
    update = learner.update(bad)
    assert update.metrics["skipped_updates"] == 1.0 and update.priorities is None
    assert all(math.isfinite(float(v)) for v in update.metrics.values())
    assert all(torch.equal(before[k], v) for k, v in learner.params().items())
    assert learner.update(GOOD).metrics["skipped_updates"] == 0.0
    assert not torch.equal(before["weight"], learner.params()["weight"])


def test_only_failures_in_a_row_end_it() -> None:
    learner = line()
    for _ in range(3):
        many(learner, SPOILT[0], MAX_SKIPPED - 1)
        learner.update(GOOD)
    with pytest.raises(Diverged, match="the loss was not finite in 10 updates in a row"):
        many(learner, SPOILT[0], MAX_SKIPPED)


def test_ppo_outlives_a_bad_batch() -> None:
    cfg = recurrent_ppo.Config(envs=2, unroll=4, epochs=4, minibatches=4, normalise_obs=True, normalise_reward=True)
    nets = recurrent_ppo.network(cfg)
    learner = PPOLearner(recurrent_ppo.PPO(cfg, nets), cfg.steps, seed=0)
    spec = recurrent_ppo.program(cfg).channels["rollouts"].spec
    items = {k: torch.zeros(f.shape, dtype=getattr(torch, f.dtype)) for k, f in spec.items()}
    items["valid"].fill_(True)
    items["obs"].normal_()
    assert learner.update(Batch(items)).metrics["skipped_updates"] == 0.0
    before = {k: v.clone() for k, v in nets.state_dict().items()}
    bad = {**items, "reward": torch.full_like(items["reward"], math.nan), "obs": items["obs"] * math.inf}
    update = learner.update(Batch(bad))
    assert update.metrics["skipped_updates"] == 1.0 and all(math.isfinite(float(v)) for v in update.metrics.values())
    assert all(torch.equal(before[k], v) for k, v in nets.state_dict().items()), "the statistics of rewards, too"
    assert learner.update(Batch(items)).metrics["skipped_updates"] == 0.0
    with pytest.raises(Diverged):
        many(learner, Batch(bad), MAX_SKIPPED)


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_run_that_diverges_leaves_a_dump(runtime: str, tmp_path: Path) -> None:
    with pytest.raises((Diverged, RoleFailed), match="not finite in 10 updates in a row") as failure:
        shoal.train(
            "dqn", env="CartPole-v1", runtime=runtime, run_dir=tmp_path / "r", steps=20_000, envs=4, hidden=(8,),
            learning_rate=1e30, max_grad_norm=None, min_replay=200,
        )  # fmt: skip
    assert isinstance(failure.value, ShoalError)
    (dump,) = (tmp_path / "r" / "dumps").iterdir()
    assert str(dump) in str(failure.value)
    tensors, facts = load_file(dump / "tensors.safetensors"), json.loads((dump / "facts.json").read_text())
    assert "batch/obs" in tensors and any(name.startswith("params/") for name in tensors)
    assert facts["skipped_in_a_row"] == MAX_SKIPPED and facts["update"] >= MAX_SKIPPED - 1


@pytest.mark.parametrize(("system", "role", "options"), [
    ("impala", "learner", dict(learners=2, actors=2)),
    ("a3c", "worker", dict(actors=2)),
    ("dd-ppo", "rank", dict(actors=2)),
    ("gorila", "learner", dict(actors=2, learners=2, min_replay=200)),
])  # fmt: skip
def test_each_of_several_learners_leaves_its_own(
    system: str, role: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(Diverged, match=r"not finite in 10 [a-z]+ in a row"):
        shoal.train(
            system, env="CartPole-v1", runtime="serial", run_dir=tmp_path / "r", steps=20_000, seed=0, hidden=(8,),
            learning_rate=1e30, max_grad_norm=None, quiet=True, **options,
        )  # fmt: skip
    (dump,) = (tmp_path / "r" / "dumps").iterdir()
    assert re.fullmatch(rf"{role}-[01]-\d+", dump.name)
    names = set(load_file(dump / "tensors.safetensors"))
    assert "batch/obs" in names and any(name.startswith("params/") for name in names)
