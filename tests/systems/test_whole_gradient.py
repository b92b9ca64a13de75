"""A loss is differentiated by every way in which it reaches the parameters, not by the network's outputs alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import config, record_batches, run, spy
from modules import module_of
from torch import Tensor

from shoal.api import Batch, Context, Tensors, Update, UsageError, observations
from shoal.fast.precomputed import loss_with_gradient, precomputed_gradient
from shoal.learning.algorithm import Algorithm
from shoal.learning.differentiate import differentiate
from shoal.metering.recorder import Recorder
from shoal.program import Program
from shoal.systems import load
from shoal.systems.dqn import QLearning
from shoal.topology.replayed import descent

# Networks whose gradient is made by hand, by autograd behind a leaf, recurrent ones, and those of two parts
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "perceptron": ("dqn", {}),
    "dueling": ("dqn", {"dueling": True}),
    "noisy": ("rainbow", {}),
    "sequences": ("r2d2", {}),
    "policy and value": ("impala", {}),
    "Gaussian": ("impala", {"env": "Pendulum-v1", "backend": "gymnasium"}),
    "recurrent": ("impala", {"core": "lstm", "core_size": 8}),
    "critic and policy": ("apex-dpg", {}),
    "distribution and policy": ("d4pg", {"v_min": -1000.0, "v_max": 0.0}),
    "labels": ("qt-opt", {}),
}
Extra = Callable[[Algorithm, Batch], Tensor]


def decay(algorithm: Algorithm, batch: Batch) -> Tensor:
    """An L2 cost of all weights."""
    return 0.1 * torch.stack([p.square().sum() for p in algorithm.nets.parameters()]).sum()


def pass_again(algorithm: Algorithm, batch: Batch) -> Tensor:
    """A cost of what a further pass of the encoder makes, or of the critic where there is no encoder to learn."""
    rows = {k: v.flatten(0, -2) for k, v in observations(batch.items).items()}  # of vectors, with or without time
    features: Tensor = algorithm.nets.encoder(rows)
    if not features.requires_grad:
        features = algorithm.nets.critic(features, batch.items["action"])
    return 0.1 * features.square().mean()


@pytest.fixture(scope="module", params=CASES, ids=[name.replace(" ", "-") for name in CASES])
def learnt(request: pytest.FixtureRequest) -> tuple[Algorithm, Batch]:
    """An algorithm and a prepared batch of its system, which tests leave as they are."""
    system, fields = CASES[request.param]
    program: Program = load(system).program(config(system, **fields))
    batches, learners = record_batches(program), []
    spy(program, "learner", lambda role: learners.append(role.learner))
    run(program, 2)
    algorithm: Algorithm = learners[0].algorithm
    return algorithm, algorithm.prepare(batches[-1][0])


def gradient(algorithm: Algorithm, batch: Batch) -> tuple[float, Tensors]:
    """The loss, and the gradient by each parameter."""
    for p in algorithm.nets.parameters():
        p.grad = None
    generator = getattr(algorithm, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(0)
    loss, joined, _ = differentiate(algorithm, batch)
    grads = {k: p.grad.clone() for k, p in algorithm.nets.named_parameters() if p.grad is not None}
    if joined is not None:
        assert joined.numel() == sum(g.numel() for g in grads.values())
        torch.testing.assert_close(torch.linalg.vector_norm(joined), torch.linalg.vector_norm(
            torch.cat([g.flatten() for g in grads.values()])))  # fmt: skip
    return loss.item(), grads


@pytest.mark.parametrize("extra", [decay, pass_again])
@pytest.mark.parametrize("in_place", [False, True], ids=["sum", "in place"])
def test_a_term_beside_the_outputs_has_its_gradient(
    learnt: tuple[Algorithm, Batch], extra: Extra, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, batch = learnt
    parameters = dict(algorithm.nets.named_parameters())
    plain, before = gradient(algorithm, batch)
    term = extra(algorithm, batch)
    direct = torch.autograd.grad(term, list(parameters.values()), allow_unused=True)
    loss = algorithm.loss

    def with_term(outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        value, update = loss(outputs, batch)
        more = extra(algorithm, batch)
        if not in_place:
            return value + more, update
        value += more
        return value, update

    monkeypatch.setattr(algorithm, "loss", with_term)
    whole, after = gradient(algorithm, batch)
    assert whole == pytest.approx(plain + term.item(), rel=1e-5)
    assert any(d is not None and d.abs().max() > 0 for d in direct)
    for (name, p), more in zip(parameters.items(), direct, strict=True):
        expected = before.get(name, torch.zeros_like(p)) + (0.0 if more is None else more)
        torch.testing.assert_close(after.get(name, torch.zeros_like(p)), expected, rtol=1e-5, atol=1e-6)


def test_a_loss_of_the_parameters_alone_is_differentiated() -> None:
    algorithm = Algorithm(module_of("dqn").network(config("dqn")))
    algorithm.loss = lambda outputs, batch: (decay(algorithm, batch), Update({}))  # type: ignore[method-assign]
    _, grads = gradient(algorithm, Batch({"obs": torch.zeros(3, 4)}))
    for name, p in algorithm.nets.named_parameters():
        torch.testing.assert_close(grads[name], 0.2 * p.detach())


class MeanLoss(QLearning):
    """A loss whose parts do not add up: each is a mean of its own."""

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Update]:
        return outputs.square().mean(), Update({})


def test_a_loss_of_ones_own_shares_its_gradient_only_if_it_says_that_its_parts_add_up() -> None:
    class Saying(MeanLoss):
        adds_up = True

    class Inheriting(Saying):
        pass

    assert QLearning.adds_up and not MeanLoss.adds_up and Saying.adds_up and Inheriting.adds_up
    cfg, asked = config("dqn", env="toy:catch"), list[int]()
    ctx = Context("learner", 0, 1, 0, 0, Recorder(), team=asked.append)
    cfg = replace(cfg, learner_processes=2)
    learner = descent(cfg, ctx, QLearning(cfg, module_of("dqn").network(cfg)))
    assert asked == [2] and learner.workers is None
    with pytest.raises(UsageError, match=r"learner_processes \(2\) .* MeanLoss"):
        descent(cfg, ctx, MeanLoss(cfg, module_of("dqn").network(cfg)))
    descent(replace(cfg, learner_processes=0), ctx, MeanLoss(cfg, module_of("dqn").network(cfg)))
    assert asked == [2]


def test_a_compiled_losss_gradient_is_found_in_its_own_graph_and_only_by_its_leaf() -> None:
    """Whatever is done with the loss afterwards, autograd finds the rest; the tensor carries nothing of its own."""
    leaf, gradient = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2)
    loss = loss_with_gradient(leaf, 1.5, gradient)
    found = precomputed_gradient(loss, leaf)
    assert found is not None and torch.equal(found, gradient) and loss.item() == 1.5 and not vars(loss)
    assert precomputed_gradient(loss, torch.randn(3, 2, requires_grad=True)) is None
    assert precomputed_gradient(loss_with_gradient(2 * leaf, 1.5, gradient), leaf) is None
    assert precomputed_gradient(loss_with_gradient(leaf.detach(), 1.5, gradient), leaf) is None
    assert precomputed_gradient(loss + leaf.sum(), leaf) is None
    loss *= 2
    assert precomputed_gradient(loss, leaf) is None
    (by_leaf,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(by_leaf, 2 * gradient)


@pytest.mark.parametrize("value", [1e39, -1e300, math.inf, math.nan])
def test_a_compiled_loss_beyond_float32_is_infinite_or_no_number_like_any_other(value: float) -> None:
    loss = loss_with_gradient(torch.zeros(1, requires_grad=True), value, torch.zeros(1)).item()
    assert math.isnan(loss) if math.isnan(value) else loss == math.copysign(math.inf, value)
