"""Cameras of point-goal navigation: depth by casting one ray per column, or colours by MiniWorld.

All walls are vertical, floor and ceiling are horizontal. The distance of the wall is therefore the same in a whole
column of a picture, that of the floor or ceiling in a whole row, and a pixel shows the nearer of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .pointgoal_geometry import wall_distances
from .pointgoal_scene import Scene

EYE, CEILING = 1.25, 2.5  # metres above the floor
FIELD_OF_VIEW = math.radians(90)  # horizontal
MAX_DEPTH_METRES = 10.0  # depth shown as 255


class Seen(Protocol):
    """The pose of a camera: in a world's scene, at (x, z), looking along ``heading`` (radians)."""

    x: float
    z: float
    heading: float

    @property
    def scene(self) -> Scene: ...


class Camera(Protocol):
    """Renders the views of E agents as uint8 ``[E, C, H, W]``."""

    def views(self, agents: Sequence[Seen]) -> np.ndarray: ...
    def close(self) -> None: ...


class DepthCamera:
    """Renders the distance along the heading, as in a depth buffer: 0 to 10 metres as 0 to 255."""

    def __init__(self, height: int, width: int) -> None:
        across = math.tan(FIELD_OF_VIEW / 2)
        self._slopes = across * ((2 * np.arange(width) + 1) / width - 1)
        up = across * height / width * (1 - (2 * np.arange(height) + 1) / height)
        with np.errstate(divide="ignore"):
            level = np.where(up > 0, (CEILING - EYE) / up, -EYE / np.minimum(up, 0))
        self._level = np.minimum(level, MAX_DEPTH_METRES)  # [H], distance of the ceiling or the floor

    def depths(self, agent: Seen) -> np.ndarray:
        """Return depths in metres, float64 ``[H, W]``, at most 10."""
        walls = np.empty(len(self._slopes))
        wall_distances(agent.x, agent.z, agent.heading, self._slopes, MAX_DEPTH_METRES, agent.scene.floor, walls)
        return np.minimum(self._level[:, None], walls)

    def views(self, agents: Sequence[Seen]) -> np.ndarray:
        out = np.empty((len(agents), 1, len(self._level), len(self._slopes)), np.uint8)
        for picture, agent in zip(out, agents, strict=True):
            np.multiply(self.depths(agent), 255 / MAX_DEPTH_METRES, out=picture[0], casting="unsafe")
        return out

    def close(self) -> None:
        """Do nothing, as there are no resources."""


class RgbCamera:
    """Renders colours with MiniWorld, in the process that asks for the first picture."""

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
