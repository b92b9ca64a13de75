from typing import cast

import numpy as np
import pytest
import torch

from shoal.api import UsageError
from shoal.nets import RewardScaler, RunningNorm, running_norms
from shoal.nets.normaliser import normalised, seen
from shoal.ops import merge_moments, moments


def test_running_norm_is_numpy_on_everything_seen():
    rng = np.random.default_rng(0)
    norm = RunningNorm((3,))
    parts = [rng.normal(1e4, 2.0, (*lead, 3)).astype(np.float32) for lead in ((5, 4), (1,), (7,))]
    for part in parts:
        norm.update(torch.from_numpy(part))
    everything = np.concatenate([p.reshape(-1, 3) for p in parts]).astype(np.float64)
    np.testing.assert_allclose(norm.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.var, everything.var(0), rtol=1e-9)
    assert norm.count == len(everything)
    got = norm(torch.from_numpy(everything).float())
    assert got.dtype == torch.float32
    want = (everything - everything.mean(0)) / np.sqrt(everything.var(0) + 1e-8)
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_merge_order_and_masks():
    x, mask = torch.randn(6, 4, 2), torch.rand(6, 4) < 0.5
    a, b, c = RunningNorm((2,)), RunningNorm((2,)), RunningNorm((2,))
    a.update(x, mask)
    b.update(x[mask])
    torch.testing.assert_close(a.var, b.var)
    c.update(torch.randn(9, 2))
    one, two = RunningNorm((2,)), RunningNorm((2,))
    for target, order in ((one, (a, c)), (two, (c, a))):
        for other in order:
            target.merge(other.mean, other.var, other.count)
    torch.testing.assert_close(one.var, two.var)
    torch.testing.assert_close(one.mean, two.mean)


def test_fresh_norm_only_clips_and_empty_updates_change_nothing():
    norm = RunningNorm((), clip=10)
    norm.update(torch.zeros(0))
    norm.merge(norm.mean, norm.var, 0)
    norm.merge(torch.tensor(torch.nan, dtype=torch.float64), norm.var, 5)
    assert norm.count == 0
    torch.testing.assert_close(norm(torch.tensor([0.5, 99.0, -99.0])), torch.tensor([0.5, 10.0, -10.0]))


def test_statistics_are_saved_and_forward_freezes_them():
    norm = RunningNorm((2,))
    norm.update(torch.randn(10, 2))
    copy = RunningNorm((2,))
    copy.load_state_dict(norm.state_dict())
    before = copy.mean.clone()
    x = torch.randn(3, 2)
    assert torch.equal(copy(x), norm(x)) and torch.equal(copy.mean, before)


@pytest.mark.parametrize("split", [[8], [3, 5]])
def test_reward_scaler(split):
    rng = np.random.default_rng(1)
    reward = rng.normal(size=(8, 3)).astype(np.float32)
    cut = rng.random((8, 3)) < 0.3
    returns, running = np.zeros((8, 3)), np.zeros(3)
    for t in range(8):
        running = 0.9 * running + reward[t]
        returns[t] = running
        running[cut[t]] = 0
    scaler, start = RewardScaler(0.9, clip=1.5), 0
    for n in split:
        rows = slice(start, start + n)
        got = scaler(torch.from_numpy(reward[rows]), torch.from_numpy(cut[rows]))
        start += n
    want = np.clip(reward[rows] / np.sqrt(returns.var() + 1e-8), -1.5, 1.5)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(scaler.stats.var, returns.var(), rtol=1e-10)


def test_a_name_that_no_part_of_a_network_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"without a dot in their names, found 'obs/a\.b'"):
        running_norms(["obs/a", "obs/a.b"], lambda name: RunningNorm((2,)))
    assert set(running_norms(["obs/a", "obs/b"], lambda name: RunningNorm((2,)))) == {"obs/a", "obs/b"}


@pytest.mark.parametrize("part", [0, 1], ids=["mean", "variance"])
@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_moments_of_which_one_is_not_finite_change_nothing(part: int, wrong: float) -> None:
    mean, var, count = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor(5.0)
    new = [torch.tensor([7.0, 8.0]), torch.tensor([9.0, 10.0])]
    new[part][1] = wrong
    merge_moments(mean, var, count, new[0], new[1], 6.0)
    assert (mean.tolist(), var.tolist(), count.item()) == ([1.0, 2.0], [3.0, 4.0], 5.0)


def test_moments_join_as_those_of_all_rows_by_hand() -> None:
    """1, 3 and 5, 7, 9: a mean of 5 and squared deviations of 16, 4, 0, 4, 16."""
    mean, var, count = (t.clone() for t in moments(torch.tensor([1.0, 3.0])))
    assert (mean.item(), var.item(), count.item()) == (2.0, 1.0, 2.0)
    merge_moments(mean, var, count, *moments(torch.tensor([5.0, 7.0, 9.0])))
    np.testing.assert_allclose([mean, var, count], [5.0, 8.0, 5.0], rtol=1e-14)
    zeros = moments(torch.zeros(0, 2))
    assert [z.tolist() for z in zeros] == [[0.0, 0.0], [0.0, 0.0], 0.0]


def test_a_segment_tells_the_moments_of_what_was_acted_on() -> None:
    """Of two steps and the observation after them, in two environments, of which one ignored its second action."""
    obs = torch.tensor([[1.0, 2.0], [3.0, 50.0], [70.0, 90.0]])[..., None]
    items = {"obs/a": obs, "obs/b": 10 * obs, "valid": torch.tensor([[True, True], [True, False]])}
    told = seen(running_norms(["obs/a"], lambda name: RunningNorm((1,))), items)
    assert set(told) == {"norms.obs/a.mean", "norms.obs/a.var", "norms.obs/a.count"}
    np.testing.assert_allclose(torch.stack([t.squeeze() for t in told.values()]), [2.0, 2 / 3, 3.0], rtol=1e-14)


def test_observations_without_statistics_stay_as_they_are() -> None:
    norms = running_norms(["obs/a"], lambda name: RunningNorm((1,)))
    cast(RunningNorm, norms["obs/a"]).update(torch.tensor([[1.0], [3.0]]))
    got = normalised(norms, {"obs/a": torch.tensor([[5.0]]), "obs/b": torch.tensor([[5.0]])})
    np.testing.assert_allclose(got["obs/a"], [[3.0]], rtol=1e-6)
    assert got["obs/b"].item() == 5.0


def test_the_least_variance_bounds_what_a_deviation_is_multiplied_by() -> None:
    norm = RunningNorm((), epsilon=0.0, floor=0.25)
    norm.update(torch.tensor([1.0, 1.2]))  # a variance of 0.01
    assert norm.scale().item() == 2.0
    norm.update(torch.tensor([1.1, 9.1]))
    np.testing.assert_allclose(norm.scale(), 1 / np.std([1.0, 1.2, 1.1, 9.1]), rtol=1e-6)


def test_returns_are_carried_from_call_to_call_unless_the_columns_are_others() -> None:
    scaler, no = RewardScaler(0.5), torch.zeros(1, 2, dtype=torch.bool)
    assert scaler.returns(torch.tensor([[8.0, 4.0]]), no).tolist() == [[8.0, 4.0]]
    assert scaler.returns(torch.tensor([[1.0, 1.0]]), torch.tensor([[True, False]])).tolist() == [[5.0, 3.0]]
    assert scaler.carried is not None and scaler.carried.tolist() == [0.0, 3.0]
    other = RewardScaler(0.5)
    other.carried = scaler.carried
    assert other.returns(torch.tensor([[1.0, 1.0]]), no).tolist() == [[1.0, 2.5]]
    assert other.returns(torch.tensor([[1.0] * 3]), torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[1.0] * 3]
