"""Several learners that stay equal: their mean gradient is that of one learner with all batches."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from helpers import config, record_batches, run, spy

from shoal.api import Batch, RoleFailed, Tensors, UsageError
from shoal.learning.learner import SGDLearner, split
from shoal.learning.optimiser import make_optimiser
from shoal.learning.synchronised_learner import SynchronisedLearner
from shoal.local.runtime import LocalRuntime
from shoal.nets.recurrent import column_axis
from shoal.roles.synchronised import SynchronisedRole
from shoal.runtime.launch import Launch, Stop
from shoal.settings.schedule import linear
from shoal.systems import impala

SMALL: dict[str, Any] = dict(env="CartPole-v1", device="cpu", precision="fp32", steps=20_000)


def learner(cfg: impala.Config, kind: type[SGDLearner], parts: int = 1) -> Any:
    torch.manual_seed(0)
    nets = impala.network(cfg)
    return kind(
        impala.VTrace(cfg, nets), make_optimiser(cfg, nets), max_grad_norm=0.1, parts=parts,
        progress=lambda update: update / 100,
    )  # fmt: skip


def batches(cfg: impala.Config, count: int) -> list[Batch]:
    """Those that a run learned from."""
    program = impala.program(cfg)
    seen = record_batches(program)
    run(program, count)
    return [batch for batch, _ in seen[:count]]


def together(learners: list[SynchronisedLearner], given: list[Batch]) -> list[dict[str, float]]:
    """One batch of each; the metrics of each."""
    for one, batch in zip(learners, given, strict=True):
        one.begin(batch)
    found: list[Any] = [None]
    while found[0] is None:
        items = []
        for one in learners:
            size = sum(p.numel() for p in one.algorithm.nets.parameters())
            items.append({"gradient": np.zeros(size, np.float32), "loss": np.zeros(())})
            one.gradient(items[-1])
        means = {name: torch.from_numpy(np.asarray(np.mean([i[name] for i in items], 0))) for name in items[0]}
        found = [one.descend(means) for one in learners]
    return [update.metrics for update in found]


def close(a: Tensors, b: Tensors) -> None:
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 2])
def test_two_learn_what_one_learns_from_both_batches(parts: int) -> None:
    cfg = config("impala", **SMALL, unroll=4, learning_rate=linear(1e-2, 0))
    given = batches(cfg, 6)
    pairs = [[split(b, 2)[i] for i in (0, 1)] for b in given]
    whole = learner(cfg, SGDLearner, parts)
    two = [learner(cfg, SynchronisedLearner, parts) for _ in range(2)]
    for batch, halves in zip(given, pairs, strict=True):
        if not batch.items["valid"].all():
            continue  # halves of unequal weight: the mean of their means is not the mean of all
        if parts == 2:  # parts of the whole batch must be those of both halves
            quarters = [split(half, 2) for half in halves]
            joined = [quarters[i][j] for j in (0, 1) for i in (0, 1)]
            batch = Batch({k: torch.cat([q.items[k] for q in joined], column_axis(k)) for k in batch.items})
        expected = whole.update(batch).metrics
        found = together(two, halves)
        assert found[0]["loss"] == found[1]["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert found[0]["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        close(whole.params(), two[0].params())
        assert all(torch.equal(a, b) for a, b in zip(two[0].params().values(), two[1].params().values(), strict=True))
    assert whole.step == two[0].step >= 3 * parts


def test_learners_are_equal_in_a_run() -> None:
    cfg = config("impala", **SMALL, actors=4, learners=2)
    program, roles = impala.program(cfg), list[Any]()
    spy(program, "learner", roles.append)
    report = run(program, 12)
    first, second = (role.learner for role in roles)
    assert report.updates == 12 == first.step == second.step
    assert all(torch.equal(a, b) for a, b in zip(first.params().values(), second.params().values(), strict=True))
    moved = report.params["params"]
    assert all(torch.equal(moved[k], v) for k, v in first.params().items())


def test_a_killed_learner_ends_the_run_and_is_named() -> None:
    """The other waits for its gradient, and does not hang."""
    program = impala.program(config("impala", **SMALL, actors=2, learners=2))

    def mortal(role: SynchronisedRole) -> None:
        step = role.step

        def killed() -> None:
            step()
            if role.ctx.index == 1 and role.learner.step == 3 and role.gradients.pending:
                os.kill(os.getpid(), signal.SIGKILL)

        role.step = killed  # type: ignore[method-assign]

    spy(program, "learner", mortal)
    with pytest.raises(RoleFailed, match=r"(?s)learner\[1\].*SIGKILL"):
        LocalRuntime().launch(program, Launch(seed=0, stop=Stop(steps=10**6)))


@pytest.mark.parametrize(
    "fields, text",
    [
        (dict(actors=2, learners=3), r"learners \(3\) must be no more than actors \(2\)"),
        (dict(actors=2, learners=2, normalise_obs=True), "normalise_obs serves one learner"),
    ],
)
def test_what_cannot_be_is_said(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        impala.program(config("impala", **SMALL, **fields))
