import pytest
import torch

from shoal.nets import PopArt

ALL = torch.ones(20, 4, dtype=torch.bool)


def returns(seed, size, mean):
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(seed)) * size + mean


@pytest.fixture
def head():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)


def test_update_changes_no_value(head):
    scale, features = PopArt(), torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    before = scale.value(head(features)).detach()
    for k in range(5):
        scale.update(head, returns(k, 300.0, -500.0 * k), ALL)
    after = scale.value(head(features)).detach()
    bound = 50 * 5 * torch.finfo(torch.float32).eps * float(scale.spread() + scale.mean.abs())
    assert float((after - before).abs().max()) < bound


def test_moments_are_plain_means_until_the_step_is_reached(head):
    scale, batches = PopArt(step=0.01), [returns(k, 2.0, 7.0) for k in range(10)]
    for batch in batches:
        scale.update(head, batch, ALL)
    joined = torch.stack(batches).double()
    assert float(scale.mean) == pytest.approx(float(joined.mean()))
    assert float(scale.spread()) == pytest.approx(float(joined.std(correction=0)))


def test_a_late_update_moves_the_mean_by_the_step(head):
    scale = PopArt(step=0.5)
    for value in (0.0, 0.0, 8.0):
        scale.update(head, torch.full((20, 4), value), ALL)
    assert float(scale.mean) == pytest.approx(4.0)


def test_rows_that_do_not_count_and_returns_that_are_not_finite_change_nothing(head):
    scale, mask = PopArt(), ALL.clone()
    mask[0] = False
    rows = returns(0, 1.0, 0.0)
    scale.update(head, rows, mask)
    mean = float(scale.mean)
    assert mean == pytest.approx(float(rows[1:].double().mean()))
    scale.update(head, torch.full((20, 4), torch.inf), ALL)
    assert float(scale.mean) == mean


def test_spread_with_is_the_spread_after_the_update(head):
    scale, rows = PopArt(), returns(3, 40.0, 9.0)
    told = float(scale.spread_with(rows, ALL))
    assert told != float(scale.spread())
    scale.update(head, rows, ALL)
    assert told == float(scale.spread())
