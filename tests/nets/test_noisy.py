"""Noisy layers and the head of distributions: worked numbers, the outer product, and what no noise is."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shoal.nets import DuelingQHead, NoisyLinear, QHead, ReturnHead
from shoal.nets.noisy import MAX_UNFUSED_ROWS
from shoal.ops.noise import scale_noise


def test_worked_numbers() -> None:
    """The fact sheet's f(-4) f(2.25) = -3: one input, one output, mu 0, sigma 1."""
    layer = NoisyLinear(1, 1)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.sigma_weight.fill_(1.0)
        layer.sigma_bias.fill_(1.0)
    normals = torch.tensor([-4.0, 2.25])
    assert layer(torch.ones(1, 1), scale_noise(normals)).item() == pytest.approx(-3.0 + 1.5)  # weight, and bias f(2.25)


def test_it_is_a_layer_with_the_noise_of_the_outer_product() -> None:
    torch.manual_seed(0)
    layer, x, normals = NoisyLinear(5, 3), torch.randn(7, 5, requires_grad=True), torch.randn(8)
    bias = scale_noise(normals[5:])
    weight = torch.outer(bias, scale_noise(normals[:5]))
    expected = F.linear(x, layer.weight + layer.sigma_weight * weight, layer.bias + layer.sigma_bias * bias)
    found = layer(x, scale_noise(normals))
    torch.testing.assert_close(found, expected)
    over = (x, *layer.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(found.square().sum(), over), torch.autograd.grad(expected.square().sum(), over), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("rows", [MAX_UNFUSED_ROWS, MAX_UNFUSED_ROWS + 1])
def test_few_rows_are_multiplied_with_the_mean_and_the_noise_one_by_one(rows: int) -> None:
    torch.manual_seed(0)
    layer, x, noise = NoisyLinear(50, 30), torch.randn(rows, 50), scale_noise(torch.randn(80))
    formed = layer(x, noise)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, noise), formed)
    rounded, kept = copy.deepcopy(layer).bfloat16(), x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = rounded(kept, noise)
    torch.testing.assert_close(found.float(), formed, atol=0.05, rtol=0.05)
    gradients = zip(
        torch.autograd.grad(found.float().square().sum(), list(rounded.parameters())),
        torch.autograd.grad(formed.square().sum(), list(layer.parameters())),
        strict=True,
    )
    for mine, exact in gradients:
        assert (mine - exact).norm() < 0.02 * exact.norm()


def test_initial_values() -> None:
    layer = NoisyLinear(100, 30, sigma=0.5)
    assert layer.weight.abs().max() <= 0.1 and layer.weight.abs().max() > 0.09 and layer.bias.abs().max() <= 0.1
    assert layer.sigma_weight.unique().tolist() == pytest.approx([0.05])
    assert layer.sigma_bias.unique().tolist() == pytest.approx([0.05])


def test_rows_may_have_noise_of_their_own() -> None:
    torch.manual_seed(0)
    head, x = ReturnHead(6, 3, 4, dueling=True, hidden=5, sigma=0.5), torch.randn(4, 6)
    normals = torch.randn(4, head.normals)
    assert head.normals == 2 * (6 + 5) + (5 + 12) + (5 + 4)
    together = head(x, normals)
    for row in range(4):
        torch.testing.assert_close(together[row : row + 1], head(x[row : row + 1], normals[row]))
    assert not torch.allclose(together, head(x, normals[0]))


@pytest.mark.parametrize("dueling", [False, True])
def test_noise_moves_every_layer_and_without_sigma_none(dueling: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    noisy, still = (ReturnHead(6, 3, 4, dueling=dueling, hidden=5, sigma=s) for s in (0.5, 0.0))
    assert torch.equal(still(x, torch.randn(still.normals)), still(x))
    plain = noisy(x, torch.zeros(noisy.normals))
    torch.testing.assert_close(plain, noisy(x))  # f(0) = 0: the mean weights
    first = 0
    for size in noisy.sizes:
        normals = torch.zeros(noisy.normals)
        normals[first : first + size] = torch.randn(size)
        assert not torch.allclose(noisy(x, normals), plain)
        first += size
    noisy(x, torch.randn(noisy.normals)).square().sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in noisy.parameters())


def test_one_plain_atom_is_the_head_of_values() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    plain, head = QHead(6, 3), ReturnHead(6, 3, hidden=0)
    head.load_state_dict({f"advantage.0.{k}": v for k, v in plain.linear.state_dict().items()})
    torch.testing.assert_close(head(x).squeeze(-1), plain(x))
    streams, head = DuelingQHead(6, 3, 8), ReturnHead(6, 3, dueling=True, hidden=8)
    named = {k.replace("2", "1") if k.split(".")[1] == "2" else k: v for k, v in streams.state_dict().items()}
    head.load_state_dict(named)
    torch.testing.assert_close(head(x).squeeze(-1), streams(x))


def test_dueling_takes_the_mean_over_actions_off_each_atom() -> None:
    torch.manual_seed(0)
    head, x = ReturnHead(6, 3, 4, dueling=True, hidden=5), torch.randn(2, 6, requires_grad=True)
    assert head.value is not None
    value, advantage = head.value(x, iter(())), head.advantage(x, iter(())).view(2, 3, 4)
    for row in range(2):
        for atom in range(4):
            mean = sum(advantage[row, a, atom].item() for a in range(3)) / 3
            for action in range(3):
                expected = value[row, atom].item() + advantage[row, action, atom].item() - mean
                assert head(x)[row, action, atom].item() == pytest.approx(expected, abs=1e-6)
    (scaled,) = torch.autograd.grad(head(x).sum(), x)
    unscaled = value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(scaled, torch.autograd.grad(unscaled.sum(), x)[0] / math.sqrt(2))
    assert isinstance(head.value[0], nn.Linear) and not isinstance(head.value[0], NoisyLinear)
