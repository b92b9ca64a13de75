"""The settings of ``gradient``: a CUDA graph, on a stand-in for the GPU, and torch.compile give the eager gradient."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any, cast

import devices
import pytest
import torch
from helpers import config, learning_role, run, spy
from stand_in import DEVICE, stand_in
from test_cuda_learning import SCALED, assert_moved_alike
from test_device_pipeline import CASES_HERE, Weight
from test_snapshots import CASES, SEED
from torch import Tensor

import shoal
from shoal import transfer
from shoal.api import Batch, Tensors, Update
from shoal.learning import compiled
from shoal.learning.algorithm import Algorithm
from shoal.learning.captured import MAX_KINDS, GradientGraphs
from shoal.learning.differentiate import differentiate, eagerly
from shoal.systems import load
from shoal.transfer import Streams

GRAPHED = (
    "dqn", "apex-dqn", "apex-dqn, rmsprop", "rainbow", "gorila", "impala", "qt-opt", "d4pg", "apex-dpg",
    "recurrent-ppo",
)  # fmt: skip
TORSO = f"{__name__}:own_torso"
UPDATES = 14  # of which the eleventh is the second with all metrics, so that there are graphs of two kinds


def own_torso(observations: Any) -> torch.nn.Module:
    """A network that has no gradient by hand."""

    class Net(torch.nn.Module):
        features = 8

        def __init__(self) -> None:
            super().__init__()
            inputs = sum(math.prod(o.shape) for o in observations.values())
            self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))

        def forward(self, obs: Tensors) -> Tensor:
            return self.layers(torch.cat([v.flatten(1).float() for v in obs.values()], 1)).tanh()

    return Net()


def played(system: str, updates: int, fields: dict[str, Any]) -> tuple[tuple[Tensors, Tensors], Any, list[int]]:
    """Parameters of a serial run before and after, the algorithm of its learner, and how many operations each of its
    steps has asked a stand-in for, where it is on one."""
    cfg = config(system, **{"precision": "fp32", "steps": 20_000, **SCALED.get(system, {}), **fields})
    program, before, made, asked = load(system).program(cfg), {}, list[Any](), list[int]()

    def keep(role: Any) -> None:
        if role.ctx.index:
            return
        before.update({k: v.detach().cpu().double().clone() for k, v in role.learner.params().items()})
        made.append(role.learner)
        step = role.step

        def counted() -> None:
            start = 0 if device is None else device.asked
            step()
            asked.append(0 if device is None else device.asked - start)

        role.step = counted

    spy(program, learning_role(system), keep)
    device = None
    if fields["device"] == DEVICE.type:
        with stand_in() as device:
            after = run(program, updates, SEED).params["params"]
    else:
        after = run(program, updates, SEED).params["params"]
    learner = getattr(made[0], "learner", made[0])  # r2d3's is another's
    workers = getattr(learner, "workers", None)
    algorithm = learner.algorithm if workers is None else workers.worker
    return (before, {k: v.double() for k, v in after.items()}), algorithm, asked


@pytest.mark.parametrize("case", GRAPHED)
def test_a_graph_gives_the_eager_gradient_by_few_operations(case: str) -> None:
    system, fields = CASES_HERE[case]
    eager, _, many = played(system, UPDATES, {"device": DEVICE.type, **fields, "gradient": "eager"})
    graphed, algorithm, few = played(system, UPDATES, {"device": DEVICE.type, **fields, "gradient": "graph"})
    graphs = algorithm.differentiator
    assert not graphs.refused and any(getattr(kind, "trusted", False) for kind in graphs._kinds.values())
    assert_moved_alike(eager, graphed, UPDATES)
    most = 220 if system == "recurrent-ppo" else 25  # beside the graph, of which that makes four
    assert few[-1] <= most and few[-1] < 0.65 * many[-1], (few, many)


@pytest.mark.parametrize("case", ["impala, lstm", "r2d2", "impala, pop-art"])
def test_a_gradient_that_cannot_be_captured_stays_eager_with_a_sentence(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    system, fields = CASES_HERE[case]
    _, algorithm, _ = played(system, 1, {"device": DEVICE.type, **fields, "gradient": "graph"})
    assert algorithm.differentiator is eagerly
    assert "cannot be captured" in caplog.text


@pytest.mark.parametrize("device, fields, graphs", [
    (DEVICE.type, {}, True), (DEVICE.type, {"hidden": (512,)}, False), (DEVICE.type, {"core": "lstm"}, False),
    ("cpu", {}, False),
])  # fmt: skip
def test_auto_takes_a_graph_for_a_small_perceptron_on_a_gpu(device: str, fields: dict[str, Any], graphs: bool) -> None:
    _, algorithm, _ = played("impala", 1, {"device": device, **fields})
    assert isinstance(algorithm.differentiator, GradientGraphs) == graphs


class Scaled(Algorithm):
    """The gradient of ``weight`` is the batch times ``factor``, a number of the host."""

    capturable, factor, told = True, 1.0, True

    def numbers(self) -> tuple[float, ...]:
        return (self.factor,) if self.told else ()

    def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        x = batch.items["x"]
        return self.nets.weight.dot(x) * self.factor, Update({"mean": x.mean()}, x * 2.0)


class Reads(Scaled):
    """Asks the device for a number."""

    capturable = True

    def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        return self.nets.weight.dot(batch.items["x"]) * float(batch.items["x"].sum()), Update({})


class Sends(Scaled):
    """Sends numbers of its own, drawn anew each time, to the device."""

    capturable = True

    def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
        return self.nets.weight.dot(batch.items["x"] + transfer.send(torch.rand(3), DEVICE)), Update({})


def gradients(algorithm: Algorithm, graphs: GradientGraphs, batches: list[Tensor], **change: list[Any]) -> None:
    """Each gradient, loss, metric and priority is that of its batch."""
    algorithm.differentiator = graphs
    for number, x in enumerate(batches):
        for name, values in change.items():
            setattr(algorithm, name, values[number])
        algorithm.nets.weight.grad = None
        loss, _, update = differentiate(algorithm, Batch({"x": x.to(DEVICE)}))
        factor = getattr(algorithm, "factor", 1.0)
        assert algorithm.nets.weight.grad.tolist() == (x * factor).tolist()
        assert loss.item() == pytest.approx(factor * float(x.sum()))
        assert float(update.metrics["mean"]) == pytest.approx(float(x.mean()))
        assert update.priorities is not None and update.priorities.tolist() == (2.0 * x).tolist()


def weight(kind: type[Algorithm]) -> Algorithm:
    algorithm = kind(Weight().to(DEVICE))
    with torch.no_grad():
        algorithm.nets.weight.fill_(1.0)
    return algorithm


def test_each_replay_reads_its_own_batch_and_each_shape_and_number_has_its_graph() -> None:
    with stand_in() as device:
        algorithm, graphs = weight(Scaled), GradientGraphs(cast(Streams, device), eagerly)
        batches = [torch.arange(3.0) + n for n in range(12)]
        gradients(algorithm, graphs, batches, factor=[2.0, 3.0] * 6)
        assert [kind.trusted for kind in graphs._kinds.values()] == [True, True]  # type: ignore[union-attr]
        before = device.asked
        gradients(algorithm, graphs, batches[:1], factor=[3.0])
        # beside the graph: two copies of the item, and what ``gradients`` reads
        assert device.asked - before <= 8


def test_numbers_that_differ_each_time_leave_all_to_the_eager_path(caplog: pytest.LogCaptureFixture) -> None:
    with stand_in() as device:
        algorithm, graphs = weight(Scaled), GradientGraphs(cast(Streams, device), eagerly)
        batches = [torch.arange(3.0) + n for n in range(MAX_KINDS + 3)]
        gradients(algorithm, graphs, batches, factor=[float(n) for n in range(len(batches))])
    assert "differ each time" in graphs.refused and caplog.text.count("operation by operation") == 1


def test_a_graph_whose_first_gradient_is_not_the_eager_one_is_not_used() -> None:
    """As that of a loss that reads a number which it does not tell of."""
    with stand_in() as device:
        algorithm, graphs = weight(Scaled), GradientGraphs(cast(Streams, device), eagerly)
        gradients(algorithm, graphs, [torch.ones(3)] * 5, factor=[1.0, 1.0, 2.0, 3.0, 4.0], told=[False] * 5)
    assert "is off by 0.5 of its norm" in graphs.refused


@pytest.mark.parametrize("kind, why", [(Reads, "capturing"), (Sends, "it sends values of the host")])
def test_a_loss_that_asks_or_tells_the_host_is_not_captured(kind: type[Algorithm], why: str) -> None:
    with stand_in() as device:
        algorithm, graphs = weight(kind), GradientGraphs(cast(Streams, device), eagerly)
        algorithm.differentiator = graphs
        for _ in range(4):
            algorithm.nets.weight.grad = None
            differentiate(algorithm, Batch({"x": torch.ones(3).to(DEVICE)}))
            assert algorithm.nets.weight.grad is not None
    assert why in graphs.refused


def test_a_loss_of_ones_own_is_captured_only_if_it_says_so() -> None:
    class Own(Scaled):
        def loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Update]:
            return super().loss(outputs, batch)

    assert Scaled.capturable and not Own.capturable


COMPILED = {case: given for case, given in CASES.items() if given[0] != "es"}


@pytest.mark.parametrize("case", COMPILED)
def test_a_compiled_torso_gives_the_eager_gradient(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler of C++: what is captured, and differentiated, is what matters here."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    system, fields = COMPILED[case]
    given = {"device": "cpu", **fields, "torso": TORSO}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, _, _ = played(system, 3, {**given, "gradient": "eager"})
    assert not torch._dynamo.utils.counters["stats"]
    joined, _, _ = played(system, 3, {**given, "gradient": "compile"})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] and not torch._dynamo.utils.counters["graph_break"]
    assert_moved_alike(eager, joined, 3)


def test_a_torso_that_cannot_be_compiled_computes_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(compiled, "BACKEND", fails)
    torch._dynamo.reset()
    given = {"device": "cpu", "torso": TORSO}
    with caplog.at_level(logging.WARNING):
        found, _, _ = played("impala", 2, {**given, "gradient": "compile"})
    assert_moved_alike(played("impala", 2, {**given, "gradient": "eager"})[0], found, 2)
    assert caplog.text.count("the network is not compiled") == 1 and "there is no compiler" in caplog.text


@pytest.mark.long
def test_a_run_with_a_compiled_torso_goes_on_as_an_eager_one(tmp_path: Path) -> None:
    """Compiled to machine code, by processes of their own that share a batch or its gradient, and resumed."""
    given: dict[str, Any] = dict(
        env="toy:catch",
        preset="none",
        torso="impala-shallow",
        actors=2,
        learners=2,
        envs=4,
        unroll=8,
        device="cpu",
        precision="fp32",
    )
    shoal.train("impala", **given, gradient="compile", steps=600, run_dir=tmp_path / "run", quiet=True)
    shoal.resume(tmp_path / "run", steps=1_200, gradient="eager", quiet=True)
    shoal.resume(tmp_path / "run", steps=1_800, gradient="compile", quiet=True)
    facts = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [change["settings"]["gradient"] for change in facts["changes"]] == [
        ["compile", "eager"], ["eager", "compile"],
    ]  # fmt: skip
    assert "not compiled" not in "".join(log.read_text() for log in (tmp_path / "run").rglob("*.log"))


@pytest.mark.cuda
@pytest.mark.parametrize("gradient", ["graph", "compile"])
@pytest.mark.parametrize("case", ["dqn", "impala", "rainbow", "d4pg", "qt-opt", "recurrent-ppo"])
def test_a_gradient_on_the_device_is_the_eager_one(case: str, gradient: str) -> None:
    system, fields = CASES_HERE[case]
    updates = UPDATES if devices.ON_GPU else 2
    given = {"device": devices.DEVICE, **fields, **({"torso": TORSO} if gradient == "compile" else {})}
    eager, _, _ = played(system, updates, {**given, "gradient": "eager"})
    found, algorithm, _ = played(system, updates, {**given, "gradient": gradient})
    assert_moved_alike(eager, found, updates)
    if gradient == "graph" and devices.ON_GPU:
        assert not algorithm.differentiator.refused
