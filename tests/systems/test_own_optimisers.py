"""Optimisers of torch's own in a learner: schedules, processes that share a gradient, and what a checkpoint holds."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shoal.api import Batch, Tensors, Update
from shoal.learning.algorithm import Algorithm
from shoal.learning.data_parallel import DataParallel
from shoal.learning.gradient_step import GradientStep
from shoal.learning.learner import SGDLearner
from shoal.local.workers import Team
from shoal.nets.outputs import Outputs, detached
from shoal.ops import SGD, AdaGrad, Adam, RMSProp
from shoal.ops.optimiser import load_optimiser
from shoal.settings.schedule import linear

Make = Callable[[Any], torch.optim.Optimizer]
NEEDS = {"LBFGS": "a closure", "SparseAdam": "sparse gradients", "Muon": "no biases"}  # what no learner gives them
OF_TORCH = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}


class Line(torch.nn.Module):
    """A linear regression."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)

    def outputs(self, items: Tensors) -> Outputs:
        values, backward = detached(self.inner(items["x"]))
        values.requires_grad_()
        return Outputs(values, values, backward)


class Squares(Algorithm):
    """The sum of squared errors of every row."""

    adds_up = True

    def loss(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, Update]:
        return (outputs - batch.items["y"]).square().sum(), Update({})


def data() -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch({"x": torch.randn(8, 3, generator=generator), "y": torch.randn(8, 2, generator=generator)})


def line() -> Line:
    torch.manual_seed(0)
    return Line()


@pytest.mark.parametrize("kind", [Adam, AdaGrad, SGD, RMSProp])
def test_a_schedule_does_not_lie_in_the_groups_of_an_optimiser(kind: Any) -> None:
    optimiser = kind(line().parameters(), lr=linear(0.5, 0.0))
    assert type(optimiser.param_groups[0]["lr"]) is type(optimiser.defaults["lr"]) is float
    assert optimiser.learning_rate == linear(0.5, 0.0)


@pytest.mark.parametrize("make", [
    lambda nets: SGD(nets.parameters(), linear(0.5, 0.0)),
    lambda nets: SGD([{"params": list(nets.parameters()), "lr": linear(0.5, 0.0)}], 0.1),
    lambda nets: torch.optim.SGD(nets.parameters(), linear(0.5, 0.0)),
    lambda nets: torch.optim.SGD([{"params": list(nets.parameters()), "lr": linear(0.5, 0.0)}], 0.1),
])  # fmt: skip
def test_a_step_follows_the_schedule_of_any_optimiser(make: Make) -> None:
    optimiser = make(line())
    step = GradientStep(optimiser, None)
    for fraction, rate in ((0.0, 0.5), (0.5, 0.25), (1.0, 0.0)):
        step.at(fraction)
        assert type(optimiser.param_groups[0]["lr"]) is float and optimiser.param_groups[0]["lr"] == rate
    assert step.scheduled


@pytest.mark.parametrize("name", sorted(OF_TORCH.keys() - NEEDS.keys()))
def test_a_learner_goes_on_by_the_saved_averages_of_any_of_torchs_optimisers(name: str) -> None:
    def learner() -> SGDLearner:
        nets = line()
        kind: Any = OF_TORCH[name]
        return SGDLearner(Squares(nets), kind(nets.parameters(), lr=0.01))

    whole, half, rest = learner(), learner(), learner()
    for _ in range(2):
        half.update(data())
    rest.load_state_dict(copy.deepcopy(half.state_dict()))
    for _ in range(2):
        rest.update(data())
    for _ in range(4):
        whole.update(data())
    for p, q in zip(whole.algorithm.nets.parameters(), rest.algorithm.nets.parameters(), strict=True):
        assert torch.equal(p, q)


def test_averages_of_another_shape_are_refused() -> None:
    optimiser = Adam(line().parameters())
    state = copy.deepcopy(Adam([torch.zeros(5, requires_grad=True) for _ in range(2)]).state_dict())
    state["state"] = {i: {"exp_avg": torch.zeros(5)} for i in range(2)}
    with pytest.raises(ValueError, match="no tensor of the shape"):
        load_optimiser(optimiser, state)


@pytest.mark.parametrize("make", [
    lambda nets: torch.optim.AdamW(nets.parameters(), linear(0.05, 0.0), weight_decay=0.1),
    lambda nets: torch.optim.SGD(nets.parameters(), linear(0.01, 0.0), momentum=0.9, nesterov=True),
], ids=["adamw", "sgd"])  # fmt: skip
def test_a_team_learns_by_an_optimiser_of_torchs_what_one_learns(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many weights there are: such an optimiser is not divided among the members."""
    monkeypatch.setattr("shoal.learning.data_parallel.DIVIDED", 0)
    team, rows, found = Team(2), torch.arange(8), []
    try:
        for one in (None, team):
            nets = line()
            step = GradientStep(make(nets), max_norm=0.5)
            together = DataParallel(Squares(nets), step, one)
            together.load(data().items)
            norms = []
            for turn in range(4):
                step.at(turn / 4)
                norms.append(together.step(rows)[0])
            found.append(([p.detach().clone() for p in nets.parameters()], norms))
    finally:
        team.close()
    (alone, norms), (shared, theirs) = found
    assert theirs == pytest.approx(norms, rel=1e-5)
    for p, q in zip(alone, shared, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)
