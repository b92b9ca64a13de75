"""An observation that a user gives: a batch of it where it is of the space, one sentence where it is not."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from shoal.api import UsageError
from shoal.envs.one_by_one import number
from shoal.envs.spaces import ObservationCodec, batch_of, integer_scale
from shoal.envs.wrappers import CartPoleNoVelocity

SPACES: dict[str, tuple[Any, Any, Any]] = {  # the least and the largest of each
    "discrete": (gs.Discrete(3, start=2), 2, 4),
    "multi": (gs.MultiDiscrete([3, 2], start=[0, 5]), [0, 5], [2, 6]),
    "binary": (gs.MultiBinary(2), [0, 0], [1, 1]),
    "bytes": (gs.Box(0, 255, (2,), np.uint8), [0, 0], [255, 255]),
    "integers": (gs.Box(np.array([-2, 1]), np.array([5, 7]), dtype=np.int64), [-2, 1], [5, 7]),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("num", [None, 3])
def test_an_observation_within_its_bounds_is_taken(name: str, num: int | None) -> None:
    space, *bounds = SPACES[name]
    for bound in bounds:
        given = np.array(bound) if num is None else np.array([bound] * num)
        found = batch_of(space, given, num)
        assert found.shape == (num or 1, *space.shape) and (found == np.array(bound)).all()


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("num", [None, 3])
def test_an_observation_beyond_its_bounds_is_refused(name: str, by: int, num: int | None) -> None:
    """By one, in its last part alone."""
    space, *bounds = SPACES[name]
    given = np.array(bounds[by > 0])
    wrong = np.array(given, np.int64).reshape(-1)
    wrong[-1] += by
    given = wrong.reshape(given.shape)
    rows = given if num is None else np.stack([np.array(bounds[0])] * (num - 1) + [given])
    with pytest.raises(UsageError, match=rf"'obs' should be of .*, found the value {wrong[-1]}$"):
        batch_of(space, rows, num)


@pytest.mark.parametrize("name", SPACES)
def test_an_observation_of_another_kind_is_refused(name: str) -> None:
    space, least, _ = SPACES[name]
    with pytest.raises(UsageError, match="found values of dtype float64"):
        batch_of(space, np.array(least, np.float64))
    with pytest.raises(UsageError, match=r"should have shape .*, found \(9,\)"):
        batch_of(space, np.zeros(9, np.int64))


def test_a_box_of_numbers_need_only_be_finite() -> None:
    """Many environments leave their own bounds."""
    space = gs.Box(-1.0, 1.0, (2,), np.float32)
    assert batch_of(space, [7, -9]).tolist() == [[7, -9]] and batch_of(space, [True, False]).shape == (1, 2)
    for wrong in (np.nan, np.inf):
        with pytest.raises(UsageError, match="found a value that is not finite"):
            batch_of(space, np.array([0.0, wrong]))
    with pytest.raises(UsageError, match="found values of dtype <U1"):
        batch_of(space, np.array(["a", "b"]))


def test_parts_are_looked_at_one_by_one() -> None:
    space = gs.Dict({"a": gs.Discrete(2), "b": gs.Tuple((gs.Discrete(2), gs.Box(0, 9, (1,), np.int64)))})
    found = batch_of(space, {"a": 1, "b": [0, [9]], "more": 5})
    assert found["a"].tolist() == [1] and [part.tolist() for part in found["b"]] == [[0], [[9]]]
    with pytest.raises(UsageError, match=r"'obs/b/1' should be of .*, found the value 10"):
        batch_of(space, {"a": 1, "b": (0, np.array([10]))})
    with pytest.raises(UsageError, match=r"'obs' should have the parts \['a', 'b'\], found \['a'\]"):
        batch_of(space, {"a": 1})
    with pytest.raises(UsageError, match=r"'obs' should have the parts \['a', 'b'\], found int"):
        batch_of(space, 1)
    for wrong, kind in ((0, "int"), ((0,), "tuple"), ((0, [1], 2), "tuple")):
        with pytest.raises(UsageError, match=f"'obs/b' should be a tuple of 2 parts, found {kind}"):
            batch_of(space, {"a": 1, "b": wrong})


def test_a_picture_of_one_colour_is_numbers() -> None:
    """There is nothing to spread over the bytes."""
    (shown,) = ObservationCodec(gs.Box(7, 7, (40, 40, 3), np.uint8), "mine").observations.values()
    assert (shown.kind, shown.dtype, shown.shape) == ("vector", "float32", (40, 40, 3))
    (shown,) = ObservationCodec(gs.Box(7, 8, (40, 40, 3), np.uint8), "mine").observations.values()
    assert (shown.kind, shown.shape) == ("image", (3, 40, 40))


def test_cartpole_without_velocities_has_the_bounds_of_what_it_shows() -> None:
    full, part = CartPoleVectorEnv(3), CartPoleNoVelocity(3)
    whole, shown = full.single_observation_space, part.single_observation_space
    assert isinstance(whole, gs.Box) and isinstance(shown, gs.Box)
    assert shown.low.tolist() == whole.low[[0, 2]].tolist() and shown.high.tolist() == whole.high[[0, 2]].tolist()
    assert part.observation_space.shape == (3, 2) and part.num_envs == 3


@pytest.mark.parametrize(
    "reward,wanted",
    [
        (2, 2.0), (0.5, 0.5), (True, 1.0), (np.float32(0.25), 0.25), (np.int8(-3), -3.0), (np.bool_(True), 1.0),
        ([2.0], 2.0), ((7,), 7.0), (np.array(3), 3.0), (np.array([[True]]), 1.0), (Fraction(1, 4), 0.25),
    ],
)  # fmt: skip
def test_a_reward_is_one_number(reward: Any, wanted: float) -> None:
    found = number(reward)
    assert type(found) is float and found == wanted


@pytest.mark.parametrize(
    "reward", ["5", b"5", [1, 2], [], np.array("5"), np.array([1j]), np.zeros(0), None, {}, np.array([None])]
)
def test_a_reward_of_another_kind_is_refused(reward: Any) -> None:
    with pytest.raises(TypeError, match=r"its reward is .*, expected one number"):
        number(reward)


@pytest.mark.parametrize(
    "low,high,scale",
    [
        ([0, 0], [1, 1], None), ([-1, 0], [1, 1], None), ([0, 0], [1, 2], [1, 2]), ([-3, 0], [1, 0], [3, 1]),
        ([0, 0], [255, 9], [255, 9]), ([0, 0], [256, 9], None), ([-256, 0], [0, 9], None),
    ],
)  # fmt: skip
def test_integers_are_divided_by_their_largest_magnitude(low: list[int], high: list[int], scale: Any) -> None:
    """None where that is 1 everywhere, or where one may be more than a byte."""
    found = integer_scale(gs.Box(np.array(low), np.array(high), dtype=np.int64))
    assert (found is None and scale is None) or (found is not None and found.tolist() == scale)
    assert integer_scale(gs.Box(0.0, 9.0, (2,), np.float32)) is None


def test_what_reset_returns_is_no_observation() -> None:
    """As whoever comes from Gym's old interface gives it."""
    space = gs.Box(-1.0, 1.0, (4,))
    pair = (np.zeros(4, np.float32), {"lives": 3})
    with pytest.raises(
        UsageError, match=r"'obs' should have shape \(4,\), found a tuple of 2 parts \(of what reset\(\)"
    ):
        batch_of(space, pair)
    with pytest.raises(UsageError, match=r"'obs/b' should have shape \(4,\), found a tuple of 2 parts"):
        batch_of(gs.Dict({"b": space}), {"b": pair})
