"""One meaning of an episode's end, whatever the environment's own autoreset mode is."""

from __future__ import annotations

from pathlib import Path

import counting_env as counting
import numpy as np
import pytest

from shoal.api import EnvStep, Episode
from shoal.envs import EnvOptions, make

FILE = str(Path(__file__).parent / "counting_env.py")
NUM = 5


def factory(name: str) -> str:
    return f"{FILE}:{name}"


def episode(env: int, index: int) -> Episode:
    n = counting.length(env, index)
    info = {"length": n, "third": 0.5} | ({"odd": 1.0} if env % 2 else {})
    return Episode(sum(counting.reward(env, index, t) for t in range(1, n + 1)), n, info)


class Oracle:
    """What each row must be, one environment at a time."""

    def __init__(self) -> None:
        self.episode = np.zeros(NUM, int)
        self.t = np.zeros(NUM, int)
        self.over = np.zeros(NUM, bool)

    def step(
        self, same_step: bool
    ) -> tuple[list[list[float]], list[list[float]], list[tuple[float, bool, bool, bool]]]:
        obs: list[list[float]] = []
        final: list[list[float]] = []
        rows: list[tuple[float, bool, bool, bool]] = []
        self.episodes = []
        for i in range(NUM):
            if self.over[i]:
                self.over[i], self.t[i] = False, 0
                self.episode[i] += 1
                obs.append([i, self.episode[i], 0])
                final.append([0, 0, 0])
                rows.append((0.0, False, False, False))
                continue
            e = int(self.episode[i])
            self.t[i] += 1
            end, term = self.t[i] == counting.length(i, e), counting.terminates(i, e)
            last: list[float] = [i, e, int(self.t[i])]
            rows.append((counting.reward(i, e, int(self.t[i])), end and term, end and not term, True))
            if end:
                self.episodes.append(episode(i, e))
            if end and same_step:
                self.episode[i], self.t[i] = e + 1, 0
                obs.append([i, e + 1, 0])
            else:
                self.over[i] = end
                obs.append(last)
            final.append(last if end else [0, 0, 0])
        return obs, final, rows


def check(step: EnvStep, oracle: Oracle, same_step: bool) -> None:
    obs, final, rows = oracle.step(same_step)
    np.testing.assert_array_equal(step.obs["obs"], obs)
    got = list(
        zip(step.reward.tolist(), step.terminated.tolist(), step.truncated.tolist(), step.valid.tolist(), strict=True)
    )
    assert got == [tuple(map(float, r[:1])) + r[1:] for r in rows]
    assert step.episodes == oracle.episodes
    assert step.reward.dtype == np.float32
    assert all(a.dtype == np.bool_ for a in (step.terminated, step.truncated, step.valid))
    if not same_step:
        assert step.final_obs is None
        return
    assert step.final_obs is not None
    ended = step.terminated | step.truncated
    np.testing.assert_array_equal(step.final_obs["obs"][ended], np.array(final)[ended])


@pytest.mark.parametrize(
    "name, mode",
    [("next_step", "next_step"), ("same_step", "same_step"), ("disabled", "same_step"), ("Stacked", "same_step")],
)
def test_vector_factory(name: str, mode: str) -> None:
    batch = make(factory(name), NUM, EnvOptions())
    assert (batch.spec.autoreset, batch.spec.backend) == (mode, "gymnasium-vector")
    for seed in (3, 4):  # a second reset forgets the first run
        oracle = Oracle()
        first = batch.reset(seed)["obs"]
        np.testing.assert_array_equal(first, [[i, 0, 0] for i in range(NUM)])
        for _ in range(60):
            check(batch.step(np.zeros(NUM, np.int64)), oracle, mode == "same_step")
    batch.close()


def test_single_factory_is_next_step() -> None:
    batch = make(factory("Counting"), 1, EnvOptions(env_kwargs={"index": 2}))
    assert (batch.spec.autoreset, batch.spec.backend) == ("next_step", "gymnasium")
    batch.reset(0)
    episodes: list[Episode] = []
    for _ in range(40):
        episodes += batch.step(np.zeros(1, np.int64)).episodes
    assert episodes == [episode(2, k) for k in range(len(episodes))] and len(episodes) > 5


def test_arrays_of_single_factories_survive_the_next_step() -> None:
    batch = make(factory("Counting"), 3, EnvOptions())
    kept = batch.reset(0)["obs"]
    before = kept.copy()
    batch.step(np.zeros(3, np.int64))
    np.testing.assert_array_equal(kept, before)


@pytest.mark.parametrize("name", ["next_step", "same_step", "disabled"])
def test_last_action_and_reward(name: str) -> None:
    batch = make(factory(name), NUM, EnvOptions(last_action_reward=True, reward_clip="unit"))
    obs = batch.reset(0)
    assert not obs["obs/last_action"].any() and not obs["obs/last_reward"].any()
    assert set(obs) == set(batch.spec.observations) == {"obs", "obs/last_action", "obs/last_reward"}
    rng = np.random.default_rng(0)
    for _ in range(40):
        action = rng.integers(1, 5, NUM)
        step = batch.step(action)
        first = step.obs["obs"][:, 2] == 0
        np.testing.assert_array_equal(step.obs["obs/last_action"][:, 0], np.where(first, 0, action))
        np.testing.assert_array_equal(step.obs["obs/last_reward"][:, 0], np.where(first, 0, step.reward))
        if step.final_obs is not None:
            ended = step.terminated | step.truncated
            np.testing.assert_array_equal(step.final_obs["obs/last_action"][ended, 0], action[ended])
            np.testing.assert_array_equal(step.final_obs["obs/last_reward"][ended, 0], step.reward[ended])
        for name, like in batch.spec.observations.items():
            assert step.obs[name].shape[1:] == like.shape and step.obs[name].dtype == like.dtype


@pytest.mark.parametrize("clip", ["sign", "unit"])
def test_clipping_is_for_training_only(clip: str) -> None:
    raw, clipped = (make(factory("next_step"), NUM, EnvOptions(reward_clip=c)) for c in ("none", clip))  # type: ignore[arg-type]
    raw.reset(0)
    clipped.reset(0)
    for _ in range(30):
        a, b = raw.step(np.zeros(NUM, np.int64)), clipped.step(np.zeros(NUM, np.int64))
        np.testing.assert_array_equal(b.reward, np.sign(a.reward) if clip == "sign" else np.clip(a.reward, -1, 1))
        assert a.episodes == b.episodes


@pytest.mark.parametrize(
    "name, mode", [("next_step", "next_step"), ("same_step", "same_step"), ("Counting", "next_step")]
)
def test_what_goes_on_is_told_of_every_environment(name: str, mode: str) -> None:
    """The return and the length until now; nothing of an episode that has not begun."""
    batch = make(factory(name), NUM, EnvOptions())
    batch.reset(0)
    total, length = np.zeros(NUM), np.zeros(NUM, int)
    for _ in range(40):
        assert [tuple(e) for e in batch.so_far()] == [
            (float(r), int(n), {}) for r, n in zip(total, length, strict=True)
        ]
        step = batch.step(np.zeros(NUM, np.int64))
        total, length = total + step.reward, length + step.valid
        ended = step.terminated | step.truncated
        total[ended], length[ended] = 0.0, 0
    batch.close()
