"""Episodes of demonstrations are cut into the unrolls that an actor would send, number by number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.api import MASK, Arrays, Field
from shoal.demonstrations import streams
from shoal.demonstrations.episodes import Episode
from shoal.envs import Codec, EnvOptions, spec
from shoal.roles.actor import unroll_spec

ENV = "CartPole-v1"
OPTIONS = EnvOptions(reward_clip="unit", reward_scale=0.5, last_action_reward=True)


def fields() -> dict[str, Field]:
    extras = {"q_taken": ((), "float32"), "q_max": ((), "float32"), "told": ((2,), "float32")}
    return streams.stream_fields(unroll_spec(spec(ENV, OPTIONS), 5, 3, extras, {"h": (4,)}, stream=True))


def episode(steps: int, terminated: bool = True, truncated: bool = False) -> Episode:
    observations = np.arange((steps + 1) * 4, dtype=np.float32).reshape(-1, 4)
    return Episode(observations, np.arange(steps) % 2, np.arange(1.0, steps + 1) / 2, terminated, truncated)


def cut(made: Episode) -> list[Arrays]:
    return [{k: v.copy() for k, v in u.items()} for u in streams.unrolls(made, Codec(ENV, OPTIONS), OPTIONS, fields())]


def test_a_demonstration_has_what_an_actor_sends_but_values_and_states() -> None:
    found = fields()
    assert {"obs", "obs/last_action", "obs/last_reward", "first", "action", "told", "valid"} < found.keys()
    assert not [name for name in found if name.startswith(("state/", "final/", "q_"))]
    assert found["obs"].shape == (streams.CHUNK, 1, 4) and found["told"].shape == (streams.CHUNK, 1, 2)


@pytest.mark.parametrize(("steps", "lengths"), [(1, [2]), (3, [4]), (4, [4, 1]), (7, [4, 4]), (8, [4, 4, 1])])
def test_unrolls_continue_one_another_to_the_last_observation(
    steps: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK", 4)
    parts = cut(episode(steps))
    assert [len(part["obs"]) for part in parts] == lengths
    whole = {name: np.concatenate([part[name] for part in parts])[:, 0] for name in parts[0]}
    np.testing.assert_array_equal(whole["obs"], np.arange((steps + 1) * 4).reshape(-1, 4))
    ends = np.arange(steps + 1) == steps - 1
    np.testing.assert_array_equal(whole["first"], np.arange(steps + 1) == 0)
    np.testing.assert_array_equal(whole["valid"], np.arange(steps + 1) < steps)
    np.testing.assert_array_equal(whole["terminated"], ends)
    assert not whole["truncated"].any()


@pytest.mark.parametrize(
    ("terminated", "truncated", "kind"),
    [(True, False, "terminated"), (False, True, "truncated"), (False, False, "truncated")],
)
def test_an_episode_that_did_not_terminate_was_truncated(terminated: bool, truncated: bool, kind: str) -> None:
    (part,) = cut(episode(3, terminated, truncated))
    ends: dict[str, Any] = {name: part[name][:, 0].tolist() for name in ("terminated", "truncated")}
    assert ends.pop(kind) == [False, False, True, False] and not any(*ends.values())


def test_rewards_and_last_actions_are_those_of_the_training() -> None:
    """Of 0.5, 1 and 1.5, clipped at 1 and halved; each is shown with the action at the observation after it."""
    (part,) = cut(episode(3))
    assert part["action"][:, 0].tolist() == [0, 1, 0, 0] and part["reward"][:, 0].tolist() == [0.25, 0.5, 0.5, 0.0]
    assert part["obs/last_action"].reshape(-1).tolist() == [0, 0, 1, 0]
    assert part["obs/last_reward"].reshape(-1).tolist() == [0.0, 0.25, 0.5, 0.5]


def test_a_demonstration_with_too_few_observations_is_refused() -> None:
    made = episode(3)
    for wrong in (made.observations[:3], np.concatenate([made.observations, made.observations])):
        with pytest.raises(streams.UsageError, match=f"an episode of 3 steps needs 4 observations, found {len(wrong)}"):
            cut(made._replace(observations=wrong))


@pytest.mark.parametrize(
    ("last", "shown"), [([True, False], [True, False]), ([False, True], [False, True]), ([False, False], [True, True])]
)
def test_a_mask_that_forbids_everything_at_the_end_allows_everything(last: list[bool], shown: list[bool]) -> None:
    """And where nothing shows the last action and reward, there is none."""
    masks = np.array([[True, True], [False, True], last])
    codec: Any = SimpleNamespace(encode_steps=lambda obs: {MASK: obs}, encode_actions=lambda actions: actions)
    kinds = {"action": "int64", "reward": "float32", MASK: "bool"}
    names = ("action", "reward", "first", "valid", "terminated", "truncated")
    own = {name: Field((4, 1), kinds.get(name, "bool")) for name in names}
    own[MASK] = Field((4, 1, 2), "bool")
    (part,) = streams.unrolls(Episode(masks, np.array([0, 1]), np.ones(2), True), codec, EnvOptions(), own)
    assert part[MASK][:, 0].tolist() == [[True, True], [False, True], shown] and "obs/last_action" not in part
