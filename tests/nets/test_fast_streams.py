"""A head of streams by hand is the head of modules under autograd."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from present import present
from torch import nn

from shoal.api import Observation
from shoal.nets import Encoder, ReturnHead
from shoal.ops.noise import scale_noise

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}  # sums of a few dozen float32 terms of order 1
pytestmark = pytest.mark.usefixtures("fast_enabled")


def network(hidden: tuple[int, ...], dueling: bool, units: int, sigma: float | None) -> tuple[Encoder, ReturnHead]:
    torch.manual_seed(0)
    encoder = Encoder({"obs": Observation((5,), "float32", "vector")}, hidden=hidden, activation="relu")
    head = ReturnHead(encoder.features, 3, 4, dueling=dueling, hidden=units, sigma=sigma)
    return encoder, head


@pytest.mark.parametrize("sigma", [None, 0.5])
@pytest.mark.parametrize("dueling, units", [(True, 6), (False, 6), (True, 0), (False, 0)])
@pytest.mark.parametrize("hidden", [(), (7,), (9, 7)])
def test_values_and_gradient_are_those_of_autograd(hidden, dueling, units, sigma) -> None:
    encoder, head = network(hidden, dueling, units, sigma)
    by_hand = head.streams(encoder)
    assert by_hand is not None
    both = nn.ModuleList([encoder, head])
    x, weights = torch.randn(11, 5), torch.randn(11, 3, 4)
    for _ in range(2):  # the second time in the memory of the first
        noise = scale_noise(torch.randn(head.normals)) if sigma else None
        wanted = head(encoder.mlp(x), noise)
        grads = torch.autograd.grad((wanted * weights).sum(), list(both.parameters()))
        found, backward = by_hand.differentiable(x, head.parts(noise))
        torch.testing.assert_close(found, wanted.detach(), **CLOSE)
        together = backward(weights)
        for p, grad in zip(both.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad, grad, **CLOSE)
        joined = torch.cat([present(p.grad).flatten() for p in both.parameters()])
        assert torch.equal(together.sort().values, joined.sort().values)


@torch.no_grad()
def test_rows_may_have_noise_of_their_own_or_none() -> None:
    encoder, head = network((7,), True, 6, 0.5)
    by_hand, x = head.streams(encoder), torch.randn(11, 5)
    assert by_hand is not None
    for noise in (scale_noise(torch.randn(11, head.normals)), None):
        torch.testing.assert_close(by_hand.forward(x, head.parts(noise))[0], head(encoder.mlp(x), noise))


def first_layer(encoder: Encoder) -> nn.Linear:
    return cast(nn.Linear, cast(nn.Sequential, encoder.mlp)[0])


@torch.no_grad()
def test_a_copy_is_of_the_copied_network() -> None:
    encoder, head = network((7,), True, 6, 0.5)
    nets, x = (encoder, head, present(head.streams(encoder))), torch.randn(11, 5)
    other = copy.deepcopy(nets)
    nn.init.zeros_(first_layer(encoder).weight)
    for seeing, last, by_hand in (nets, other):
        torch.testing.assert_close(by_hand.forward(x, iter(()))[0], last(seeing.mlp(x)))
    assert (first_layer(other[0]).weight != 0).all()


def test_only_relus_are_done_by_hand() -> None:
    vector, head = {"obs": Observation((5,), "float32", "vector")}, ReturnHead(7, 3, 4)
    assert head.streams(Encoder(vector, hidden=(7,), activation="tanh")) is None
    assert head.streams(Encoder(vector, hidden=(7,), activation="relu", layer_norm=True)) is None
