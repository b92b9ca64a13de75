"""The cross-entropy method against the loop of this folder, and the worked numbers of QT-Opt's sheet."""

import numpy as np
import oracles
import pytest
import torch

from shoal.ops import SGD, cem


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "iterations, samples, elites, floor", [(1, 5, 2, 0.0), (2, 16, 4, 0.0), (3, 16, 16, 0.3), (3, 12, 3, 0.6)]
)
def test_cem_is_the_slow_loop(shared, iterations, samples, elites, floor):
    """Also where all problems have the same noise."""
    rng = np.random.default_rng(0)
    rows, size = 3, 2
    noise = rng.standard_normal((iterations, 1 if shared else rows, samples, size))
    centre, slope = rng.uniform(-1.2, 1.2, (rows, size)), rng.uniform(0.5, 2.0, (rows, size))

    def score(points):
        return -(torch.tensor(slope)[:, None] * (points - torch.tensor(centre)[:, None]).square()).sum(-1)

    found = cem(score, torch.from_numpy(noise), elites, floor)
    whole = np.broadcast_to(noise, (iterations, rows, samples, size))
    points, scores = oracles.cem(lambda b, a: -(slope[b] * (a - centre[b]) ** 2).sum(), whole, elites, floor)
    np.testing.assert_allclose(found.points.numpy(), points, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.scores.numpy(), scores, rtol=0, atol=1e-12)


def worked():
    """qt-opt.md 4.5: -|a - (.5, -.3)|^2 with 64 samples, 6 elites, NumPy's RandomState(0)."""
    rng = np.random.RandomState(0)
    noise = torch.from_numpy(np.stack([rng.randn(64, 2), rng.randn(64, 2)])[:, None])
    return noise, lambda points: -(points - torch.tensor([0.5, -0.3], dtype=torch.float64)).square().sum(-1)


def test_qt_opt_item_5():
    """The elites' mean and deviation after one iteration, and the best sample of two."""
    noise, score = worked()
    first = noise[0].clamp(-1, 1)
    elites = first[0, score(first)[0].topk(6).indices]
    assert elites.mean(0).tolist() == pytest.approx([0.541993, -0.241860], abs=1e-6)
    assert elites.std(0).tolist() == pytest.approx([0.391010, 0.274964], abs=1e-6)
    best = cem(score, noise, 6)
    assert best.points[0].tolist() == pytest.approx([0.490035, -0.323742], abs=1e-6)
    assert best.scores.item() == pytest.approx(-0.000663, abs=1e-6)
    assert best.scores >= cem(score, noise[:1], 6).scores, "more iterations never make it worse"


def test_qt_opt_item_6():
    """Any monotone transform of the score finds the same point."""
    noise, score = worked()
    assert torch.equal(cem(score, noise, 6).points, cem(lambda points: score(points).sigmoid(), noise, 6).points)


def test_cem_stays_in_the_box_and_finds_its_corners():
    noise = torch.randn(3, 50, 64, 2, generator=torch.Generator().manual_seed(0))
    best = cem(lambda points: points.sum(-1), noise, 6)
    assert best.points.abs().max() <= 1.0
    assert (best.scores == 2.0).all()


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ValueError, match="from 2 to 4 elites, found 1"):
        cem(lambda points: points.sum(-1), torch.zeros(1, 1, 4, 1), 1)
    with pytest.raises(ValueError, match="of shape"):
        cem(lambda points: points.sum(-1), torch.zeros(1, 4, 1), 2)


@pytest.mark.parametrize("momentum, decay", [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1)])
def test_sgd_is_that_of_torch(momentum, decay):
    rng = torch.Generator().manual_seed(0)
    start, grads = torch.randn(7, generator=rng), torch.randn(5, 7, generator=rng)
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    mine = SGD([ours], 0.1, momentum, decay)
    other = torch.optim.SGD([theirs], 0.1, momentum=momentum, weight_decay=decay)
    for gradient in grads:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        other.step()
    torch.testing.assert_close(ours, theirs)
