"""Targets of auxiliary tasks, against loops and the numbers of a3c-unreal.md."""

import numpy as np
import oracles
import pytest
import torch

from shoal.ops import central_grid, pixel_change, reward_class


def test_one_pixel_of_one_channel() -> None:
    """a3c-unreal.md 4.5: 48 / (16 * 3) = 1."""
    before = torch.zeros((3, 16, 16), dtype=torch.uint8)
    after = before.clone()
    after[1, 5, 2] = 48
    expected = torch.zeros(4, 4)
    expected[1, 0] = 1.0
    assert torch.equal(pixel_change(before, after, 4, (4, 4)), expected)
    assert torch.equal(pixel_change(after, before, 4, (4, 4)), expected), "bytes do not wrap around"


@pytest.mark.parametrize(("shape", "cell"), [((3, 16, 18), 4), ((1, 21, 24), 4), ((2, 12, 10), 2), ((4, 84, 84), 4)])
def test_oracle(shape: tuple[int, int, int], cell: int) -> None:
    rng = np.random.default_rng(0)
    before, after = rng.integers(0, 256, (2, 2, *shape), np.uint8)
    grid = central_grid(*shape[1:], cell)
    found = pixel_change(torch.from_numpy(before), torch.from_numpy(after), cell, grid)
    for i in range(2):
        np.testing.assert_allclose(found[i].numpy(), oracles.pixel_change(before[i], after[i], cell, grid), rtol=1e-5)


@pytest.mark.parametrize(
    "height,width,cell,grid",
    [(84, 84, 4, (20, 20)), (40, 42, 4, (10, 10)), (20, 18, 4, (4, 4)), (12, 10, 4, (0, 0)), (12, 10, 2, (6, 4))],
)
def test_the_grid_that_a_deconvolution_fills(height: int, width: int, cell: int, grid: tuple[int, int]) -> None:
    """20 x 20 of the central 80 x 80 pixels, from a map of 9 x 9."""
    assert central_grid(height, width, cell) == grid
    for side in grid:
        if side:
            layer = torch.nn.ConvTranspose1d(1, 1, 4, 2)
            assert layer(torch.zeros(1, 1, side // 2 - 1)).shape[-1] == side


def test_what_does_not_fit_is_refused() -> None:
    image = torch.zeros(3, 8, 8)
    with pytest.raises(ValueError, match="within 8 x 8"):
        pixel_change(image, image, 4, (4, 2))
    with pytest.raises(ValueError, match="of one shape"):
        pixel_change(image, image[:, :4], 2, (2, 2))


def test_reward_classes() -> None:
    rewards = np.random.default_rng(1).choice([-2.0, -0.5, 0.0, 0.1, 3.0], (4, 5)).astype(np.float32)
    found = reward_class(torch.from_numpy(rewards))
    assert found.dtype == torch.int64
    assert found.tolist() == [[oracles.reward_class(r) for r in row] for row in rewards]
