"""Action spaces of several parts: what agents choose, and what the environment gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

import shoal
from shoal.api import MASK, Action, EnvironmentFailed, UsageError
from shoal.envs import EnvOptions, given, make, spec
from shoal.envs.composite import flat_mask, flat_masks, shown
from shoal.envs.spaces import ActionCodec, ObservationCodec
from shoal.nets.distributions import ActionDistribution
from shoal.policy.export import policy_module

SPACE = gs.Dict({"aim": gs.Tuple((gs.Discrete(3, start=-1), gs.MultiBinary(2))), "walk": gs.MultiDiscrete([2, 4])})
MASKS: dict[str, Any] = {"aim": (np.array([1, 0, 1]), np.array([[1, 0], [1, 1]])), "walk": np.array([0, 1, 1, 1, 1, 0])}
ROW = [1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0]  # of MASKS, in the order of the space
SMALL: dict[str, Any] = dict(
    preset="none", runtime="serial", actors=1, envs=2, unroll=5, hidden=(8,), device="cpu", steps=100
)  # fmt: skip


class Parts(gym.Env[Any, Any]):
    """Says what it allows part by part, and takes nothing else."""

    observation_space, action_space = gs.Box(-1.0, 1.0, (2,)), SPACE
    masks: Any = MASKS

    @property
    def action_mask(self) -> Any:
        return self.masks

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(2, np.float32), {"action_mask": self.masks}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        (aim, bits), walk = action["aim"], action["walk"]
        assert aim != 0 and bits[0] == 0 and walk[0] == 1 and walk[1] != 3, action
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == 4, False, {"action_mask": self.masks}


class Lacking(Parts):
    masks: Any = MASKS | {"walk": np.ones(5)}


def vector(num_envs: int) -> Any:
    return gym.vector.SyncVectorEnv([Taking] * num_envs)


class Taking(gym.Env[Any, Any]):
    observation_space = gs.Box(-1.0, 1.0, (2,))
    action_space = gs.Tuple((gs.Box(-2.0, 2.0, (1,)), gs.Dict({"b": gs.Box(0.0, 10.0, (2,))})))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return np.array([action[0][0] / 2, action[1]["b"][1] / 10], np.float32), 0.0, False, False, {}


def test_discrete_parts_are_one_action_with_a_size_for_each() -> None:
    codec = ActionCodec(SPACE, "E")
    assert (codec.action.kind, codec.action.sizes) == ("multi_discrete", (3, 2, 2, 2, 4))
    made: Any = codec(np.array([[0, 1, 0, 1, 3], [2, 0, 0, 0, 1]]))
    assert shown(made) == {"aim": ([-1, 1], [[1, 0], [0, 0]]), "walk": [[1, 3], [0, 1]]}


def test_boxes_are_one_box_in_the_units_of_agents() -> None:
    codec = ActionCodec(Taking.action_space, "E")
    assert codec.action.low == (-1, -1, -1) and codec.action.high == (1, 1, 1)
    assert shown(codec(np.array([[0.5, -1.0, 0.0]], np.float32))) == ([[1.0]], {"b": [[0.0, 5.0]]})


@pytest.mark.parametrize("env", [Taking, vector], ids=["one by one", "a vector environment"])
def test_the_environment_gets_its_own_structure(env: Any) -> None:
    batch = make(given(env), 3, EnvOptions())
    batch.reset(0)
    step = batch.step(np.array([[1.0, 0.0, -1.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]], np.float32))
    assert step.obs["obs"].tolist() == [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]


@pytest.mark.parametrize(
    "space",
    [gs.Box(-1.0, 1.0, (0,)), gs.Box(-1.0, 1.0, (2, 0)), gs.MultiDiscrete(np.zeros(0, np.int64)),
     gs.Tuple((gs.Discrete(2), gs.Box(-1.0, 1.0, (0,))))],
    ids=repr,
)  # fmt: skip
def test_an_action_without_a_number_is_refused(space: gs.Space[Any]) -> None:
    with pytest.raises(
        UsageError, match=r"environment 'E' has an action .* of shape \(.*0,?\): there is nothing to choo"
    ):
        ActionCodec(space, "E")
    if not isinstance(space, gs.Tuple):
        with pytest.raises(UsageError, match=r"'obs' of shape \(.*0,?\): it holds no number"):
            ObservationCodec(space, "E")


MIXED = gs.Dict({
    "kick": gs.Tuple((gs.Box(-2.0, 2.0, (1,)), gs.Discrete(3, start=1))), "move": gs.Box(0.0, 10.0, (2,)),
    "say": gs.MultiBinary(2),
})  # fmt: skip


class Kicking(gym.Env[Any, Any]):
    """Pays for the second choice, a strong kick and a short move; forbids the third choice."""

    observation_space, action_space = gs.Box(-1.0, 1.0, (2,)), MIXED
    metadata: dict[str, Any] = {"action_mask": True}  # noqa: RUF012
    masks: Any = {"kick": (None, np.array([1, 1, 0])), "say": np.ones((2, 2))}  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {"action_mask": self.masks}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action) and action["kick"][1] != 3, action
        (strength,), choice = action["kick"]
        reward = 2.0 * (choice == 2) - abs(strength - 1.0) - abs(action["move"] - 2.0).mean() / 5
        return np.zeros(2, np.float32), float(reward), True, False, {"action_mask": self.masks}


def test_choices_and_boxes_are_one_mixed_action_choices_first() -> None:
    codec = ActionCodec(MIXED, "E")
    assert (codec.action.kind, codec.action.sizes, len(codec.action.low)) == ("mixed", (3, 2, 2), 3)
    assert codec.action.shape == (6,) and codec.action.dtype == "float32"
    made: Any = codec(np.array([[2, 0, 1, 0.5, -1.0, 0.0]], np.float32))
    assert shown(made) == {"kick": ([[1.0]], [3]), "move": [[0.0, 5.0]], "say": [[0, 1]]}
    assert np.asarray(flat_mask(MIXED, Kicking.masks)).tolist() == [1, 1, 0, 1, 1, 1, 1]


def test_a_mixed_policy_is_the_product_of_its_parts() -> None:
    dist = ActionDistribution(Action("mixed", (3, 2), low=(-1.0, -1.0), high=(1.0, 1.0)))
    params = torch.randn(4, dist.params_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    action = torch.tensor([[0, 1, 0.3, -0.2], [2, 0, 1.4, 0.0], [1, 1, 0.0, 0.0], [2, 1, -3.0, 0.5]])
    normal = torch.distributions.Normal(params[:, 5:7], params[:, 7:].exp())
    choices = [torch.distributions.Categorical(logits=params[:, a:b]) for a, b in ((0, 3), (3, 5))]
    log_prob = normal.log_prob(action[:, 2:]).sum(1) + sum(c.log_prob(action[:, i]) for i, c in enumerate(choices))
    entropy = normal.entropy().sum(1) + sum(c.entropy() for c in choices)
    for mine, theirs in zip(dist.evaluate(params, action), (log_prob, entropy), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(dist.mode(params)[:, :2], torch.stack([c.logits.argmax(1) for c in choices], 1))
    drawn = dist.sample(params[:1].expand(20_000, -1), torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(drawn[:, 2:].mean(0), params[0, 5:7], rtol=0, atol=0.1)
    share = torch.bincount(drawn[:, 0].long(), minlength=3) / 20_000
    torch.testing.assert_close(share.double(), choices[0].probs[0], rtol=0, atol=0.02)


@pytest.mark.parametrize("system", ["recurrent-ppo", "impala", "a3c", "dd-ppo"])
def test_a_mixed_policy_trains_and_keeps_to_the_mask(system: str, tmp_path: Path) -> None:
    settings = {**SMALL, "envs": 4} if system != "a3c" else SMALL
    run = shoal.train(system, env=Kicking, run_dir=tmp_path / "r", core="lstm", last_action_reward=True, **settings)
    assert len(run.evaluate(episodes=3, greedy=False)) == 3


def test_systems_without_a_mixed_policy_refuse_it() -> None:
    for system in ("dqn", "d4pg", "es"):
        with pytest.raises(UsageError, match=rf"{system} supports .* has MultiDiscrete\(\[3, 2, 2\]\) with Box\(3,\)"):
            shoal.train(system, env=Kicking, preset="none", runtime="serial", steps=10)


def test_a_mask_with_parts_is_read_in_the_order_of_the_space() -> None:
    backwards = {"walk": MASKS["walk"], "aim": MASKS["aim"]}
    for mask in (MASKS, backwards, np.array(ROW)):
        assert np.asarray(flat_mask(SPACE, mask)).tolist() == ROW
    found = spec(given(Parts), EnvOptions())
    assert found.observations[MASK].shape == (13,)
    batch = make(given(Parts), 2, EnvOptions())
    assert batch.reset(0)[MASK].tolist() == [[bool(n) for n in ROW]] * 2


def test_masks_of_several_environments_are_a_list_or_have_a_row_in_each_part() -> None:
    (first, second), walk = MASKS["aim"], MASKS["walk"]
    objects = np.empty(2, object)
    objects[:] = [MASKS, MASKS]
    stacked = {"aim": (np.stack([first] * 2), np.stack([second] * 2)), "walk": np.stack([walk] * 2)}
    for masks in ([MASKS, MASKS], objects, stacked, np.array([ROW, ROW])):
        assert flat_masks(SPACE, masks, 2).tolist() == [[bool(n) for n in ROW]] * 2
    assert flat_masks(gs.Discrete(2), [[1, 0]] * 3, 3).tolist() == [[True, False]] * 3
    for wrong, num in (
        ({"aim": MASKS["aim"]}, None),
        ({"aim": MASKS["aim"]}, 2),
        ({"aim": 1, "walk": walk}, 2),
        (3, 2),
    ):
        with pytest.raises(UsageError, match="should have a part for each part of Dict"):
            flat_masks(SPACE, wrong, num)


def test_a_mask_that_lacks_a_value_is_named() -> None:
    with pytest.raises(EnvironmentFailed, match=r"info\['action_mask'\] of shape \[12\]"):
        make(given(Lacking), 2, EnvOptions()).reset(0)


def test_a_masked_policy_of_parts_trains_and_plays(tmp_path: Path) -> None:
    run = shoal.train("recurrent-ppo", env=Parts, run_dir=tmp_path / "r", **SMALL)
    assert run.evaluate(episodes=3) == [4.0, 4.0, 4.0]
    assert str(shoal.load(run.path, env=Parts)) == str(run.policy()), "a run's directory, as well as a file"
    policy, env = run.policy(), Parts()
    obs, info = env.reset()
    for mask in (np.array(ROW), info["action_mask"]):
        env.step(policy.act(obs, greedy=False, action_mask=mask))
    assert policy_module(policy).actions() == ["action/aim/0", "action/aim/1", "action/walk"]
