"""Boxes of actions: agents act in [-1, 1] along every bounded side, and the environment gets its own units."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from shoal.api import Action
from shoal.envs import Codec, EnvOptions, make
from shoal.envs.action_box import ActionBox
from shoal.envs.spaces import ActionCodec

INF = math.inf
LARGEST = float(np.finfo(np.float32).max)


class Dose(gym.Env[Any, Any]):
    """The reward is the action that arrived."""

    def __init__(self, low: Any, high: Any, dtype: str = "float32", shape: Any = None) -> None:
        self.observation_space = gs.Box(-1, 1, (1,))
        low, high = np.asarray(low, dtype), np.asarray(high, dtype)
        self.action_space = gs.Box(
            low if low.ndim else low.item(), high if high.ndim else high.item(), shape, dtype=np.dtype(dtype).type
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return np.zeros(1, np.float32), float(action.ravel()[0]), False, False, {}


def box(low: Any, high: Any, dtype: str = "float32") -> ActionBox:
    return ActionBox(gs.Box(np.array(low, dtype), np.array(high, dtype), dtype=np.dtype(dtype).type))


@pytest.mark.parametrize("low, high, unit, inside, outside", [
    ([5.0], [35.0], (-1.0, 1.0), [-1.0, -0.5, 0.0, 1.0], [5.0, 12.5, 20.0, 35.0]),
    ([-2.0], [2.0], (-1.0, 1.0), [-1.0, 0.25, 1.0], [-2.0, 0.5, 2.0]),
    ([-1.0], [1.0], (-1.0, 1.0), [-1.0, 0.3, 1.0], [-1.0, 0.3, 1.0]),
    ([-0.5], [0.5], (-1.0, 1.0), [-1.0, 0.5], [-0.5, 0.25]),
    ([7.0], [7.0], (0.0, 0.0), [0.0], [7.0]),
    ([-INF], [INF], (-INF, INF), [-40.0, 3.5], [-40.0, 3.5]),
    ([-LARGEST], [LARGEST], (-INF, INF), [-40.0, 3.5], [-40.0, 3.5]),
    ([5.0], [INF], (-1.0, INF), [-1.0, 0.0, 2.0], [5.0, 6.0, 8.0]),
    ([-INF], [-3.0], (-INF, 1.0), [-2.0, 0.0, 1.0], [-6.0, -4.0, -3.0]),
    ([-3e38], [3e38], (-1.0, 1.0), [-1.0, 0.0, 1.0], [-3e38, 0.0, 3e38]),
])  # fmt: skip
def test_a_side_of_an_action_box_is_scaled_by_its_bounds(
    low: Any, high: Any, unit: tuple[float, float], inside: list[float], outside: list[float]
) -> None:
    found = box(low, high)
    assert (found.low[0], found.high[0]) == unit
    agents = np.array(inside, np.float32)[:, None]
    environments = found.to_environment(agents)
    assert environments.dtype == np.float32
    np.testing.assert_array_equal(environments[:, 0], np.array(outside, np.float32))
    np.testing.assert_allclose(found.to_agent(environments), agents, rtol=2e-7, atol=2e-7)


def test_each_side_of_an_action_box_has_its_own_scale() -> None:
    found = box([0.0, -INF, 2.0, -1.0], [10.0, INF, INF, 1.0])
    assert not found.same
    drawn = np.array([[0.5, 9.0, 0.5, 0.5], [-3.0, -9.0, -7.0, 4.0]], np.float32)
    np.testing.assert_array_equal(found.to_environment(drawn), [[7.5, 9.0, 3.5, 0.5], [0.0, -9.0, 2.0, 1.0]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_no_action_leaves_its_box_by_rounding(dtype: str) -> None:
    """Whatever is drawn, as far out as it may be, and at every bound."""
    rng = np.random.default_rng(0)
    low = rng.uniform(-3, 3, 500).astype(dtype)
    space = gs.Box(low, low + rng.uniform(0, 3, 500).astype(dtype), dtype=np.dtype(dtype).type)
    for scale in (1.0, 1e6, 1e37):
        found = ActionBox(space).to_environment((scale * rng.standard_normal((50, 500))).astype(np.float32))
        assert all(space.contains(row) for row in found)


def test_an_agent_whose_box_is_that_of_the_environment_is_not_scaled() -> None:
    """Bit for bit: of an action within [-1, 1] nothing is computed."""
    found, drawn = box([-1.0] * 3, [1.0] * 3), np.random.default_rng(0).uniform(-1, 1, (100, 3)).astype(np.float32)
    assert found.same
    np.testing.assert_array_equal(found.to_environment(drawn), drawn)
    np.testing.assert_array_equal(found.to_agent(drawn), drawn)


def test_a_narrow_box_of_float64_keeps_its_precision() -> None:
    found = box([1e9], [1e9 + 1e-3], "float64").to_environment(np.array([[-1.0], [0.5], [1.0]], np.float32))
    np.testing.assert_allclose(found[:, 0] - 1e9, [0, 7.5e-4, 1e-3], atol=2e-7)


def test_the_policys_own_bounds_are_in_the_spec_and_actions_arrive_in_the_environments_units() -> None:
    options = EnvOptions(env_kwargs={"low": 5.0, "high": 35.0, "shape": (2, 2)})
    batch = make(f"{__name__}:Dose", 3, options)
    assert batch.spec.action == Action("continuous", low=(-1.0,) * 4, high=(1.0,) * 4)
    batch.reset(0)
    given = np.array([[-2.0, 0, 0, 0], [0.5, 0, 0, 0], [9.0, 0, 0, 0]], np.float32)
    assert batch.step(given).reward.tolist() == [5.0, 27.5, 35.0]
    codec = Codec(f"{__name__}:Dose", options)
    np.testing.assert_array_equal(codec.decode(given[1:2]), [[27.5, 20], [20, 20]])
    np.testing.assert_array_equal(codec.encode_actions(codec.decode(given[1:2])[None]), given[1:2])


def test_a_recorded_action_outside_of_the_box_stays_outside() -> None:
    found = box([5.0, 7.0], [35.0, 7.0]).to_agent(np.array([[50.0, 8.0], [20.0, 7.0]]))
    np.testing.assert_array_equal(found, [[2.0, 1.0], [0.0, 0.0]])


def test_the_last_action_is_seen_in_the_agents_units() -> None:
    options = EnvOptions(env_kwargs={"low": [5.0], "high": [35.0]}, last_action_reward=True)
    batch = make(f"{__name__}:Dose", 1, options)
    batch.reset(0)
    assert batch.step(np.array([[0.5]], np.float32)).obs["obs/last_action"].tolist() == [[0.5]]


def test_integer_boxes_of_actions_are_refused() -> None:
    with pytest.raises(Exception, match="only Discrete, MultiDiscrete, MultiBinary, Box of floats"):
        ActionCodec(gs.Box(0, 3, (1,), np.int64), "t")


@pytest.mark.parametrize(
    "low, high, outside", [([-1.0, 0.0], [1.0, 2.0], [0.5, 1.5]), ([-1.0, -2.0], [1.0, 2.0], [0.5, 1.0])]
)
def test_one_side_that_is_as_agents_have_it_leaves_the_other_scaled(
    low: list[float], high: list[float], outside: list[float]
) -> None:
    """Two sides, of which the first is [-1, 1]; the other has its length, or its middle, alone."""
    found, agents = box(low, high), np.full((1, 2), 0.5, np.float32)
    assert not found.same and found.to_environment(agents).tolist() == [outside]
    assert found.to_agent(np.array([outside])).tolist() == [[0.5, 0.5]]
    assert box([-1.0, -1.0], [1.0, 1.0]).same
