"""A policy takes the environment's own observations and returns actions of its own space."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from shoal import systems
from shoal.api import UsageError
from shoal.policy import Policy
from shoal.settings.config import resolve

from .odd_env import matrix, offset, tuples

ODD = Path(__file__).with_name("odd_env.py")


def untrained(system: str, env: str, **settings: object) -> Policy:
    module = systems.load(system)
    cfg = resolve(module, "none", None, {"env": env, "device": "cpu", "actors": 1, **settings}, name=system).cfg
    agent = module.agent(cfg)
    return Policy(module, cfg, dict(agent.nets.state_dict()))  # type: ignore[attr-defined]


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

    batch = make_batch(f"{ODD}:offset", 1, 0, EnvOptions())
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
        obs, _, terminated, truncated, _ = env.step(policy.act(obs))
        done = terminated or truncated
    env.close()
