"""The deterministic policy gradient and D4PG's distributions, against the oracles of this folder and the worked numbers
of Ape-X DPG and D4PG."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from present import present

from shoal.ops import (
    categorical_mean,
    categorical_projection,
    importance_weights,
    mixture_cross_entropy,
    mixture_log_prob,
    mixture_mean,
    mixture_sample,
)
from shoal.systems.apex_dpg import dpg_loss


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mixture(B, K, seed=0):
    return normal(seed, B, K), normal(seed + 1, B, K), np.abs(normal(seed + 2, B, K)) + 0.2


def check(found, expected, tol=1e-5):
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=tol, atol=tol)


@pytest.mark.parametrize(("B", "K", "S"), [(1, 1, 1), (3, 5, 7), (16, 2, 3)])
def test_mixture_oracles(B, K, S):
    parts, y = mixture(B, K), 2 * normal(9, B, S)
    tensors = [torch.from_numpy(part) for part in parts]
    expected = oracles.mixture_log_prob(y, *parts)
    check(mixture_log_prob(torch.from_numpy(y), *tensors), expected)
    check(mixture_cross_entropy(torch.from_numpy(y), *tensors), -expected.mean(-1))
    check(mixture_mean(*tensors[:2]), oracles.mixture_mean(*parts[:2]))
    uniform, noise = np.random.default_rng(3).random((B, S), np.float32), normal(4, B, S)
    found = mixture_sample(torch.from_numpy(uniform), torch.from_numpy(noise), *tensors)
    check(found, oracles.mixture_sample(uniform, noise, *parts))


@pytest.mark.parametrize(("B", "N"), [(1, 2), (4, 51)])
def test_categorical_mean_oracle_and_gradient(B, N):
    logits, z = torch.from_numpy(normal(0, B, N)).requires_grad_(), torch.linspace(-3.0, 2.0, N)
    mean = categorical_mean(logits, z)
    check(mean, oracles.categorical_mean(logits.detach().numpy(), z.numpy()))
    p = torch.softmax(logits, -1).detach()
    (gradient,) = torch.autograd.grad(mean.sum(), logits)
    torch.testing.assert_close(gradient, p * (z - mean.detach()[:, None]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("clip", [0.5, 1.0, None])
def test_dpg_gradient_oracle(clip):
    actions, by_action = torch.randn(6, 3, requires_grad=True), torch.from_numpy(2 * normal(1, 6, 3))
    loss = dpg_loss(actions, by_action, clip)
    assert loss.shape == (6,) and not loss.any()
    (found,) = torch.autograd.grad(loss.sum(), actions)
    check(found, oracles.dpg_gradient(by_action.numpy(), np.inf if clip is None else clip), tol=0)


# --------------------------------------------------------------------------------- worked numbers
def test_the_clip_is_of_each_element_and_of_the_action_gradient():
    """As Ape-X DPG does: [0.4, -3] becomes [0.4, -1]; a clip of the norm would change both."""
    actions = torch.zeros(1, 2, requires_grad=True)
    (found,) = torch.autograd.grad(dpg_loss(actions, torch.tensor([[0.4, -3.0]]), 1.0).sum(), actions)
    torch.testing.assert_close(found, torch.tensor([[-0.4, 1.0]]))


def test_mean_of_a_categorical_distribution_and_its_gradient():
    logits, atoms = torch.tensor([[0.1, 0.2, -0.3]], requires_grad=True), torch.tensor([0.0, 1.0, 2.0])
    mean = categorical_mean(logits, atoms)
    check(mean, [0.881217], tol=1e-6)
    check(torch.autograd.grad(mean.sum(), logits)[0], [[-0.3175, 0.047298, 0.270202]], tol=1e-6)


@pytest.mark.parametrize("K", [1, 3])
def test_gaussian_negative_log_likelihood(K):
    """y = 1, mean = deviation = 0.5; a mixture of equal components is that component."""
    half = torch.full((1, K), 0.5)
    found = mixture_cross_entropy(torch.ones(1, 1), torch.randn(1, K), half, half)
    check(found, [0.725791], tol=1e-6)


def test_importance_weights_of_d4pg():
    """1 / (R P) with R = 10^6, relative to the largest: P = 1e-6 -> 1, 4e-6 -> 0.25."""
    check(importance_weights(torch.tensor([1e-6, 4e-6]), 1_000_000, 1.0), [1.0, 0.25], tol=1e-6)


def test_the_categorical_target_of_five_steps():
    """Rewards 1, 0.5, 0.2, 0.8, 0.4 at 0.99: 2.8514976, and 0.99^5 bootstraps; the mean is kept while nothing clips."""
    ret = sum(r * 0.99**k for k, r in enumerate([1.0, 0.5, 0.2, 0.8, 0.4]))
    assert ret == pytest.approx(2.8514976, abs=1e-7)
    atoms, at_zero = torch.linspace(-150.0, 150.0, 51), torch.zeros(1, 51)
    at_zero[0, 25] = 1.0
    target = categorical_projection(torch.tensor([ret]), torch.tensor([0.99**5]), at_zero, atoms)
    check(target[0, 25:27], [0.52475, 0.47525], tol=1e-5)
    check(target @ atoms, [ret], tol=1e-4)
    terminal = categorical_projection(torch.tensor([ret]), torch.zeros(1), torch.softmax(torch.randn(1, 51), -1), atoms)
    check(terminal, target.numpy(), tol=1e-5)  # all mass at the return, whatever the target network says


# -------------------------------------------------------------------------------------- properties
def test_samples_have_the_mixtures_moments():
    logits, means, deviations = torch.tensor([[0.3, -1.0]]), torch.tensor([[-2.0, 5.0]]), torch.tensor([[0.5, 1.5]])
    generator = torch.Generator().manual_seed(0)
    uniform, noise = torch.rand(1, 200_000, generator=generator), torch.randn(1, 200_000, generator=generator)
    y = mixture_sample(uniform, noise, logits, means, deviations)
    mean = mixture_mean(logits, means)
    second = (torch.softmax(logits, -1) * (means**2 + deviations**2)).sum(-1)
    torch.testing.assert_close(y.mean(-1), mean, atol=0.03, rtol=0)
    torch.testing.assert_close((y**2).mean(-1), second, atol=0.15, rtol=0)


def test_the_cross_entropy_is_least_at_the_target_itself():
    """Its gradient by every parameter is near zero there, over many samples."""
    parts = [torch.from_numpy(part).requires_grad_() for part in mixture(1, 3)]
    generator = torch.Generator().manual_seed(1)
    uniform, noise = torch.rand(1, 100_000, generator=generator), torch.randn(1, 100_000, generator=generator)
    y = mixture_sample(uniform, noise, *parts)
    mixture_cross_entropy(y, *parts).sum().backward()
    assert all(part.grad is not None and part.grad.abs().max() < 0.03 for part in parts)
    mixture_cross_entropy(y + 1.0, *parts).sum().backward()
    assert max(float(part.grad.abs().max()) for part in parts if part.grad is not None) > 0.1


def test_far_samples_do_not_overflow():
    parts = [torch.from_numpy(part).requires_grad_() for part in mixture(2, 3)]
    loss = mixture_cross_entropy(torch.full((2, 4), 1e4), *parts)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and all(torch.isfinite(present(part.grad)).all() for part in parts)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="dpg_loss: expected value_gradients of shape"):
        dpg_loss(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="expected clip > 0"):
        dpg_loss(torch.zeros(2, 3), torch.zeros(2, 3), 0.0)
    with pytest.raises(ValueError, match="expected atoms of shape"):
        categorical_mean(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="expected y without its last axis"):
        mixture_log_prob(torch.zeros(3, 1), *[torch.ones(2, 2)] * 3)


def test_no_gradient_flows_into_samples_of_a_mixtures_target() -> None:
    given = [torch.randn(4, 3, requires_grad=True) for _ in range(4)]
    samples, logits, means, deviations = given
    mixture_cross_entropy(samples, logits, means, deviations.exp()).sum().backward()
    assert samples.grad is None and all(t.grad is not None for t in given[1:])
