"""A perceptron by hand is the network it was made of."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from shoal.api import Observation
from shoal.nets import Encoder, Perceptron


def network(activation: str, inputs: int, heads: int, hidden: tuple[int, ...] = (12, 7)) -> nn.ModuleList:
    encoder = Encoder({"obs": Observation((inputs,), "float32", "vector")}, hidden=hidden, activation=activation)
    return nn.ModuleList([encoder, *(nn.Linear(encoder.features, 3 - i) for i in range(heads))])


def values(nets: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    features = nets[0]({"obs": x})
    return torch.cat([head(features) for head in nets[1:]], -1)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("inputs", [4, 40])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("hidden", [(), (12,), (12, 7)])
@pytest.mark.parametrize("rows", [1, 33, 600])
def test_values_and_gradient_are_those_of_autograd(activation, inputs, heads, hidden, rows) -> None:
    torch.manual_seed(0)
    nets, x = network(activation, inputs, heads, hidden), torch.randn(rows, inputs)
    weights = torch.randn(rows, sum(3 - i for i in range(heads)))
    wanted = values(nets, x)
    grads = torch.autograd.grad((wanted * weights).sum(), list(nets.parameters()))
    perceptron = Perceptron.of(*nets)
    assert perceptron is not None
    for _ in range(2):  # the second time in the memory of the first
        with torch.no_grad():
            kept = perceptron.forward(x)
        torch.testing.assert_close(kept[-1], wanted.detach())
        joined = perceptron.backward(kept, weights)
        for p, grad in zip(nets.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad, grad)
        assert joined.shape == (sum(p.numel() for p in nets.parameters()),)
        assert joined.norm() == pytest.approx(torch.cat([g.flatten() for g in grads]).norm().item(), rel=1e-5)


def test_a_copy_is_of_the_copied_network() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = network("tanh", 4, 2)
            self.perceptron = Perceptron.of(*self.parts)

    nets = Net()
    other = copy.deepcopy(nets)
    nn.init.zeros_(nets.parts[1].weight)
    x = torch.randn(5, 4)
    with torch.no_grad():
        for net in (nets, other):
            torch.testing.assert_close(net.perceptron.forward(x)[-1], values(net.parts, x))
    assert (other.parts[1].weight != 0).all()


def test_what_is_more_than_a_perceptron_is_none() -> None:
    vector, image = Observation((4,), "float32", "vector"), Observation((1, 36, 36), "uint8", "image")
    head = nn.Linear(8, 2)
    assert Perceptron.of(Encoder({"obs": vector}, hidden=(8,)), head) is not None
    assert Perceptron.of(Encoder({"obs": vector}, hidden=(8,), layer_norm=True), head) is None
    assert Perceptron.of(Encoder({"obs": vector, "image": image}, hidden=(8,)), head) is None

    def own(observations: dict[str, Observation]) -> nn.Module:
        net = nn.Linear(4, 8)
        net.features = 8  # type: ignore[assignment]
        return net

    assert Perceptron.of(Encoder({"obs": vector}, own), head) is None
