"""Boxes of actions and ranges of returns: what follows from what, and which are refused."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from helpers import config
from modules import module_of

from shoal.api import UsageError
from shoal.cli.main import main
from shoal.run import changes
from shoal.systems import d4pg, load
from shoal.systems.d4pg import possible_returns as return_range


class Boxed(gym.Env[Any, Any]):
    """Rewards of ``reward`` in every step, episodes of 20; with ``last`` they terminate, with that reward."""

    def __init__(
        self, low: float | list[float] = -1.0, high: float | list[float] = 1.0, reward: float = 1.0,
        last: float | None = None, dtype: str = "float32",
    ) -> None:  # fmt: skip
        self.observation_space = gs.Box(-1, 1, (2,))
        lowest, highest = (np.atleast_1d(side).astype(dtype) for side in (low, high))
        self.action_space = gs.Box(lowest, highest, dtype=np.dtype(dtype).type)
        self.reward, self.last = reward, last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.time += 1
        obs, ended = np.full(2, self.time / 20, np.float32), self.time == 20
        if self.last is None:
            return obs, self.reward, False, ended, {}
        return obs, self.last if ended else self.reward, ended, False, {}


def same_step(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Boxed] * num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def boxed(system: str, fields: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    return config(system, env=f"{__name__}:Boxed", env_kwargs=kwargs, **(fields or {}))


@pytest.mark.parametrize("system", ["apex-dpg", "d4pg"])
@pytest.mark.parametrize("bounds", [dict(high=math.inf), dict(low=-math.inf), dict(low=-math.inf, high=math.inf)])
def test_an_unbounded_box_is_refused(system: str, bounds: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{system} needs a box of actions with all bounds; .*Boxed has Box"):
        load(system).program(boxed(system, **bounds))


def test_bounds_beyond_those_of_float32_are_none() -> None:
    with pytest.raises(UsageError, match="needs a box of actions with all bounds"):
        d4pg.program(boxed("d4pg", dtype="float64", low=-1e300, high=1e300))


@pytest.mark.parametrize("system", ["apex-dpg", "qt-opt"])
def test_a_critic_does_not_depend_on_an_action_that_cannot_change(system: str) -> None:
    """It sees 0 there, always; what it would say of anything else is noise, which a policy would climb."""
    cfg = boxed(system, low=[-1.0, 0.5], high=[1.0, 0.5])
    nets = module_of(system).network(cfg)
    critic = nets.critic
    assert critic is not None
    features, actions = torch.randn(6, nets.encoder.features), torch.randn(6, 2).tanh()
    elsewhere = actions * torch.tensor([1.0, -1.0])
    assert torch.equal(critic(features, actions), critic(features, elsewhere))
    assert not torch.equal(critic(features, actions), critic(features, -actions))


@pytest.mark.parametrize("fields, reward, sentence", [
    (dict(v_min=3.0, v_max=3.0), 1.0, "v_min must be below v_max; found 3 and 3"),
    (dict(v_min=5.0, v_max=-5.0), 1.0, "v_min must be below v_max; found 5 and -5"),
    (dict(v_min=5.0, v_max=-5.0, critic="mean"), 1.0, "v_min must be below v_max; found 5 and -5"),
    (dict(v_min=-50.0, v_max=-10.0), 1.0, r"no return of .* under random play lies from -50 to -10 .*from 1 to 100"),
    (dict(v_min=10.0, v_max=50.0), -1.0, r"from 10 to 50 .*rewards from -1 to -1 .* returns from -100 to -1"),
    (dict(v_min=-100.0, v_max=0.0), 1.0, "no return of .* lies from -100 to 0"),
    (dict(v_min=0.0, v_max=100.0), -1.0, "no return of .* lies from 0 to 100"),
    (dict(gamma=1.0, v_min=-50.0, v_max=-10.0), 1.0, "no return of .* make returns from 1 to inf at --gamma 1"),
    (dict(v_min=300.0), 1.0, "no return of"),
    (dict(v_min=-1e39, v_max=1e39), 1.0, "v_min and v_max expect numbers with 51 returns of float32 between them"),
    (dict(v_min=0.0, v_max=1e-46, gamma=0.0), 0.0, "51 returns of float32 between them, found 0.0 and 1e-46"),
    (dict(reward_range=(2.0, 1.0)), 1.0, "reward_range expects the smaller reward first, found 2 and 1"),
    (dict(reward_range=(1.0, 1.0)), 1.0, "reward_range expects the smaller reward first, found 1 and 1"),
    (dict(reward_range=(-2.0, 1.0), v_min=200.0), 1.0, "makes returns from 200 to 100: expected the smaller first"),
    (dict(reward_range=(-17.0, -2.0), v_max=-200.0, reward_clip="unit"), 1.0, "-2, clipped and scaled to -1 to -1"),
    (dict(reward_range=(-1.0, -0.5)), 1.0, "no return of .* lies from -100 to 0"),
    (dict(critic="mixture", v_min=-1e39, v_max=1e39), 1.0, "v_min and v_max expect numbers with 2 returns of float32"),
    (dict(gamma=1.0), 1.0, "with --gamma 1 the range of returns does not follow from rewards"),
    (dict(atoms=1), 1.0, "--atoms expects at least 2 returns, found 1"),
])  # fmt: skip
def test_a_range_of_returns_that_cannot_be_is_refused(fields: Any, reward: float, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as refusal:
        d4pg.program(boxed("d4pg", fields, reward=reward))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("reward, low, high, words", [
    (1.0, -10.0, 110.0, "rewards from 1 to 1 in 1,000 random steps"), (-2.0, -220.0, 20.0, "rewards from -2 to -2"),
    (0.0, -10.0, 110.0, "rewards assumed from 0 to 1, as 1,000 random steps gave none"),
])  # fmt: skip
def test_a_range_of_returns_follows_from_rewards(reward: float, low: float, high: float, words: str) -> None:
    """r / (1 - gamma), 0 included, and a tenth more on either side; what is given stays."""
    cfg = boxed("d4pg", reward=reward)
    found = return_range.return_range(cfg.env, cfg, 0.99, None, None)
    assert found[:2] == pytest.approx((low, high)) and words in found[2] and "--v-min" in found[2]
    found = return_range.return_range(cfg.env, cfg, 0.99, -7.0, None)
    assert found[:2] == pytest.approx((-7.0, high))
    within = sorted((-7.0, 100 * reward))
    assert return_range.return_range(cfg.env, cfg, 0.99, min(within) - 1, max(within) + 1)[2] == ""
    assert return_range.return_range(cfg.env, cfg, 1.0, -7.0, 8.0) == (-7.0, 8.0, "")


@pytest.mark.parametrize("reward, last, low, high, words", [
    (-1.0, 100.0, -100.0 - 19.9, 99.0 + 19.9, "from -1 to -1 .* and once one that ends an episode, from 100 to 100"),
    (0.0, -5.0, -5.0 - 0.5, 0.5, "from 0 to 0 .* from -5 to -5"),
    (0.0, 0.5, -10.0, 110.0, "rewards assumed from 0 to 1, as 1,000 random steps gave no more than 0.5"),
    (0.04, 0.04, -10.0, 110.0, "rewards assumed from 0 to 1, as 1,000 random steps gave no more than 0.04"),
])  # fmt: skip
def test_the_reward_that_ends_an_episode_counts_once(
    reward: float, last: float, low: float, high: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And rewards between 0 and 1 may be as large as 1, though random play earns little."""
    monkeypatch.setattr(return_range, "_seen", {})
    cfg = boxed("d4pg", reward=reward, last=last)
    found = return_range.return_range(cfg.env, cfg, 0.99, None, None)
    assert found[:2] == pytest.approx((low, high)) and re.search(words, found[2])


@pytest.mark.parametrize("reward, rewards, low, high", [
    (-0.7, (-1.0, -0.5), -100.0, 0.0), (1.5, (1.0, 2.0), 0.0, 200.0), (-1.0, (-2.0, 0.0), -200.0, 0.0),
])  # fmt: skip
def test_behind_a_terminal_state_is_0(reward: float, rewards: tuple[float, float], low: float, high: float) -> None:
    """An episode that ends soon is worth little, also where each reward is far from 0."""
    cfg = boxed("d4pg", reward=reward)
    assert return_range.return_range(cfg.env, cfg, 0.99, None, None, rewards)[:2] == pytest.approx((low, high))


@pytest.mark.parametrize("fields, low, high, words", [
    ({}, -200.0, 1_500.0, "rewards from -2 to 15 (reward_range), divided by 1 - gamma"),
    (dict(gamma=0.9), -20.0, 150.0, "rewards from -2 to 15"),
    (dict(reward_scale=0.1), -20.0, 150.0, "rewards from -0.2 to 1.5"),
    (dict(reward_scale=-1.0), -1_500.0, 200.0, "rewards from -15 to 2"),
    (dict(reward_clip="unit"), -100.0, 100.0, "rewards from -1 to 1"),
    (dict(v_max=700.0), -200.0, 700.0, "rewards from -2 to 15"),
])  # fmt: skip
def test_a_range_follows_from_given_rewards(fields: Any, low: float, high: float, words: str) -> None:
    cfg = boxed("d4pg", fields, reward=1.0)
    found = return_range.return_range(cfg.env, cfg, cfg.gamma, cfg.v_min, cfg.v_max, (-2.0, 15.0))
    assert found[:2] == pytest.approx((low, high), rel=1e-6) and words in found[2] and "--v-min" in found[2]


def test_what_is_assumed_of_rewards_is_scaled_as_they_are() -> None:
    cfg = boxed("d4pg", dict(reward_scale=10.0), reward=0.05)
    low, high, told = return_range.return_range(cfg.env, cfg, 0.99, None, None)
    assert (low, high) == pytest.approx((-100.0, 1_100.0)) and "assumed from 0 to 10" in told


def test_a_range_without_what_random_play_earns_is_told() -> None:
    """It may be right, where episodes are short: it is told, not refused."""
    cfg = boxed("d4pg", reward=1.0)
    low, high, told = return_range.return_range(cfg.env, cfg, 0.99, -7.0, 8.0)
    assert (low, high) == (-7.0, 8.0) and "earns 1 a step, which for ever is a return of 100" in told


@pytest.mark.parametrize("fields, kept", [
    ({}, False), (dict(reward_range=(-1.0, 2.0)), False), (dict(critic="mean"), True), (dict(v_min=-9.0), False),
    (dict(v_min=-9.0, v_max=90.0), True), (dict(v_min=-9.0, v_max=90.0, critic="mixture"), True),
])  # fmt: skip
@pytest.mark.parametrize("change", [dict(gamma=0.9), dict(reward_scale=0.1)])
def test_what_changes_the_range_of_a_run_is_refused(fields: dict[str, Any], kept: bool, change: dict[str, Any]) -> None:
    cfg = boxed("d4pg", fields, reward=1.0)
    values = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)}
    if kept:
        changes.check(d4pg, values, change, "local", Path("run"), True)
        return
    with pytest.raises(UsageError, match=r"cannot change when a run goes on, it changes what was saved \(returns/"):
        changes.check(d4pg, values, change, "local", Path("run"), True)


def test_a_range_of_rewards_is_given_as_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("-17 0", "-17,0"):
        assert main(["config", "d4pg", "--env", "Pendulum-v1", "--toml", "--reward-range", *words.split()]) == 0
        assert "reward_range = [-17.0, 0.0]" in capsys.readouterr().out
    assert main(["config", "d4pg", "--env", "Pendulum-v1", "--reward-range", "1"]) == 2
    assert "--reward-range expects 2 values or none, found '1'" in capsys.readouterr().err


def test_a_flat_critic_of_qt_opt_does_not_depend_on_it_either() -> None:
    nets = module_of("qt-opt").network(boxed("qt-opt", dict(hidden=()), low=[-1.0, 0.5], high=[1.0, 0.5]))
    features, actions = torch.randn(6, nets.encoder.features), torch.randn(6, 2).tanh()
    assert torch.equal(nets.critic(features, actions), nets.critic(features, actions * torch.tensor([1.0, -1.0])))
