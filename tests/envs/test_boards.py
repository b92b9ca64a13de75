"""Which boxes of integers are pictures, and by what the numbers of the others are divided."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs

from shoal.api import Observation
from shoal.envs.spaces import ObservationCodec


def codec(space: Any) -> ObservationCodec:
    return ObservationCodec(space, "t")


@pytest.mark.parametrize("high", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(9,), (3, 3), (8, 8, 3), (3, 8, 8), (2, 6, 6, 3), (19, 19, 17)])
def test_a_small_uint8_board_is_numbers_from_0_to_1(shape: tuple[int, ...], high: int) -> None:
    found, board = codec(gs.Box(0, high, shape, np.uint8)), np.zeros((2, *shape), np.uint8)
    board[1] = high
    assert found.observations == {"obs": Observation(shape, "float32")}
    encoded = found(board)["obs"]
    assert encoded.dtype == np.float32 and encoded.shape == board.shape
    assert not encoded[0].any() and (encoded[1] == 1).all()


@pytest.mark.parametrize("low, high, dtype, given, expected", [
    (0, 255, "uint8", [0, 51, 255], [0, 0.2, 1]),  # the memory of a machine
    (-1, 1, "int8", [-1, 0, 1], [-1, 0, 1]),
    (-128, 127, "int8", [-128, 64, 0], [-1, 0.5, 0]),
    (0, 3, "int64", [0, 1, 3], [0, 1 / 3, 1]),
    (2, 8, "int32", [2, 4, 8], [0.25, 0.5, 1]),
    (0, 2**31 - 1, "int32", [0, 7, 900], [0, 7, 900]),  # bounds that say nothing
    (0, 256, "int32", [0, 7, 256], [0, 7, 256]),
    (0, 1000, "float32", [0, 7, 1000], [0, 7, 1000]),
    (0, 0, "uint8", [0, 0, 0], [0, 0, 0]),
])  # fmt: skip
def test_integers_of_a_byte_are_divided_by_their_largest_magnitude(
    low: Any, high: Any, dtype: str, given: list[int], expected: list[float]
) -> None:
    found = codec(gs.Box(low, high, (3,), np.dtype(dtype).type))
    np.testing.assert_array_equal(found(np.array([given], dtype))["obs"], np.array([expected], np.float32))


def test_each_number_of_a_box_of_integers_has_its_own_scale() -> None:
    found = codec(gs.Box(np.array([0, -4, 0]), np.array([1, 2, 10]), dtype=np.int64))
    np.testing.assert_array_equal(found(np.array([[1, -4, 5]]))["obs"], [[1, -1, 0.5]])


def test_a_single_integer_is_scaled_too() -> None:
    assert codec(gs.Box(0, 8, (), np.int64))(np.array([2, 8]))["obs"].tolist() == [[0.25], [1.0]]


@pytest.mark.parametrize("shape, image", [
    ((84, 84, 3), (3, 84, 84)), ((3, 84, 84), (3, 84, 84)), ((84, 84), (1, 84, 84)), ((10, 10, 3), (3, 10, 10)),
    ((4, 84, 84, 1), (4, 84, 84)), ((84, 84, 1), (1, 84, 84)),
])  # fmt: skip
def test_whole_bytes_of_2_to_4_dimensions_are_a_picture_of_any_size(shape: Any, image: Any) -> None:
    found, drawn = (
        codec(gs.Box(0, 255, shape, np.uint8)),
        np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8),
    )
    assert found.observations == {"obs": Observation(image, "uint8", "image")}
    assert sorted(found(drawn)["obs"].ravel()) == sorted(drawn.ravel()), "no byte is changed"


@pytest.mark.parametrize("low, high, given, expected", [
    (0, 1, [0, 1], [0, 255]), (0, 3, [1, 2], [85, 170]), (10, 20, [10, 15], [0, 128]), (0, 127, [127, 200], [255, 255]),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(36, 40), (36, 40, 3), (2, 36, 40)])
def test_a_large_picture_of_other_bounds_is_spread_over_a_byte(
    shape: Any, low: int, high: int, given: list[int], expected: list[int]
) -> None:
    found = codec(gs.Box(low, high, shape, np.uint8))
    assert found.observations["obs"].kind == "image"
    for byte, spread in zip(given, expected, strict=True):
        encoded = found(np.full((1, *shape), byte, np.uint8))["obs"]
        assert encoded.dtype == np.uint8 and (encoded == spread).all()


def test_a_picture_and_a_board_in_a_dict_are_told_apart() -> None:
    found = codec(gs.Dict({
        "board": gs.Box(0, 1, (3, 3), np.uint8), "camera": gs.Box(0, 255, (8, 8, 3), np.uint8),
        "ram": gs.Box(0, 255, (4,), np.uint8), "count": gs.Discrete(3, start=5), "more": gs.Tuple((gs.MultiBinary(2),)),
    }))  # fmt: skip
    kinds = {name: (o.kind, o.shape) for name, o in found.observations.items()}
    assert kinds == {
        "obs/board": ("vector", (3, 3)), "obs/camera": ("image", (3, 8, 8)), "obs/count": ("one_hot", (1,)),
        "obs/ram": ("vector", (4,)), "obs/more/0": ("one_hot", (2,)),
    }  # fmt: skip
