"""Targets of auxiliary tasks: what changes on the screen, and of which sign the next reward is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["central_grid", "pixel_change", "reward_class"]


def central_grid(height: int, width: int, cell: int) -> tuple[int, int]:
    """Rows and columns of the largest grid of square cells of ``cell`` pixels in the middle of an image that a
    deconvolution with 4 x 4 kernels and stride 2 can fill: even, and at least 4 (20 x 20 of an 84 x 84 image and cells
    of 4). 0 where there is none.

    Source: Jaderberg et al. (2017), UNREAL, section 4.1 (the central 80 x 80 pixels).
    """
    rows, columns = (side // cell // 2 * 2 for side in (height, width))
    return (rows if rows >= 4 else 0), (columns if columns >= 4 else 0)


@torch.no_grad()
def pixel_change(before: Tensor, after: Tensor, cell: int, grid: tuple[int, int]) -> Tensor:
    """Mean absolute change of the pixels of each cell, over its pixels and channels.

    Args: before, after: ``[..., C, H, W]``, bytes or floats; cell: side of a cell in pixels; grid: rows and columns of
    cells, in the middle of the image. Returns: float ``[..., rows, columns]``, in the unit of the pixels.
    Source: Jaderberg et al. (2017), UNREAL, section 3.1.
    """
    if before.shape != after.shape or before.ndim < 3:
        raise ValueError(
            f"pixel_change: expected two images of one shape [..., C, H, W], found {tuple(before.shape)} and "
            f"{tuple(after.shape)}"
        )
    *lead, channels, height, width = before.shape
    rows, columns = grid[0] * cell, grid[1] * cell
    if not (0 < rows <= height and 0 < columns <= width):
        raise ValueError(f"pixel_change: expected a grid within {height} x {width} pixels, found {rows} x {columns}")
    top, left = (height - rows) // 2, (width - columns) // 2
    middle = (..., slice(top, top + rows), slice(left, left + columns))
    change = (after[middle].float() - before[middle].float()).abs()
    means = F.avg_pool2d(change.reshape(-1, channels, rows, columns), cell).mean(1)
    return means.view(*lead, *grid)


def reward_class(rewards: Tensor) -> Tensor:
    """0: no reward, 1: a positive one, 2: a negative one.

    Args: rewards: float, any shape. Returns: int64 of the same shape.
    Source: Jaderberg et al. (2017), UNREAL, section 4.1 (reward prediction as classification).
    """
    return (rewards > 0).long() + 2 * (rewards < 0).long()
