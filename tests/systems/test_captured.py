"""A graph of a gradient, on a stand-in for a GPU: what it is of, what it is compared with, what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from helpers import config
from stand_in import DEVICE, StandIn, stand_in
from test_gradient_modes import Scaled, gradients, weight
from torch import Tensor

from shoal.api import Batch, Context, Update
from shoal.learning.captured import MAX_KINDS, WARM_UPS, GradientGraphs, _kind
from shoal.learning.compiled import ENCODERS, compile_encoders
from shoal.learning.differentiate import differentiate, eagerly
from shoal.metering.recorder import Recorder
from shoal.systems import load

X = torch.arange(1.0, 4.0)


@pytest.fixture
def device() -> Iterator[StandIn]:
    with stand_in() as made:
        yield made


def trusted(graphs: GradientGraphs) -> list[bool]:
    return [getattr(kind, "trusted", False) for kind in graphs._kinds.values()]


def found(algorithm: Any, **items: Tensor) -> tuple[Tensor, Update]:
    """The gradient of a batch, and the metrics."""
    probs = items.pop("probs", None)
    algorithm.nets.weight.grad = None
    batch = Batch({k: v.to(DEVICE) for k, v in items.items()}, probs=None if probs is None else probs.to(DEVICE))
    _, _, update = differentiate(algorithm, batch)
    return algorithm.nets.weight.grad.cpu().clone(), update


def graphed(kind: type[Scaled], device: StandIn) -> tuple[Any, GradientGraphs]:
    algorithm: Any = weight(kind)
    algorithm.differentiator = GradientGraphs(device, eagerly)  # type: ignore[arg-type]
    return algorithm, algorithm.differentiator


def test_as_many_kinds_as_there_may_be_have_a_graph_each_and_one_more_leaves_all_to_the_eager_path(
    device: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm, graphs = graphed(Scaled, device)
    numbers = [float(n) for n in range(1, MAX_KINDS + 1)] * (WARM_UPS + 1)
    gradients(algorithm, graphs, [X] * len(numbers), factor=numbers)
    assert not graphs.refused and trusted(graphs) == [True] * MAX_KINDS
    more = [float(n) for n in range(MAX_KINDS + 1, 3 * MAX_KINDS + 3)]
    gradients(algorithm, graphs, [X] * len(more), factor=more)
    assert "differ each time" in graphs.refused and caplog.text.count("operation by operation") == 1
    assert not graphs._kinds, "the memory of the graphs is free"


def test_a_graph_is_of_shapes_types_addresses_and_numbers() -> None:
    algorithm: Any = Scaled(torch.nn.Linear(3, 1))

    def kind(*shape: int, dtype: torch.dtype = torch.float32, name: str = "x", probs: Any = None) -> Any:
        return _kind(algorithm, Batch({name: torch.zeros(shape, dtype=dtype)}, probs=probs))

    before = kind(3)
    assert before == kind(3)
    others = [kind(4), kind(3, 1), kind(3, dtype=torch.float64), kind(3, name="y"), kind(3, probs=torch.zeros(3))]
    algorithm.factor = 2.0
    others.append(kind(3))
    algorithm.factor = 1.0
    assert before == kind(3)
    algorithm.nets.bias.data = algorithm.nets.bias.data.clone()
    assert len({before, *others, kind(3)}) == 8


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
def test_a_graph_is_compared_by_the_size_of_the_gradient(size: float, device: StandIn) -> None:
    """That of half the number is not taken, however small; and one part in a thousand is a matter of rounding."""
    algorithm, graphs = graphed(Scaled, device)
    algorithm.told = False
    for algorithm.factor in (1.0, 1.0, 0.999):
        found(algorithm, x=X * size)
    assert trusted(graphs) == [True] and not graphs.refused
    algorithm, graphs = graphed(Scaled, device)
    algorithm.told = False
    for algorithm.factor in (1.0, 1.0, 2.0):
        gradient, _ = found(algorithm, x=X * size)
    assert "is off by 0.5 of its norm" in graphs.refused and torch.equal(gradient, 2.0 * X * size)


def test_a_gradient_that_is_not_finite_tells_nothing_of_a_graph(device: StandIn) -> None:
    algorithm, graphs = graphed(Scaled, device)
    for x in (X, X, X * torch.nan):
        found(algorithm, x=x)
    assert trusted(graphs) == [False] and not graphs.refused
    gradient, _ = found(algorithm, x=X + 1.0)
    assert trusted(graphs) == [True] and torch.equal(gradient, X + 1.0)


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))


class Both(Scaled):
    """Moves a second parameter as well if ``factor`` is not 1, which it does not tell."""

    capturable, told = True, False

    def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        x = batch.items["x"]
        return self.nets.weight.dot(x) + (self.nets.other.dot(x) if self.factor != 1.0 else 0.0), Update({})


@pytest.mark.parametrize("before, after", [(1.0, 2.0), (2.0, 1.0)])
def test_a_graph_that_moves_other_parameters_is_not_used(before: float, after: float, device: StandIn) -> None:
    algorithm: Any = Both(Pair().to(DEVICE))
    graphs = algorithm.differentiator = GradientGraphs(device, eagerly)  # type: ignore[arg-type]
    for algorithm.factor in (before, before, after):
        algorithm.nets.other.grad = None
        found(algorithm, x=X)
    assert graphs.refused == "the graph moves other parameters"
    assert (algorithm.nets.other.grad is None) == (after == 1.0)


class Weighted(Scaled):
    """The gradient is the batch times the probabilities of its items."""

    capturable = True

    def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        assert batch.probs is not None
        return self.nets.weight.dot(batch.items["x"] * batch.probs), Update({"mean": batch.probs.mean()})


def test_a_graph_reads_the_probabilities_of_its_own_batch(device: StandIn) -> None:
    algorithm, graphs = graphed(Weighted, device)
    for n in range(6):
        gradient, update = found(algorithm, x=X, probs=X + n)
        assert torch.equal(gradient, X * (X + n)) and float(update.metrics["mean"]) == 2.0 + n
    assert trusted(graphs) == [True]


def test_metrics_that_a_learner_adds_are_not_those_of_the_next_update(device: StandIn) -> None:
    algorithm, graphs = graphed(Scaled, device)
    for _ in range(5):
        _, update = found(algorithm, x=X)
        assert update.metrics.keys() == {"mean"}
        cast(dict[str, Any], update.metrics)["grad_norm"] = 1.0
    assert trusted(graphs) == [True]


def test_what_a_learner_does_with_a_gradient_does_not_change_the_comparison(device: StandIn) -> None:
    """Also where the eager path writes each gradient into the same memory."""
    held = torch.zeros(3).to(DEVICE)

    def same_memory(algorithm: Any, batch: Batch) -> Any:
        algorithm.nets.weight.grad = held.copy_(batch.items["x"] * algorithm.factor)
        return (batch.items["x"].sum(), None, Update({}))

    algorithm: Any = weight(Scaled)
    algorithm.told = False
    graphs = GradientGraphs(device, same_memory)  # type: ignore[arg-type]
    algorithm.differentiator = graphs
    for algorithm.factor in (1.0, 1.0, 2.0):
        differentiate(algorithm, Batch({"x": X.to(DEVICE)}))
    assert "is off by 0.5 of its norm" in graphs.refused


def test_target_networks_are_compiled_too_and_each_encoder_has_room_for_its_shapes() -> None:
    program = load("dqn").program(config("dqn", env="toy:catch", torso="impala-shallow", device="cpu"))
    (make,) = (role.make for role in program.roles if role.name == "learner")
    role: Any = make(Context("learner", 0, 1, 0, 0, Recorder()), params=None, replay=None)
    algorithm = role.learner.algorithm
    assert compile_encoders(algorithm) == 2
    networks = (algorithm.nets, algorithm.target)
    assert [sum(m._compiled_call_impl is not None for m in n.modules()) for n in networks] == [1, 1]
    assert torch._dynamo.config.recompile_limit >= ENCODERS
    assert torch._inductor.config.compile_threads == 1, "no pool of processes is left behind"
