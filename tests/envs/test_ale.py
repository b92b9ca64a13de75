"""What ALE's vector environment really does, and what Shoal makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.api import Episode, UsageError
from shoal.envs import EnvOptions, make, spec
from shoal.envs.film import film

pytest.importorskip("ale_py")
NUM = 3


def rows(options: EnvOptions, steps: int, game: str = "ALE/Breakout-v5", seed: int = 0) -> Any:
    """Yields (observation, first) before each step, and the step."""
    batch = make(game, NUM, options)
    rng = np.random.default_rng(seed)
    obs, first = batch.reset(seed)["obs"], np.ones(NUM, bool)
    for _ in range(steps):
        step = batch.step(rng.integers(0, batch.spec.action.sizes[0], NUM))
        yield batch, obs, first, step
        obs, first = step.obs["obs"], ~step.valid
    batch.close()


def test_spec() -> None:
    got = spec("ALE/Pong-v5", EnvOptions())
    assert (got.backend, got.stack, got.pad, got.autoreset, got.frames_per_step) == ("ale", 4, "zero", "next_step", 4)
    assert got.observations["obs"].shape == (4, 84, 84) and got.action.sizes == (6,)
    assert spec("ALE/Pong-v5", EnvOptions(full_action_space=True)).action.sizes == (18,)
    assert spec("PongNoFrameskip-v4", EnvOptions(frame_stack=2, screen=42)).observations["obs"].shape == (2, 42, 42)


def shares(pixels: int) -> np.ndarray:
    """Of each of 84 parts of a line, the share that each of its pixels has [84, pixels]."""
    bounds = np.linspace(0, pixels, 85)
    at = np.arange(pixels)
    covered = np.minimum(at + 1, bounds[1:, None]) - np.maximum(at, bounds[:-1, None])
    return np.maximum(covered, 0.0) * 84 / pixels


@pytest.mark.parametrize("skip, rate", [(4, 15.0), (3, 20.0)])
def test_a_film_is_of_the_game_that_is_played_at_its_own_speed(skip: int, rate: float) -> None:
    """With actions that stick at random, the emulator in colour shows the same only by the same seed."""
    batch, picture, found = film("ALE/Breakout-v5", EnvOptions(frame_skip=skip, sticky_actions=0.5, noop_max=30))
    obs, rng = batch.reset(7)["obs"], np.random.default_rng(0)
    for _ in range(30):
        grey = picture() @ np.array([0.299, 0.587, 0.114])
        np.testing.assert_allclose(shares(210) @ grey @ shares(160).T, obs[0, -1], atol=3.0)
        obs = batch.step(rng.integers(1, 4, 1)).obs["obs"]
    batch.close()
    assert found == rate


@pytest.mark.parametrize("options", [{}, {"life_loss": True}, {"life_loss": True, "fire_reset": False}])
def test_stacks_are_rebuilt_from_their_newest_frames(options: dict[str, Any]) -> None:
    built = np.zeros((NUM, 4, 84, 84), np.uint8)
    firsts = 0
    for batch, obs, first, _ in rows(EnvOptions(**options), 420):
        assert batch.spec.pad == "zero"
        built[first] = 0
        built = np.concatenate([built[:, 1:], obs[:, -1:]], 1)
        np.testing.assert_array_equal(built, obs)
        firsts += int(first.sum())
    assert firsts > (20 if options else 5)


def test_a_lost_life_terminates_and_the_game_goes_on() -> None:
    episodes: list[Episode] = []
    raw: list[tuple[np.ndarray, np.ndarray]] = []
    terminations = 0
    last = np.zeros(NUM, bool)
    spied: Any = None
    for batch, _, _, step in rows(EnvOptions(life_loss=True, reward_clip="sign"), 420):
        if spied is None:
            spied = batch.inner.inner.env  # type: ignore[attr-defined]
            plain = spied.step

            def spy(action: np.ndarray, plain: Any = plain) -> Any:
                out = plain(action)
                raw.append((out[1].copy(), out[2].copy()))
                return out

            spied.step = spy
        np.testing.assert_array_equal(step.valid, ~last)
        assert not (step.terminated & last).any() and not (step.reward * last).any()
        last = step.terminated | step.truncated
        terminations += int(step.terminated.sum())
        episodes += step.episodes
        assert set(np.unique(step.reward)) <= {-1.0, 0.0, 1.0}
    games = sum(int(over.sum()) for _, over in raw)
    assert len(episodes) == games >= 3 and terminations > 3 * games
    assert sum(e.ret for e in episodes) <= sum(float(r.sum()) for r, _ in raw) + 1
    assert min(e.length for e in episodes) > 60  # a game, not a life


def test_returns_are_raw_where_rewards_are_clipped() -> None:
    options, total, episodes = EnvOptions(reward_clip="sign", max_episode_steps=150), 0.0, []
    for _, _, _, step in rows(options, 151, "ALE/SpaceInvaders-v5"):
        total += float(step.reward.sum())
        episodes += step.episodes
        assert set(np.unique(step.reward)) <= {0.0, 1.0}
    assert len(episodes) >= NUM and sum(e.ret for e in episodes) >= 5 * total > 0


def test_the_frame_limit_truncates() -> None:
    for t, (_, _, _, step) in enumerate(rows(EnvOptions(max_episode_frames=100), 52, "ALE/Pong-v5")):
        assert not step.terminated.any()
        assert step.truncated.all() == (t in (24, 50)) and step.truncated.any() == step.truncated.all()
        if t == 24:
            assert [e.length for e in step.episodes] == [25] * NUM


def test_not_sticky_by_default_and_reproducible() -> None:
    def play(**options: Any) -> np.ndarray:
        return np.stack([o[:, -1] for _, o, _, _ in rows(EnvOptions(**options), 60)])

    played = play()
    np.testing.assert_array_equal(played, play())
    np.testing.assert_array_equal(played, play(sticky_actions=0.0))
    assert not np.array_equal(played, play(sticky_actions=0.25))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"backend": "gymnasium"}, "does not give 'ALE/Pong-v5' the standard Atari protocol"),
        ({"env_kwargs": {"stack_num": 2}}, "set the option 'frame_stack' instead of 'stack_num'"),
        ({"env_kwargs": {"colour": True}}, "cannot be made with these options"),
    ],
)
def test_usage_errors(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make("ALE/Pong-v5", 1, EnvOptions(**options))
