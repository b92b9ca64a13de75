"""Names, spaces, failures, seeds, toys."""

from __future__ import annotations

import pickle
import re
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv

from shoal.api import Action, EnvBatch, EnvironmentFailed, Observation, UsageError
from shoal.envs import EnvOptions, make, spec
from shoal.envs.batch import VectorBatch
from shoal.envs.one_by_one import OneByOne
from shoal.envs.options import Backend
from shoal.envs.registry import MAX_ONE_BY_ONE_ENVS, PACKAGES
from shoal.envs.spaces import ObservationCodec
from shoal.envs.toy import TOYS
from shoal.extras import pip_install

FILE = str(Path(__file__).parent / "counting_env.py")


def random_action(batch: EnvBatch, rng: np.random.Generator) -> np.ndarray:
    action, n = batch.spec.action, batch.num_envs
    if action.kind == "continuous":
        return rng.uniform(-1, 1, (n, *action.shape)).astype(np.float32)
    sizes = action.sizes[0] if action.kind == "discrete" else np.array(action.sizes)
    return rng.integers(0, sizes, (n, *action.shape))


def conforms(batch: EnvBatch, steps: int) -> None:
    rng = np.random.default_rng(0)
    obs, ended = batch.reset(1), np.zeros(batch.num_envs, bool)
    for _ in range(steps):
        for name, like in batch.spec.observations.items():
            assert obs[name].shape == (batch.num_envs, *like.shape) and obs[name].dtype == like.dtype
            if like.kind == "one_hot":
                assert like.shape == (len(like.size),)
                assert (obs[name] >= 0).all() and (obs[name] < np.array(like.size)).all()
            if like.kind == "image":
                assert like.dtype == "uint8" and len(like.shape) == 3
        step = batch.step(random_action(batch, rng))
        if batch.spec.autoreset == "next_step":
            np.testing.assert_array_equal(step.valid, ~ended)
            assert not (step.reward * ended).any() and not ((step.terminated | step.truncated) & ended).any()
        obs, ended = step.obs, step.terminated | step.truncated
        assert len(step.episodes) == ended.sum()


@pytest.mark.parametrize(
    "env, backend",
    [
        ("CartPole-v1", "gymnasium-vector"),
        ("shoal/CartPoleNoVelocity-v1", "gymnasium-vector"),
        *((f"toy:{name}", "gymnasium-vector") for name in TOYS),
        ("Pendulum-v1", "gymnasium"),
        ("Blackjack-v1", "gymnasium"),
        ("MiniGrid-MemoryS7-v0", "gymnasium"),
        ("MinAtar/Freeway-v1", "gymnasium"),
    ],
)
def test_environments_conform(env: str, backend: str) -> None:
    for package, marks in PACKAGES.items():
        if env.startswith(marks):
            pytest.importorskip(package)
    options = EnvOptions(backend=backend, max_episode_steps=15)  # type: ignore[arg-type]
    batch = make(env, 4, options)
    assert batch.spec == spec(env, options) and batch.spec.backend == backend and batch.spec.why
    conforms(batch, 40)
    batch.close()


def test_auto_prefers_a_vectorised_version() -> None:
    assert spec("CartPole-v1", EnvOptions()).backend == "gymnasium-vector"


@pytest.mark.parametrize(
    ("num", "backend", "stepped"),
    [(1, "auto", OneByOne), (MAX_ONE_BY_ONE_ENVS, "auto", OneByOne),
     (MAX_ONE_BY_ONE_ENVS + 1, "auto", CartPoleVectorEnv),
     (1, "gymnasium-vector", CartPoleVectorEnv)],
)  # fmt: skip
def test_a_few_environments_are_stepped_one_by_one(num: int, backend: Backend, stepped: type) -> None:
    """Gymnasium's vectorised CartPole takes longer for one to three environments than they do one after the other."""
    batch = make("CartPole-v1", num, EnvOptions(backend=backend))
    assert isinstance(batch, VectorBatch) and isinstance(batch.env, stepped)
    batch.close()


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "Pendulum-v1"])
def test_one_by_one_is_gymnasiums_vector(env: str) -> None:
    """Boxes, numbers and tuples, over ends of episodes; what a step returned stays as it was."""
    makers = [partial(gym.make, env, max_episode_steps=7)] * 2
    ours, theirs = OneByOne(makers), SyncVectorEnv(makers)
    ours.action_space.seed(0)
    kept = [(ours.reset(seed=[3, 4])[0], theirs.reset(seed=[3, 4])[0])]
    for _ in range(40):
        action = ours.action_space.sample()
        mine, others = ours.step(action), theirs.step(action)
        for a, b in zip(mine[1:4], others[1:4], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        assert mine[4].keys() == others[4].keys()
        kept.append((mine[0], others[0]))
    for a, b in kept:
        for x, y in zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    assert ours.reset(seed=[3, 4])[0] is not kept[0][0] and not ours.step(ours.action_space.sample())[3].any()


def test_options_and_spec_pickle() -> None:
    options = EnvOptions(env_kwargs={"sutton_barto_reward": True})
    assert pickle.loads(pickle.dumps(options)) == options
    described = spec("CartPole-v1", options)
    assert pickle.loads(pickle.dumps(described)) == described


def test_cartpole_returns_are_lengths_and_truncation_is_no_termination() -> None:
    batch = make("CartPole-v1", 64, EnvOptions(max_episode_steps=12))
    batch.reset(0)
    rng, episodes, truncated = np.random.default_rng(0), [], 0
    for _ in range(100):
        step = batch.step(rng.integers(0, 2, 64))
        truncated += int(step.truncated.sum())
        episodes += step.episodes
    assert truncated > 100 and all(e.ret == e.length <= 12 for e in episodes)


def test_no_velocity_is_a_slice() -> None:
    full, part = make("CartPole-v1", 8, EnvOptions()), make("shoal/CartPoleNoVelocity-v1", 8, EnvOptions())
    np.testing.assert_array_equal(full.reset(3)["obs"][:, ::2], part.reset(3)["obs"])
    for _ in range(30):
        a, b = full.step(np.ones(8, np.int64)), part.step(np.ones(8, np.int64))
        np.testing.assert_array_equal(a.obs["obs"][:, ::2], b.obs["obs"])
        assert a.episodes == b.episodes


@pytest.mark.parametrize(
    "env, options, text",
    [
        ("Foo-v1", {}, r"unknown environment 'Foo-v1' \(an id that a module or a file registers"),
        ("CartPol-v1", {}, "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("CartPole", {}, "unknown environment 'CartPole'; did you mean 'CartPole-v1'?"),
        ("Pendulum-v0", {}, "unknown environment 'Pendulum-v0'; did you mean 'Pendulum-v1'?"),  # not phys2d's
        ("mountaincar-v7", {}, "did you mean 'MountainCar-v0'?"),
        ("Pong-v5", {"backend": "envpool"}, "does not give 'ALE/Pong-v5' the standard Atari protocol"),
        ("pong", {}, "unknown environment 'pong'; did you mean 'ALE/Pong-v5'?"),
        ("Pongg-v5", {}, "unknown environment 'Pongg-v5'; did you mean 'ALE/Pong-v5'?"),
        ("ALE/Pon-v5", {}, "unknown environment 'ALE/Pon-v5'; did you mean 'ALE/Pong-v5'?"),
        ("toy:bandit", {}, "unknown environment 'toy:bandit'; did you mean 'toy:bandit-identity'?"),
        ("zzzzqqqq", {}, "unknown environment 'zzzzqqqq'"),
        ("Nope-v0", {}, r"unknown environment 'Nope-v0' \(an id that"),  # not Gopher, which has most of its letters
        ("GridWorld-v0", {}, r"unknown environment 'GridWorld-v0' \(an id that"),
        ("HalfCheeta-v4", {}, "did you mean 'HalfCheetah-v5'?"),  # the latest of what it begins
        ("Montezuma-v5", {}, "did you mean 'ALE/MontezumaRevenge-v5'?"),
        ("Half-Cheetah-v4", {}, "did you mean 'HalfCheetah-v4'?"),
        ("Pendulum-v1", {"backend": "ale"}, "serves only Atari"),
        ("Pendulum-v1", {"backend": "gymnasium-vector"}, "no vectorised version"),
        ("toy:multi", {"backend": "envpool"}, "does not serve"),
        ("CartPole-v1", {"env_kwargs": {"no_such": 1}}, "cannot be made: .*no_such"),
        ("nowhere.at_all:thing", {}, "No module named 'nowhere'"),
        (f"{FILE}:next_stp", {}, "did you mean 'next_step'?"),
        ("missing.py:thing", {}, "there is no file"),
        (f"{FILE}:Text", {}, "Text, but only Box"),
        (f"{FILE}:Nested", {"env_kwargs": {"action": "integers"}}, "has the action space Box"),
        (f"{FILE}:length", {}, "cannot be made"),
    ],
)
def test_usage_errors_are_one_sentence(env: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("?", r"\?")) as caught:
        make(env, 2, EnvOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_an_observation_without_numbers_is_refused(shape: tuple[int, ...]) -> None:
    space = gs.Dict({"good": gs.Box(0, 1, (2,)), "none": gs.Box(0, 1, shape)})
    with pytest.raises(UsageError, match=rf"'mine' has an observation 'obs/none' of shape {re.escape(str(shape))}"):
        ObservationCodec(space, "mine")


def test_missing_envpool_is_one_helpful_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.envs.pool.installed", lambda: False)
    with pytest.raises(UsageError, match=re.escape(pip_install("envpool"))):
        make("Pendulum-v1", 1, EnvOptions(backend="envpool"))  # ``spec`` may know it from another test


def test_nested_spaces() -> None:
    batch = make(f"{FILE}:Nested", 3, EnvOptions())
    assert batch.spec.observations == {
        "obs/grey": Observation((1, 8, 10), "uint8", "image"),
        "obs/more/0": Observation((1,), "int64", "one_hot", (3,)),
        "obs/more/1": Observation((4,), "int64", "one_hot", (2, 2, 2, 2)),
        "obs/more/2": Observation((1,), "float32"),
        "obs/rgb": Observation((3, 8, 10), "uint8", "image"),
    }
    obs = batch.reset(0)
    np.testing.assert_array_equal(obs["obs/rgb"][1], np.arange(240).reshape(8, 10, 3).transpose(2, 0, 1))
    assert obs["obs/more/0"].tolist() == [[2]] * 3 and obs["obs/more/1"].tolist() == [[1, 0, 1, 1]] * 3
    assert obs["obs/more/2"].tolist() == [[0.25]] * 3
    conforms(batch, 4)


@pytest.mark.parametrize(
    "kind, action, given, reward",
    [
        ("multi", Action("multi_discrete", (2, 3)), [[1, 2]], 3),
        ("box", Action("continuous", low=(-1.0,) * 4, high=(1.0,) * 4), [[9.0, 0.5, 0.5, -9]], 2),  # it has [-2, 2]
        ("start", Action("discrete", (3,)), [2], 7),
        ("binary", Action("multi_discrete", (2, 2, 2)), [[1, 0, 1]], 2),
    ],
)
def test_action_spaces(kind: str, action: Action, given: list[object], reward: float) -> None:
    batch = make(f"{FILE}:Nested", 1, EnvOptions(env_kwargs={"action": kind}))
    assert batch.spec.action == action
    batch.reset(0)
    assert batch.step(np.array(given, action.dtype)).reward.tolist() == [reward]


@pytest.mark.parametrize(
    "bad, text",
    [
        (1, r"RuntimeError in step \(index 1, action 1, seed \d+\): the motor is on fire"),
        (2, r"returned a value of 'obs' that is not finite, or too large for float32 \(index 1, action 2, seed \d+\)"),
        (
            3,
            r"returned a value of 'reward' that is not finite, or too large .* \(index 1, action 3, seed \d+\)",
        ),
    ],
)
def test_failures_name_the_culprit(bad: int, text: str) -> None:
    batch = make(f"{FILE}:Odd", 3, EnvOptions())
    batch.reset(7)
    batch.step(np.zeros(3, np.int64))
    with pytest.raises(EnvironmentFailed, match=text) as caught:
        batch.step(np.array([0, bad, 0]))
    assert FILE in str(caught.value)
    if bad == 1:
        assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("shown", [1, 5])
def test_a_discrete_observation_outside_its_space(shown: int) -> None:
    batch = make(f"{FILE}:Outside", 3, EnvOptions())
    batch.reset(7)
    assert batch.step(np.array([2, 3, 4])).obs["obs"].tolist() == [[0], [1], [2]]
    text = rf"'obs' that is not in its space: \[{shown - 2}\], counted from 0, of \[3\] \(index 1, action {shown}, seed"
    with pytest.raises(EnvironmentFailed, match=text) as caught:
        batch.step(np.array([2, shown, 4]))
    assert FILE in str(caught.value)


def test_checks_can_be_turned_off() -> None:
    batch = make(f"{FILE}:Odd", 1, EnvOptions(check=False))
    batch.reset(7)
    assert np.isinf(batch.step(np.array([3])).reward[0])


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "toy:point", "toy:catch"])
def test_reset_reproduces(env: str) -> None:
    one, two = make(env, 6, EnvOptions(backend="auto")), make(env, 6, EnvOptions(backend="auto"))
    a, b = one.reset(4)["obs"], two.reset(4)["obs"]
    np.testing.assert_array_equal(a, b)
    assert len(np.unique(a.reshape(6, -1), axis=0)) == (6 if env != "toy:catch" else len(np.unique(a, axis=0)))
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = random_action(one, rng)
        np.testing.assert_array_equal(one.step(action).obs["obs"], two.step(action).obs["obs"])
    assert not np.array_equal(one.reset(5)["obs"], one.reset(6)["obs"])


def play(name: str, policy: object, num: int = 64, steps: int = 100) -> float:
    batch = make(f"toy:{name}", num, EnvOptions())
    obs, returns = batch.reset(0), []
    for _ in range(steps):
        step = batch.step(policy(obs))  # type: ignore[operator]
        obs = step.obs
        returns += [e.ret for e in step.episodes]
    return float(np.mean(returns))


def test_toys_have_the_documented_optimum() -> None:
    assert play("bandit-identity", lambda o: o["obs"].argmax(1)) == 8
    assert play("multi", lambda o: o["obs"]) == 8
    assert play("corridor", lambda o: np.ones(64, np.int64)) == 1
    assert play("point", lambda o: np.clip(2 * o["obs"], -1, 1)) == pytest.approx(-0.22, abs=0.03)
    assert play("dict", lambda o: 2 * (o["obs/camera"][:, 0, 0, -1] > 0) + o["obs/vector"].argmax(1)) == 8

    def catch(obs: dict[str, np.ndarray]) -> np.ndarray:
        cells = obs["obs"][:, 0, ::2, ::4] > 0
        ball = cells[:, :9].any(1).argmax(1)
        return np.sign(ball - cells[:, 9].argmax(1)) + 1

    assert play("catch", catch) == 1


def test_a_toy_that_terminates_at_its_limit_is_not_truncated() -> None:
    batch = make("toy:corridor", 2, EnvOptions(max_episode_steps=5))
    batch.reset(0)
    steps = [batch.step(np.array([1, 0])) for _ in range(6)]
    assert [s.terminated.tolist() for s in steps] == [[False, False]] * 4 + [[True, False], [False, False]]
    assert [s.truncated.tolist() for s in steps] == [[False, False]] * 4 + [[False, True], [False, False]]


def test_memory_needs_memory() -> None:
    cue = np.zeros(64, np.int64)

    def remember(obs: dict[str, np.ndarray]) -> np.ndarray:
        shown = obs["obs"][:, :2].any(1)
        cue[shown] = obs["obs"][shown, 1]
        return cue.copy()

    assert play("memory", remember) == 1
    asked = [o for o in _memory_observations() if o[2]]
    assert len({tuple(o) for o in asked}) == 1  # the question is the same for both cues


def _memory_observations() -> list[np.ndarray]:
    batch = make("toy:memory", 32, EnvOptions())
    batch.reset(0)
    return [row for _ in range(20) for row in batch.step(np.zeros(32, np.int64)).obs["obs"]]


def test_a_task_of_the_control_suite_says_what_it_needs(monkeypatch):
    monkeypatch.setattr("shoal.envs.pool.installed", lambda: False)
    with pytest.raises(UsageError, match=r"'CheetahRun-v1' looks .* needs EnvPool: pip install .*\[envpool\]"):
        spec("CheetahRun-v1", EnvOptions())
    with pytest.raises(UsageError, match="unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'"):
        spec("CartPol-v1", EnvOptions())
