"""shoal record: what a data set holds is what the environment showed, and R2D3 learns from it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal as package
from shoal.api import UsageError
from shoal.cli import record
from shoal.demonstrations.episodes import Demonstrations, Episode, read
from shoal.demonstrations.recording import play, write
from shoal.envs import Codec, EnvOptions, make

from .conftest import Shoal

SMALL: dict[str, Any] = dict(
    actors=1, envs=4, unroll=8, hidden=(8,), core_size=8, dueling=False, batch=4, sequence=8, overlap=4, burn_in=4,
    min_replay=20, replay=200, steps=400, demo_ratio=0.5, preset="none", runtime="serial", device="cpu",
)  # fmt: skip


def lean(obs: np.ndarray) -> int:
    """Holds CartPole's pole for a few hundred steps."""
    return int(obs[2] + 0.5 * obs[3] > 0)


def peek(obs: np.ndarray, env: gym.Env[Any, Any]) -> int:
    """Knows more than it is shown."""
    return int(env.answer)  # type: ignore[attr-defined]


def wild(obs: np.ndarray) -> int:
    return 7


def crowded(obs: np.ndarray, env: Any, more: Any) -> int:
    return 0


def lost(obs: np.ndarray) -> int:
    raise KeyError("the way")


class Asked(gym.Env[Any, Any]):
    """Wants its hidden answer; draws itself, and presses the key `d` itself after its third step."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 1_000}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.answer = 0, int(self.np_random.integers(3))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        reward = float(action == self.answer)
        self.t, self.answer = self.t + 1, int(self.np_random.integers(3))
        if self.render_mode is not None:
            import pygame

            kind = pygame.KEYDOWN if self.t == 3 else pygame.KEYUP
            pygame.event.post(pygame.event.Event(kind, key=pygame.K_d))
        return np.full(2, self.t / 10, np.float32), reward, self.t == 6, False, {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize("env", ["CartPole-v1", "toy:dict", "toy:memory", f"{__name__}:Asked"])
def test_an_episode_is_what_the_environment_showed(env: str) -> None:
    """Played again from the same seed with the recorded actions, a batch of one shows and gives the same."""
    rng, options = np.random.default_rng(0), EnvOptions()
    actions = make(env, 1, options).spec.action.sizes[0]
    episodes = list(play(env, options, lambda obs, reward, inside: int(rng.integers(actions)), 5, seed=3))
    again, codec = make(env, 1, options), Codec(env, options)
    obs = again.reset(3)
    for e in episodes:
        shown = codec.encode_steps(e.observations)
        for t, action in enumerate(e.actions):
            assert all(np.array_equal(obs[name][0], shown[name][t]) for name in obs)
            step = again.step(np.array([action]))
            obs = step.obs
            assert step.reward[0] == np.float32(e.rewards[t])
            assert bool(step.terminated[0]) == (e.terminated and t == len(e.actions) - 1)
        assert all(np.array_equal(obs[name][0], shown[name][-1]) for name in obs)
        obs = again.step(np.array([0])).obs
    again.close()


def test_a_policy_may_look_into_the_environment_but_not_choose_what_there_is_not() -> None:
    options, env = EnvOptions(), f"{__name__}:Asked"
    (episode,) = play(env, options, lambda obs, reward, inside: peek(obs, inside), 1, seed=0)
    assert episode.rewards.tolist() == [1.0] * 6
    with pytest.raises(UsageError, match=r"chose 7, but the actions of .*Asked are Discrete\(3\)"):
        list(play(env, options, lambda obs, reward, inside: wild(obs), 1, seed=0))

    def wrong(chosen: Any, obs: Any, reward: float, inside: Any) -> Any:
        return chosen

    for chosen in (None, "left", 1.7):
        with pytest.raises(UsageError, match=f"chose {chosen!r}, but the actions"):
            list(play(env, options, partial(wrong, chosen), 1, seed=0))


def test_a_scripted_policy_becomes_a_data_set_that_r2d3_is_shown(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    source = f"{__name__}:lean"
    code, out, err = shoal("record", source, "--env", "CartPole-v1", "--episodes", "4", "--out", "shoal/lean-v0")
    assert code == 0 and "4 episodes of CartPole-v1, mean return" in out, err
    stored = minari.load_dataset("shoal/lean-v0")
    assert stored.total_episodes == 4 and stored.spec.observation_space == gym.make("CartPole-v1").observation_space
    assert stored.recover_environment().spec.id == "CartPole-v1"
    found = read("shoal/lean-v0")
    for e, length in zip(found.episodes(), found.lengths, strict=True):
        assert length == len(e.rewards) == len(e.observations) - 1 > 40
        assert [lean(o) for o in e.observations[:-1]] == e.actions.tolist()
    run = package.train("r2d3", env="CartPole-v1", run_dir=tmp_path / "run", demonstrations="shoal/lean-v0", **SMALL)
    assert run.report is not None and run.report.updates > 10
    monkeypatch.chdir(tmp_path)
    for out_dir in (str(tmp_path / "mine"), "beside"):
        code, out, err = shoal("record", str(tmp_path / "run"), "--episodes", "2", "--out", out_dir)
        assert code == 0 and "2 episodes" in out, err
        assert len(read(str(tmp_path / out_dir)).lengths) == 2 == len(read(out_dir).lengths)
    package.train("r2d3", env="CartPole-v1", run_dir=tmp_path / "near", demonstrations="beside", **SMALL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where no set is called so
    code, _, err = shoal("resume", str(tmp_path / "near"), "--steps", "480", "--quiet")
    assert code == 0, err
    code, out, err = shoal("record", "--list", "shoal/lean-v0")
    assert code == 0 and out.startswith("shoal/lean-v0: 4 episodes, ") and out.count(" steps, return ") == 4, err
    to, env = ["--out", "x/y-v0"], ["--env", "CartPole-v1"]
    for words, sentence in (
        (["record", source, *env, "--out", "shoal/lean-v0"], "is there already"),
        (["record", source, *to], "name its environment: --env ID"),
        (["record", source, *env], "needs to know where to"),
        (["record", f"{__name__}:nobody", *env, *to], "cannot be imported"),
        (["record", f"{__name__}:wild", *env, *to], "chose 7, but"),
        (["record", f"{__name__}:wild", *env, *to, "--frame-skip", "8"], "--frame-skip is an option of atari"),
        (["record", f"{__name__}:wild", *env, *to, "--reward-clip", "sign"], "--reward-clip is for training"),
        (["record", f"{__name__}:wild", *env, *to, "--max-episode-steps", "0"], "expects an integer of at least 1"),
        (["record", f"{__name__}:crowded", *env, *to], "should take an observation, or an observation and the environ"),
        (["record", source, *env, "--out", ""], "needs to know where to"),
        (["record", str(tmp_path / "run"), *env, *to], "--env is not for recording a run"),
        (["record", source, *env, *to, "--best"], "--best is not for recording"),
        (["record", "--show", "shoal/lean-v0", "--episode", "4"], "--episode expects a number below 4, found 4"),
        (["record"], "shoal record needs a run directory, MODULE:FUNCTION or keyboard first"),
        (
            ["train", "r2d3", "--env", "shoal/CartPoleNoVelocity-v1", "--demonstrations", "shoal/lean-v0"],
            "have the observations Box",
        ),
    ):
        code, _, err = shoal(*words)
        assert code == 2 and sentence in err, (words, err)
    code, _, err = shoal("record", f"{__name__}:lost", *env, *to)
    assert code == 1 and err.count("\n") == 1 and "failed: KeyError: 'the way' (" in err
    assert not (tmp_path / "sets" / "x" / "y-v0").exists() and not list((tmp_path / "sets" / "x").iterdir())


def test_nested_observations_survive_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    options = EnvOptions()
    episodes = list(play("toy:dict", options, lambda obs, reward, inside: 1, 2, seed=0))
    codec = Codec("toy:dict", options)
    where, returns = write(iter(episodes), (codec.observation_space, codec.action_space), str(tmp_path / "d"), {})
    assert where == tmp_path / "d" and returns == [float(e.rewards.sum()) for e in episodes]
    for one, other in zip(read(str(where)).episodes(), episodes, strict=True):
        assert np.array_equal(one.actions, other.actions)
        for key in ("camera", "vector"):
            assert np.array_equal(one.observations[key], other.observations[key])


def test_a_damaged_set_is_told_of_in_a_sentence(tmp_path: Path, shoal: Shoal) -> None:
    pytest.importorskip("minari")
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / "data" / "metadata.json").write_text("{}")
    code, _, err = shoal("record", "--list", "set")
    assert code == 2 and err.startswith("shoal: the demonstrations 'set' cannot be read (") and err.count("\n") == 1


def test_a_list_shows_no_single_episode(shoal: Shoal) -> None:
    code, _, err = shoal("record", "--list", "set", "--episode", "3")
    assert code == 2 and "or --list SET, or --show SET --episode N" in err


def test_an_episode_is_shown_step_by_step(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Minari: what is read is a function's episodes."""
    images = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
    kept = Episode({"image": images, "at": np.arange(3)}, np.array([1, 0]), np.array([0.0, 2.5]), True)
    monkeypatch.setattr(record, "read", lambda name: Demonstrations(name, [2], lambda: iter([kept])))
    code, out, _ = shoal("record", "--show", "mine")
    assert code == 0
    first, *steps = out.splitlines()
    assert first == "episode 0 of 1: 2 steps, return 2.5, terminated"
    assert steps[0].split("  ")[-2:] == ["image uint8 [4, 4] from 0 to 15, mean 7.5, at 0", "action 1, reward 0"]
    assert steps[1].endswith("at 1  action 0, reward 2.5") and steps[2].endswith("at 2  the last observation")


def test_without_a_screen_nobody_plays(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    code, _, err = shoal("record", "keyboard", "--env", "CartPole-v1", "--out", "x/y-v0")
    assert code == 2 and "there must be a screen, and here is none" in err and err.count("\n") == 1


def test_a_person_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    from shoal.demonstrations.keyboard import by_hand

    monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
    env, options = f"{__name__}:Asked", EnvOptions()
    episodes = by_hand(env, options, 2, seed=5, keys={"d": 2}, noop=1)
    assert [e.actions.tolist() for e in episodes] == [[1, 1, 1, 2, 1, 1]] * 2  # the key is down after the third step
    assert all(len(e.observations) == 7 and e.terminated and not e.truncated for e in episodes)
    assert not np.array_equal(episodes[0].rewards, episodes[1].rewards)  # each from a seed of its own
    for keys, says in (({}, "does not say which key does what"), ({"d": 5}, "the actions of"), ({"??": 1}, "names of")):
        with pytest.raises(UsageError, match=says):
            by_hand(env, options, 1, seed=0, keys=keys)
    with pytest.raises(UsageError, match="cannot be played by hand"):
        by_hand("toy:memory", options, 1, seed=0, keys={"d": 0})
