import math

import numpy as np
import pytest
import torch
from torch import distributions as D

from shoal.api import Action
from shoal.nets import ActionDistribution
from shoal.nets.distributions import sample_categorical
from shoal.nets.outputs import detached

DISCRETE = Action("discrete", (5,))
MULTI = Action("multi_discrete", (3, 2, 4))
BOX = Action("continuous", low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))


def reference(action, params):
    if action.kind == "discrete":
        return D.Categorical(logits=params)
    mean, log_std = params.chunk(2, -1)
    return D.Independent(D.Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("action", [DISCRETE, MULTI, BOX], ids=str)
@pytest.mark.parametrize("lead", [(), (4,), (3, 4)])
def test_against_torch_distributions(action, lead):
    dist = ActionDistribution(action)
    params = torch.randn(*lead, dist.params_size, requires_grad=True)
    sample = dist.sample(params)
    assert sample.shape == (*lead, *action.shape) and str(sample.dtype) == f"torch.{action.dtype}"
    assert dist.mode(params).shape == sample.shape and dist.mode(params).dtype == sample.dtype
    assert not sample.requires_grad
    if action.kind == "multi_discrete":
        parts = [D.Categorical(logits=p) for p in params.split([3, 2, 4], -1)]
        log_prob = sum(d.log_prob(sample[..., i]) for i, d in enumerate(parts))
        entropy = sum(d.entropy() for d in parts)
    else:
        log_prob, entropy = reference(action, params).log_prob(sample), reference(action, params).entropy()
    torch.testing.assert_close(dist.log_prob(params, sample), log_prob)
    torch.testing.assert_close(dist.entropy(params), entropy)
    mine, theirs = (
        torch.autograd.grad((a + 2 * b).sum(), params, retain_graph=True)[0]
        for a, b in ((dist.log_prob(params, sample), dist.entropy(params)), (log_prob, entropy))
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_gaussian_worked_number():
    dist = ActionDistribution(Action("continuous", low=(-1.0,) * 2, high=(1.0,) * 2))
    assert dist.params_size == 4
    got = dist.log_prob(torch.zeros(4), torch.tensor([0.5, 0.5]))
    assert got.item() == pytest.approx(-2.087877, abs=1e-6)


@pytest.mark.parametrize("probs", [[0.3, 0.7], [0.1, 0.2, 0.7], [0.05] * 18 + [0.1]])
def test_frequencies(probs):
    g = torch.Generator().manual_seed(3)
    p = torch.tensor(probs)
    drawn = sample_categorical(p.log().expand(40_000, -1), g)
    got = torch.bincount(drawn, minlength=len(p)) / len(drawn)
    assert (got - p).abs().max() < 0.01


@pytest.mark.parametrize("actions", [2, 3])
def test_generator_repeats_and_impossible_actions_are_never_drawn(actions):
    logits = torch.zeros(5000, actions)
    logits[:, 0] = -float("inf")
    draws = [sample_categorical(logits, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*draws) and draws[0].min() == 1
    dist = ActionDistribution(Action("discrete", (actions,)))
    assert torch.allclose(dist.entropy(logits), torch.tensor(float(actions - 1)).log())


def test_gaussian_moments():
    dist = ActionDistribution(Action("continuous", low=(-1.0,), high=(1.0,)))
    x = dist.sample(torch.tensor([3.0, 0.5]).expand(50_000, 2), torch.Generator().manual_seed(0))
    assert x.mean().item() == pytest.approx(3.0, abs=0.03)
    assert x.std().log().item() == pytest.approx(0.5, abs=0.02)


def test_bf16_parameters_give_float32():
    dist = ActionDistribution(DISCRETE)
    params = torch.randn(4, 5).bfloat16()
    assert dist.entropy(params).dtype == torch.float32


def test_entropies_of_the_sheet():
    """a3c-unreal.md 4.2 and 4.4: of three actions, and of a Gaussian in one dimension."""
    three, line = (
        ActionDistribution(Action("discrete", (3,))),
        ActionDistribution(Action("continuous", (), (-1.0,), (1.0,))),
    )
    for probs, entropy in (([0.7, 0.2, 0.1], 0.801819), ([1 / 3] * 3, 1.098612)):
        assert three.entropy(torch.tensor(probs).log()).item() == pytest.approx(entropy, abs=1e-6)
    for variance, entropy in ((1.0, 1.418939), (0.25, 0.725791)):
        params = torch.tensor([0.0, 0.5 * math.log(variance)])
        assert line.entropy(params).item() == pytest.approx(entropy, abs=1e-6)


@pytest.mark.parametrize("actions", [2, 32, 33, 40])
@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
def test_discrete_log_probabilities_and_entropies_are_those_of_a_loop(actions: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    logits, action = rng.normal(size=(*shape, actions)), rng.integers(actions, size=shape)
    dist = ActionDistribution(Action("discrete", sizes=(actions,)))
    log_prob, entropy = dist.evaluate(torch.from_numpy(logits), torch.as_tensor(action))
    assert log_prob.shape == entropy.shape == shape
    for at in np.ndindex(*shape):
        probs = np.exp(logits[at]) / np.exp(logits[at]).sum()
        assert float(log_prob[at]) == pytest.approx(np.log(probs[action[at]]))
        assert float(entropy[at]) == pytest.approx(-(probs * np.log(probs)).sum())
    assert torch.equal(dist.log_prob(torch.from_numpy(logits), torch.as_tensor(action)), log_prob)
    assert torch.equal(dist.entropy(torch.from_numpy(logits)), entropy)


def test_what_is_detached_is_outside_of_autograd_and_takes_its_gradient_back() -> None:
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    values, backward = detached(leaf * 3.0)
    assert not values.requires_grad and values.tolist() == [3.0, 6.0]
    backward(torch.tensor([1.0, 10.0]))
    assert leaf.grad is not None and leaf.grad.tolist() == [3.0, 30.0]
