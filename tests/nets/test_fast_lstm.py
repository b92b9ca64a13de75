"""A torso, an LSTM and a head by hand are the modules under autograd."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from tolerance import rounding
from torch import Tensor, nn

from shoal.api import Observation
from shoal.fast.lstm import RecurrentStreams
from shoal.nets import DuelingQHead, Encoder, QHead, RecurrentCore

pytestmark = pytest.mark.usefixtures("fast_enabled")
L, B, F, A = 13, 5, 6, 3


class Net(nn.Module):
    def __init__(self, hidden: tuple[int, ...], size: int, dueling: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder({"obs": Observation((F,), "float32", "vector")}, hidden=hidden, activation="relu")
        self.core = RecurrentCore("lstm", self.encoder.features, size)
        self.head = DuelingQHead(size, A, 10) if dueling else QHead(size, A)
        assert isinstance(self.core.rnn, nn.LSTM)
        self.by_hand = RecurrentStreams(self.encoder.chain()[0], self.core.rnn, self.head.streams, A)  # type: ignore[index]

    def forward(self, x: Tensor, first: Tensor, state: tuple[Tensor, Tensor], skip: int) -> Tensor:
        """Step by step, a clear state where an episode starts."""
        kept, out = dict(zip("hc", state, strict=True)), []
        for t in range(len(x)):
            y, kept = self.core.step(self.encoder({"obs": x[t]}), first[t], kept)
            if t < skip:
                kept = {k: v.detach() for k, v in kept.items()}
            else:
                out.append(self.head(y))
        return torch.stack(out)


def given(size: int, starts: float, seed: int = 1) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x, first = torch.randn(L, B, F, generator=generator), torch.rand(L, B, generator=generator) < starts
    h, c = torch.randn(2, B, size, generator=generator)
    return x, first, (h, c)


@pytest.mark.parametrize("starts", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("skip", [0, 4])
@pytest.mark.parametrize("hidden", [(), (7,), (9, 7)])
@pytest.mark.parametrize("size, dueling", [(4, False), (11, False), (16, True)])
def test_values_and_gradient_are_those_of_autograd(size, dueling, hidden, skip, starts) -> None:
    net = Net(hidden, size, dueling)
    bound = rounding(L * (max(*hidden, F, 0) + size + 8) + L * B, 1.0)  # of numbers of order 1, on the longest path
    for seed in (1, 2):  # the second time in the memory of the first
        x, first, state = given(size, starts, seed)
        weights = torch.randn(L - skip, B, A)
        wanted = net(x, first, state, skip)
        grads = torch.autograd.grad((wanted * weights).sum(), list(net.parameters()))
        found, backward = net.by_hand.differentiable(x.flatten(0, 1), first, state, skip)
        torch.testing.assert_close(found, wanted.detach(), rtol=bound, atol=bound)
        together = backward(weights)
        for (name, p), grad in zip(net.named_parameters(), grads, strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad, grad, rtol=bound, atol=bound, msg=(name + ": {}").format)
        joined = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        assert torch.equal(together.sort().values, joined.sort().values)


def test_what_is_far_from_zero_and_what_is_no_number() -> None:
    """Gates that are all but shut or open keep their values; a state that is no number is cleared like any other, and
    shows in the values where it is not."""
    net = Net((7,), 11, False)
    x, first, (h, c) = given(11, 0.0)
    with torch.no_grad():
        for scale in (10.0, 1e4):
            wanted = net(scale * x, first, (h, c), 0)
            found, _ = net.by_hand.forward(scale * x.flatten(0, 1), first, (h, c), 0)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        h[0, 0], first[3] = torch.nan, True
        found, _ = net.by_hand.forward(x.flatten(0, 1), first, (h, c), 0)
    assert found[:3, 0].isnan().all() and found[3:].isfinite().all() and found[:, 1:].isfinite().all()


@torch.no_grad()
def test_a_copy_is_of_the_copied_network() -> None:
    net = Net((7,), 11, True)
    x, first, state = given(11, 0.2)
    other = copy.deepcopy(net)
    for p in net.parameters():
        p.mul_(0.5)
    for one in (net, other):
        found, _ = one.by_hand.forward(x.flatten(0, 1), first, state, 2)
        torch.testing.assert_close(found, one(x, first, state, 2), rtol=1e-5, atol=1e-5)
    first, second = (cast(nn.Linear, cast(nn.Sequential, one.head.value)[0]).weight for one in (net, other))
    assert (first != second).all()
