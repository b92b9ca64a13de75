"""A learner's memory of trajectories: first in first out, uniform, whole columns, and the same after a resume."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from modules import module_of

from shoal.api import Batch, UsageError
from shoal.envs import EnvOptions, make
from shoal.learning.actor_critic import boundaries
from shoal.learning.learner import SGDLearner
from shoal.ops import Adam, lambda_returns
from shoal.systems.impala import TrajectoryReplay

T = 3


def batch(first: int, columns: int) -> Batch:
    """Columns that carry their own number in every item: along time, per unroll, and in a recurrent state."""
    number = torch.arange(first, first + columns)
    items = {
        "obs": number.repeat(T + 1, 1)[..., None].expand(-1, -1, 2).to(torch.uint8),
        "reward": number.repeat(T, 1).float() + torch.arange(T)[:, None] / 10,
        "state/h": number[:, None].expand(-1, 5).float(),
        "state/number": number.clone(),
    }
    return Batch(items)


def test_fresh_columns_come_first_and_every_item_keeps_its_column() -> None:
    replay = TrajectoryReplay(capacity=8, ratio=2.0, seed=0)
    replay.mix(batch(10, 4))
    mixed = replay.mix(batch(20, 3)).items
    columns = mixed["state/number"].tolist()
    assert columns[:3] == [20, 21, 22] and len(columns) == 3 + 6
    assert set(columns) <= {10, 11, 12, 13, 20, 21, 22}
    assert mixed["obs"][T, :, 1].tolist() == columns
    assert mixed["reward"][T - 1].tolist() == pytest.approx([c + (T - 1) / 10 for c in columns])
    assert mixed["state/h"][:, 4].tolist() == columns


def test_what_came_first_leaves_first() -> None:
    replay = TrajectoryReplay(capacity=5, ratio=400.0, seed=1)
    for first in range(0, 12, 3):  # 12 columns through 5 places
        mixed = replay.mix(batch(first, 3))
    assert set(mixed.items["state/number"].tolist()) == {7, 8, 9, 10, 11}


def test_draws_are_uniform() -> None:
    replay = TrajectoryReplay(capacity=20, ratio=2_000.0, seed=2)
    replay.mix(batch(0, 10))
    drawn = replay.mix(batch(10, 10)).items["state/number"][10:].numpy()
    counts = np.bincount(drawn, minlength=20)
    expected = len(drawn) / 20
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_the_normaliser_counts_fresh_columns_only() -> None:
    impala = module_of("impala")
    cfg = impala.Config(env="CartPole-v1", hidden=(8,), envs=4, unroll=T, normalise_obs=True, device="cpu")
    nets = impala.network(cfg)
    replay = TrajectoryReplay(20, 2.0, 0)
    learner = SGDLearner(impala.VTrace(cfg, nets), Adam(nets.parameters()), replay=replay, progress=lambda update: 0.0)
    seen = []
    for _ in range(3):
        obs = torch.randn(T + 1, 4, 4)
        seen.append(obs[:-1].flatten(0, 1))
        flags = torch.zeros(T, 4, dtype=torch.bool)
        learner.update(Batch({
            "obs": obs, "first": torch.zeros(T + 1, 4) > 0, "action": torch.zeros(T, 4, dtype=torch.int64),
            "reward": torch.ones(T, 4), "policy": torch.zeros(T, 4, 2), "terminated": flags, "truncated": flags,
            "valid": ~flags,
        }))  # fmt: skip
    norm = nets.norms["obs"]
    assert norm.count == 3 * T * 4
    torch.testing.assert_close(norm.mean, torch.cat(seen).double().mean(0))


def test_what_is_kept_moves_to_the_device_that_the_run_goes_on_with() -> None:
    replay = TrajectoryReplay(capacity=8, ratio=1.0, seed=0)
    replay.mix(batch(0, 4))
    other = TrajectoryReplay(capacity=8, ratio=1.0, seed=1)
    other.load_state_dict(replay.state_dict(), "meta")
    assert {v.device.type for v in other.kept.values()} == {"meta"}
    same = TrajectoryReplay(capacity=8, ratio=1.0, seed=1)
    same.load_state_dict(replay.state_dict())
    assert all(torch.equal(v, replay.kept[k]) for k, v in same.kept.items())


def test_a_part_ratio_is_rounded() -> None:
    assert TrajectoryReplay(8, 0.5, 0).mix(batch(0, 4)).items["state/number"].shape == (6,)


def test_a_resumed_memory_draws_the_same() -> None:
    one, other = TrajectoryReplay(6, 3.0, seed=3), TrajectoryReplay(6, 3.0, seed=4)
    for first in (0, 4):
        one.mix(batch(first, 4))
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for first in (8, 12):
        a, b = one.mix(batch(first, 4)).items, other.mix(batch(first, 4)).items
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_impala_says_what_its_memory_takes_and_refuses_one_below_a_gradient_step() -> None:
    impala = module_of("impala")
    config = impala.Config(env="CartPole-v1", envs=4, replay=100)
    spec = impala.program(config).channels["trajectories"].spec
    item = sum(np.prod(f.shape) * np.dtype(f.dtype).itemsize for f in spec.values())
    assert impala.program(config).memory()["learner"] == 100 * item // 4
    with pytest.raises(UsageError, match=r"replay \(3 trajectories\)"):
        impala.program(impala.Config(env="CartPole-v1", envs=4, replay=3))


@pytest.mark.parametrize("life_loss", [False, True])
def test_frames_kept_once_give_the_stacks_back(life_loss: bool) -> None:
    """On episodes of at most 7 steps that begin anywhere in a trajectory, at its edges too."""
    impala = module_of("impala")
    options = EnvOptions(max_episode_steps=7, life_loss=life_loss)
    env = make("ALE/Breakout-v5", 3, options)
    rng = np.random.default_rng(0)
    replay = TrajectoryReplay(capacity=6, ratio=0.0, seed=0, stack=4)
    obs, first, began = env.reset(5), np.ones(3, bool), 0
    for _ in range(12):
        stacks, firsts = [], []
        for t in range(6):
            stacks.append(obs["obs"].copy())
            firsts.append(first.copy())
            if t < 5:  # the next trajectory begins with the last observation of this one
                step = env.step(rng.integers(0, 4, 3))
                obs, first = step.obs, ~step.valid
        items = {"obs": torch.from_numpy(np.stack(stacks)), "first": torch.from_numpy(np.stack(firsts))}
        began += int(items["first"][1:].sum())
        assert torch.equal(replay.mix(Batch(items)).items["obs"], items["obs"])
    env.close()
    assert began >= 12
    assert replay.kept["obs"].shape == (4 + 5, 6, 84, 84)
    config = impala.Config(env="ALE/Breakout-v5", envs=4, unroll=5, replay=8)
    spec = impala.program(config).channels["trajectories"].spec
    rest = sum(np.prod(f.shape) * np.dtype(f.dtype).itemsize for name, f in spec.items() if name != "obs") // 4
    assert impala.program(config).memory()["learner"] == 8 * (rest + 9 * 84 * 84)


def test_a_return_ends_where_the_environment_began_anew() -> None:
    """The step after which it did is not valid, and what comes next is of another episode: the one before looks no
    further than to its last observation."""
    rows = {name: torch.zeros(4, 1, dtype=torch.bool) for name in ("terminated", "truncated")}
    items = {**rows, "valid": torch.tensor([[True], [True], [False], [True]])}
    value, reward = torch.tensor([[1.0], [2.0], [3.0], [50.0], [60.0]]), torch.ones(4, 1)
    discounts, next_values, cut = boundaries(items, value, 0.5)
    returns = lambda_returns(reward, discounts, next_values, cut, 1.0)
    assert returns[:2, 0].tolist() == [1 + 0.5 * (1 + 0.5 * 3.0), 1 + 0.5 * 3.0]
