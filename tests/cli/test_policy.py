"""A policy takes the environment's own observations and returns actions of its own space."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import shoal
from shoal import systems
from shoal.api import MASK, UsageError
from shoal.envs import EnvOptions
from shoal.policy import Policy, policy as policies
from shoal.policy.policy import differ, episode_limit, evaluation_options
from shoal.policy.video import _fit
from shoal.settings.config import resolve

from .odd_env import matrix, offset, tuples

ODD = Path(__file__).with_name("odd_env.py")


def untrained(system: str, env: str, **settings: object) -> Policy:
    module = systems.load(system)
    cfg = resolve(module, "none", None, {"env": env, "device": "cpu", "actors": 1, **settings}, name=system).cfg
    agent = module.agent(cfg)
    return Policy(module, cfg, dict(agent.nets.state_dict()))


@pytest.mark.parametrize("make", [offset, matrix, tuples])
@pytest.mark.parametrize("greedy", [True, False])
def test_actions_are_of_the_environments_own_space(make, greedy: bool) -> None:
    policy = untrained("impala", f"{ODD}:{make.__name__}", hidden=(8,))
    env = make()
    obs, _ = env.reset(seed=1)
    for _ in range(5):
        obs, *_ = env.step(policy.act(obs, greedy=greedy))  # the environment asserts


def test_an_offset_action_is_the_one_of_the_largest_value() -> None:
    policy = untrained("dqn", f"{ODD}:offset", hidden=(8,))
    env = offset()
    obs, _ = env.reset(seed=3)
    nets = policy.agent.nets  # type: ignore[attr-defined]
    for best in range(3):
        nets.head.linear.weight.data.zero_()
        nets.head.linear.bias.data.zero_()[best] = 1.0
        assert policy.act(obs) == best - 1


def test_what_it_sees_is_what_the_training_sees() -> None:
    """The same observation through the policy and through the training's batch of environments."""
    from shoal.envs import EnvOptions, make as make_batch

    batch = make_batch(f"{ODD}:offset", 1, EnvOptions())
    trained_on = batch.reset(5)
    from shoal.envs.batch import sub_seeds

    own, _ = offset().reset(seed=sub_seeds(5, 1)[0])
    seen = untrained("dqn", f"{ODD}:offset", hidden=(8,)).codec.encode(own)
    assert seen.keys() == trained_on.keys() == {"obs/speed", "obs/image"}
    assert all(np.array_equal(seen[k], trained_on[k]) for k in seen)
    assert seen["obs/image"].shape == (1, 3, 40, 48) and 0 <= seen["obs/speed"][0, 0] < 4


@pytest.mark.parametrize(
    "env, wrong, says",
    [
        ("CartPole-v1", np.zeros(3), r"'obs' should have shape \(4,\), found \(3,\)"),
        (f"{ODD}:offset", {"speed": 11}, "should have the parts"),
        (f"{ODD}:tuples", (1.0,), "a tuple of 2 parts"),
    ],
)
def test_a_wrong_observation_is_refused(env: str, wrong: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        untrained("impala", env, hidden=(8,)).act(wrong)


def test_the_atari_stack_is_taken_as_it_is() -> None:
    policy = untrained("dqn", "ALE/Pong-v5")
    assert policy.act(np.zeros((4, 84, 84), np.uint8)) in range(6)


def test_a_gymnasium_environment_is_played_to_its_end() -> None:
    policy, env = untrained("dqn", "CartPole-v1", hidden=(8,)), gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    done = False
    while not done:
        action = policy.act(obs)
        assert env.action_space.contains(action)
        obs, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
    env.close()


@pytest.mark.parametrize("system, settings", [("dqn", {}), ("impala", dict(core="lstm", last_action_reward=True))])
def test_a_batch_is_acted_on_as_its_environments_one_by_one(system: str, settings: dict[str, object]) -> None:
    batch = untrained(system, "CartPole-v1", hidden=(8,), **settings)
    ones = [Policy(batch.system, batch.cfg, batch.params) for _ in range(3)]
    batch.reset(3)
    rng = np.random.default_rng(0)
    for t in range(6):
        obs, reward = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=3)
        first = np.array([False, t == 2, t == 4])
        for one, begins in zip(ones, first, strict=True):
            if begins:
                one.reset()
        expected = [one.act(o, reward=r) for one, o, r in zip(ones, obs, reward, strict=True)]
        actions = batch.act(obs, reward=reward, first=first)
        assert actions.shape == (3,) and actions.tolist() == expected
        for name, state in batch._state.items():
            each = np.concatenate([one._state[name].numpy() for one in ones])
            np.testing.assert_allclose(state.numpy(), each, atol=1e-6)
    with pytest.raises(UsageError, match=r"'obs' should have shape \(3, 4\), found \(4,\)"):
        batch.act(np.zeros(4))
    with pytest.raises(UsageError, match=r"'first' should have shape \(3,\)"):
        batch.act(np.zeros((3, 4)), first=np.zeros(2, bool))
    with pytest.raises(UsageError, match="at least 1 environment"):
        batch.reset(0)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_policy_with_a_memory_acts_by_it_until_an_episode_begins(core: str) -> None:
    policy = untrained("impala", "CartPole-v1", hidden=(8,), core=core, core_size=4)
    nets, seen = policy.fresh_agent(0).nets, []  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    state = nets.initial_state(1)
    for t, begins in enumerate((True, False, False, True, False)):
        obs = rng.normal(size=4).astype(np.float32)
        if begins:
            policy.reset()
        policy.act(obs)
        with torch.no_grad():
            _, _, state = nets.step({"obs": torch.from_numpy(obs[None])}, torch.tensor([begins]), state)
        for name, kept in policy._state.items():
            torch.testing.assert_close(kept, state[name], msg=f"{name} at {t}")
        seen.append(next(iter(state.values())).clone())
    assert not torch.allclose(seen[1], seen[2])


def test_an_evaluation_plays_what_is_trained_on_without_its_lost_lives_and_bonus() -> None:
    cfg = untrained("dqn", "CartPole-v1", hidden=(8,), novelty=0.5, reward_scale=0.1, reward_clip="sign").cfg
    cfg = dataclasses.replace(cfg, life_loss=True)
    found = evaluation_options(cfg)
    assert (found.novelty, found.life_loss) == (0.0, False)
    assert dataclasses.replace(found, novelty=0.5, life_loss=True) == cfg


def test_a_batch_of_parts_and_of_offset_actions() -> None:
    policy = untrained("dqn", f"{ODD}:offset", hidden=(8,))
    envs = [offset() for _ in range(2)]
    seen = [env.reset(seed=i)[0] for i, env in enumerate(envs)]
    expected = []
    for obs in seen:
        policy.reset()
        expected.append(policy.act(obs))
    policy.reset(2)
    assert policy.act({k: np.stack([obs[k] for obs in seen]) for k in seen[0]}).tolist() == expected


def test_a_policy_is_saved_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ODD.parent)
    policy = untrained("impala", f"{ODD.name}:offset", hidden=(8,), core="gru", core_size=4)
    file = tmp_path / "policy.safetensors"
    policy.save(file)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"]
    monkeypatch.chdir(tmp_path)  # a relative path of an environment means the same from here
    again = shoal.load(file, trust=True)
    assert again.cfg.env == f"{ODD.resolve()}:offset" and again.version == policy.version
    assert dataclasses.replace(again.cfg, env=policy.cfg.env) == policy.cfg
    obs, _ = offset().reset(seed=1)
    assert again.act(obs) == policy.act(obs)
    assert all((again.params[k] == v).all() for k, v in policy.params.items())


@pytest.mark.parametrize("system", ["impala", "r2d2", "rainbow", "es"])
def test_a_pickled_or_copied_policy_acts_as_the_first_one(system: str) -> None:
    """Also in the middle of an episode, and with copies of their own in a process of another start."""
    policy = untrained(system, "CartPole-v1", **({"core_size": 8} if system == "r2d2" else {}))
    observations = np.random.default_rng(0).normal(size=(12, 2, 4)).astype(np.float32)
    policy.reset(2)
    for obs in observations[:6]:
        policy.act(obs)
    copies = [pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)]
    expected = [policy.act(obs).tolist() for obs in observations[6:]]
    state = {name: array.tolist() for name, array in policy._state.items()}
    for one in copies:
        assert one.system is policy.system and one.params is not policy.params
        assert [one.act(obs).tolist() for obs in observations[6:]] == expected
        assert {name: array.tolist() for name, array in one._state.items()} == state


def test_a_policy_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match=r"the policy cannot be saved in '.*taken'"):
        untrained("dqn", f"{ODD}:offset", hidden=(8,)).save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_only_a_saved_policy_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        shoal.load(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(UsageError, match="no safetensors file"):
        shoal.load(tmp_path / "text")
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(UsageError, match="holds no policy"):
        shoal.load(tmp_path / "other")
    with pytest.raises(UsageError, match="cannot be saved"):
        untrained("dqn", "CartPole-v1", hidden=(8,)).save(tmp_path / "nowhere" / "policy")


def test_a_run_keeps_the_whole_path_of_an_environments_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ODD.parent)
    run = shoal.train(
        "impala", env=f"{ODD.name}:offset", preset="none", runtime="serial", steps=16, actors=1, envs=1, unroll=8,
        hidden=(8,), run_dir=tmp_path / "r", device="cpu",
    )  # fmt: skip
    assert run.config["env"] == f"{ODD.resolve()}:offset"
    monkeypatch.chdir(tmp_path)
    assert shoal.Run.open("r").policy().cfg.env == f"{ODD.resolve()}:offset"


# ------------------------------------------------------------------------------------------ by hand
def test_means_differ_beyond_three_standard_errors() -> None:
    """0 and 2, five times each: a deviation of sqrt(10 / 9), a standard error of 1/3; of two such, sqrt(2) / 3."""
    some = [0.0, 2.0] * 5
    for shift, apart in ((1.41, False), (1.42, True), (-1.41, False), (-1.42, True)):
        assert differ(some, [value + shift for value in some]) is apart
    assert not differ(some[:9], [99.0] * 10) and not differ(some, [99.0] * 9) and differ(some, [99.0] * 10)
    # a deviation on one side alone, of four times as many: 3 / 2 * sqrt(40 / 39 / 10) = 0.4804
    many = [0.0, 2.0] * 20
    assert not differ(many, [1.48] * 10) and differ(many, [1.49] * 10)


@pytest.mark.parametrize(("asked", "made"), [(1, 3), (3, 3), (4, 6), (6, 6)])
def test_an_evaluation_has_whole_games_of_three_agents(asked: int, made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = SimpleNamespace(env="x", env_spec=lambda: SimpleNamespace(agents=3))
    monkeypatch.setattr(policies, "evaluation_options", lambda cfg: "options")
    monkeypatch.setattr(policies, "make", lambda *given: given)
    assert policies.evaluation_envs(cfg, asked) == ("x", made, "options")


@pytest.mark.parametrize(
    ("height", "width", "shape"),
    [(100, 51, (300, 154)), (150, 10, (300, 20)), (299, 10, (598, 20)), (300, 11, (300, 12)), (301, 10, (302, 10))],
)
def test_a_small_picture_is_enlarged_by_a_whole_number_to_even_sides(
    height: int, width: int, shape: tuple[int, int]
) -> None:
    frame = np.random.default_rng(0).integers(1, 255, (height, width, 3), np.uint8)
    fitted, times = _fit(frame), max(1, -(-300 // height))
    assert fitted.shape == (*shape, 3) and fitted.dtype == np.uint8
    kept = fitted[: height * times, : width * times]
    np.testing.assert_array_equal(kept[::times, ::times], frame)
    np.testing.assert_array_equal(kept[times - 1 :: times, times - 1 :: times], frame)
    assert not fitted[height * times :].any() and not fitted[:, width * times :].any()


def test_the_limit_of_an_episode_is_the_largest_that_holds() -> None:
    long = EnvOptions(max_episode_steps=50_000, max_episode_frames=8_000_000)
    assert episode_limit("CartPole-v1", long) == 50_000, "frames are Atari's"
    assert episode_limit("ALE/Pong-v5", replace(long, frame_skip=4)) == 2_000_000
    assert episode_limit("ALE/Pong-v5", long, 7) == 7


def test_a_mask_allows_a_value_of_every_part_of_the_action() -> None:
    spec = SimpleNamespace(observations={MASK: SimpleNamespace(shape=(5,))}, action=SimpleNamespace(sizes=(2, 3)))
    own = SimpleNamespace(spec=spec, cfg=SimpleNamespace(env="x"), envs=None, _first=np.ones(1, bool))

    def mask(*row: int) -> np.ndarray:
        return Policy._mask(own, np.array([row], bool), None)  # type: ignore[arg-type]

    assert mask(0, 1, 0, 0, 1).tolist() == [[False, True, False, False, True]]
    for forbidden in ((1, 1, 0, 0, 0), (0, 0, 1, 1, 1), (0, 0, 0, 0, 0)):
        with pytest.raises(UsageError, match="the action mask forbids every action of x"):
            mask(*forbidden)
    with pytest.raises(UsageError, match=r"'action_mask' should have shape \(5,\), found \(4,\)"):
        mask(1, 1, 1, 1)
    assert "--sampled)" in policies.how(False) and "without --sampled" in policies.how(True)
