import numpy as np
import pytest
import torch

from shoal.api import UsageError
from shoal.nets import RewardScaler, RunningNorm, running_norms


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
