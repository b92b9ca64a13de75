"""What an agent of point-goal navigation sees: depth, by casting one ray per column, or colours, by MiniWorld.

All walls are upright, the floor and the ceiling are level. So the wall's distance is the same in a whole column of a
picture, the floor's or the ceiling's in a whole row, and the nearer of the two is what a pixel shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .pointgoal_geometry import wall_distances
from .pointgoal_scene import Scene

EYE, CEILING = 1.25, 2.5  # metres above the floor
FIELD_OF_VIEW = math.radians(90)  # from the left edge of a picture to the right one
MAX_DEPTH_METRES = 10.0  # metres: what a depth image calls 255


class Seen(Protocol):
    """Where a camera is: in a world's scene, at (x, z), looking along ``heading`` (radians)."""

    x: float
    z: float
    heading: float

    @property
    def scene(self) -> Scene: ...


class Camera(Protocol):
    """Pictures uint8 ``[E, C, H, W]`` of what E agents see."""

    def views(self, agents: Sequence[Seen]) -> np.ndarray: ...
    def close(self) -> None: ...


class DepthCamera:
    """Distance ahead (along the heading, as in a depth buffer), 0 to 10 metres as 0 to 255."""

    def __init__(self, height: int, width: int) -> None:
        across = math.tan(FIELD_OF_VIEW / 2)
        self._slopes = across * ((2 * np.arange(width) + 1) / width - 1)
        up = across * height / width * (1 - (2 * np.arange(height) + 1) / height)
        with np.errstate(divide="ignore"):
            level = np.where(up > 0, (CEILING - EYE) / up, -EYE / np.minimum(up, 0))
        self._level = np.minimum(level, MAX_DEPTH_METRES)  # [H], of the ceiling or the floor

    def depths(self, agent: Seen) -> np.ndarray:
        """Metres, float64 ``[H, W]``, at most 10."""
        walls = np.empty(len(self._slopes))
        wall_distances(agent.x, agent.z, agent.heading, self._slopes, MAX_DEPTH_METRES, agent.scene.floor, walls)
        return np.minimum(self._level[:, None], walls)

    def views(self, agents: Sequence[Seen]) -> np.ndarray:
        out = np.empty((len(agents), 1, len(self._level), len(self._slopes)), np.uint8)
        for picture, agent in zip(out, agents, strict=True):
            np.multiply(self.depths(agent), 255 / MAX_DEPTH_METRES, out=picture[0], casting="unsafe")
        return out

    def close(self) -> None:
        """Nothing to do."""


class RgbCamera:
    """Colours, drawn by MiniWorld in the process that asks for the first picture."""

    def __init__(self, height: int, width: int) -> None:
        from . import pointgoal_miniworld

        pointgoal_miniworld.check()
        self._size = height, width
        self._renderer: Any = None

    def views(self, agents: Sequence[Seen]) -> np.ndarray:
        if self._renderer is None:
            from .pointgoal_miniworld import Renderer

            self._renderer = Renderer(*self._size, EYE, CEILING, FIELD_OF_VIEW)
        return np.stack([self._renderer.view(agent.scene, agent.x, agent.z, agent.heading) for agent in agents])

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
