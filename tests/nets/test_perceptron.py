"""A perceptron by hand is the network it was made of."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from present import present
from tolerance import assert_rounded
from torch import nn

from shoal.api import Observation
from shoal.nets import MLP, Encoder
from shoal.nets.box_network import perceptron
from shoal.nets.torsos import Activation

pytestmark = pytest.mark.usefixtures("fast_enabled")


def network(activation: Activation, inputs: int, heads: int, hidden: tuple[int, ...] = (12, 7)) -> nn.ModuleList:
    encoder = Encoder({"obs": Observation((inputs,), "float32", "vector")}, hidden=hidden, activation=activation)
    return nn.ModuleList([encoder, *(nn.Linear(encoder.features, 3 - i) for i in range(heads))])


def encoder_of(nets: nn.ModuleList) -> Encoder:
    return cast(Encoder, nets[0])


def values(nets: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    features = nets[0]({"obs": x})
    return torch.cat([head(features) for head in nets[1:]], -1)


class Identity(nn.Module):
    """What bounds the rounding errors of an activation: of ReLU the identity; of tanh, whose derivative 1 - y^2 is
    rounded as well, the identity with the derivative 1 + 2 |x|."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.steep = activation == "tanh"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x.square() - x.square().detach()) if self.steep else x


def of_absolute_values(nets: nn.ModuleList, activation: str) -> nn.ModuleList:
    """The network whose values and gradients, for absolute inputs, are the magnitudes of the given one's sums."""
    nets = copy.deepcopy(nets)
    for p in nets.parameters():
        p.data.abs_()
    layers = cast(nn.Sequential, encoder_of(nets).mlp)
    for i in range(1, len(list(layers.children())), 2):
        layers[i] = Identity(activation)
    return nets


def off_the_kinks(nets: nn.ModuleList, rows: int, inputs: int) -> torch.Tensor:
    """Random inputs that rounding takes to neither side of a ReLU's kink: none of its arguments is within 1e-4 of 0."""
    x = torch.randn(2 * rows + 8, inputs, dtype=torch.float64)
    y, clear = x, torch.ones(len(x), dtype=torch.bool)
    for layer in encoder_of(nets).mlp.children():
        y = layer(y)
        if isinstance(layer, nn.Linear):
            clear &= (y.abs() > 1e-4).all(1)
    assert clear.sum() >= rows
    return x[clear][:rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("inputs", [4, 40])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("hidden", [(), (12,), (12, 7)])
@pytest.mark.parametrize("rows", [1, 33, 600])
def test_values_and_gradient_are_those_of_autograd(dtype, activation, inputs, heads, hidden, rows) -> None:
    """In float64 the two agree to the last digits, whatever the order of their sums; in float32 to fewer."""
    torch.manual_seed(0)
    nets = network(activation, inputs, heads, hidden)
    exact = copy.deepcopy(nets).double()
    x = off_the_kinks(exact, rows, inputs).to(dtype)
    weights = torch.randn(rows, sum(3 - i for i in range(heads)), dtype=dtype)
    references = []
    for of, given, by in (
        (exact, x.double(), weights.double()),
        (of_absolute_values(exact, activation), x.double().abs(), weights.double().abs()),
    ):
        wanted = torch.cat([head(encoder_of(of).mlp(given)) for head in of[1:]], -1)
        grads = torch.autograd.grad((wanted * by).sum(), list(of.parameters()))
        references.append((wanted.detach(), grads))
    (wanted, grads), (magnitude, magnitudes) = references
    layers = sum(sum(layer.weight.shape) + 8 for layer in nets.modules() if isinstance(layer, nn.Linear))
    of = nets.to(dtype)
    perceptron = encoder_of(of).perceptron(*of[1:])
    assert perceptron is not None
    if dtype == torch.float32:  # which is what an encoder makes of anything
        assert_rounded(values(nets, x), wanted, magnitude, layers, "values by modules")
    for _ in range(2):  # the second time in the memory of the first
        with torch.no_grad():
            kept = perceptron.forward(x)
        assert_rounded(kept.out, wanted, magnitude, layers, "values")
        together = perceptron.backward(kept, weights)
        for (name, p), grad, size in zip(nets.named_parameters(), grads, magnitudes, strict=True):
            assert_rounded(present(p.grad), grad, size, layers + rows, name)
        assert torch.equal(
            together.sort().values, torch.cat([present(p.grad).flatten() for p in nets.parameters()]).sort().values
        )


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(12,), (12, 7)])
@pytest.mark.parametrize("rows", [1, 33, 2000])
def test_with_layer_norm_it_is_the_network_too(activation, hidden, rows) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*MLP((5, *hidden), activation, layer_norm=True), nn.Linear(hidden[-1], 3)).double()
    for p in net.parameters():  # norms begin with weights of 1 and biases of 0
        p.data += 0.3 * torch.randn_like(p)
    x, by = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True), torch.randn(rows, 3, dtype=torch.float64)
    wanted = net(x)
    by_input, *grads = torch.autograd.grad((wanted * by).sum(), [x, *net.parameters()])
    made = perceptron(net, activation)
    assert made is not None
    for _ in range(2):  # the second time in the memory of the first
        with torch.no_grad():
            kept = made.forward(x)
            torch.testing.assert_close(made.values(x), wanted)
        torch.testing.assert_close(made.backward_to_input(kept, by, 2), by_input[:, -2:])
        together = made.backward(kept, by)
        for (name, p), grad in zip(net.named_parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad, grad, msg=name)
        assert torch.equal(together, torch.cat([present(p.grad).flatten() for p in net.parameters()]))


def test_a_copy_is_of_the_copied_network() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = network("tanh", 4, 2)
            self.perceptron = present(encoder_of(self.parts).perceptron(*self.parts[1:]))

    nets = Net()
    other = copy.deepcopy(nets)
    nn.init.zeros_(cast(nn.Linear, nets.parts[1]).weight)
    x = torch.randn(5, 4)
    with torch.no_grad():
        for net in (nets, other):
            torch.testing.assert_close(net.perceptron.forward(x).out, values(net.parts, x))
    assert (cast(nn.Linear, other.parts[1]).weight != 0).all()


def test_what_is_more_than_a_perceptron_is_none() -> None:
    vector, image = Observation((4,), "float32", "vector"), Observation((1, 36, 36), "uint8", "image")
    head = nn.Linear(8, 2)
    assert Encoder({"obs": vector}, hidden=(8,)).perceptron(head) is not None
    assert Encoder({"obs": vector}, hidden=(8,), layer_norm=True).perceptron(head) is None
    assert Encoder({"obs": vector, "image": image}, hidden=(8,)).perceptron(head) is None

    def own(observations: dict[str, Observation]) -> nn.Module:
        net = nn.Linear(4, 8)
        net.features = 8  # type: ignore[assignment]
        return net

    assert Encoder({"obs": vector}, own).perceptron(head) is None
