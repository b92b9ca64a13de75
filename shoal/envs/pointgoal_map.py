"""Images of point-goal navigation for people: the agent's view beside a map of the scene with its path."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .pointgoal_scene import WALL, Scene

SIDE = 320  # pixels of the image's height
WALLS, FLOOR, SHORTEST, WALKED, GOAL, AGENT = (
    np.array(colour, np.uint8)
    for colour in ((40, 44, 52), (235, 235, 230), (150, 200, 150), (60, 110, 220), (40, 160, 60), (220, 60, 40))
)
Points = Sequence[tuple[float, float]]


def picture(
    view: np.ndarray, scene: Scene, shortest: Points, walked: Points, goal: tuple[float, float], heading: float
) -> np.ndarray:
    """Return an image uint8 ``[H, W, 3]`` with the view on the left and the map on the right. view: uint8 ``[C, H,
    W]``; paths and goal: points (x, z) in metres; heading: radians."""
    times = max(1, SIDE // view.shape[1])
    seen = np.broadcast_to(view.transpose(1, 2, 0), (*view.shape[1:], 3)).repeat(times, 0).repeat(times, 1)
    drawn = draw_map(scene, shortest, walked, goal, heading, seen.shape[0])
    return np.concatenate([seen, drawn], 1)


def draw_map(
    scene: Scene, shortest: Points, walked: Points, goal: tuple[float, float], heading: float, side: int
) -> np.ndarray:
    """Return a map, uint8 ``[side, side, 3]``: x to the right, z downwards. The agent is at the end of ``walked``."""
    out = np.empty((side, side, 3), np.uint8)
    out[:] = WALLS
    floor = scene.floor
    scale = side / (max(floor[:, 1].max(), floor[:, 3].max()) + 2 * WALL)

    def at(x: float, z: float) -> tuple[int, int]:
        return round((z + WALL) * scale), round((x + WALL) * scale)

    for x0, x1, z0, z1 in floor.tolist():
        (top, left), (bottom, right) = at(x0, z0), at(x1, z1)
        out[top:bottom, left:right] = FLOOR

    def dots(points: Points, colour: np.ndarray, radius: float) -> None:
        for x, z in points:
            row, column = at(x, z)
            r = max(1, round(radius * scale))
            rows, columns = np.ogrid[-row : side - row, -column : side - column]
            out[rows**2 + columns**2 <= r * r] = colour

    def line(points: Points, colour: np.ndarray) -> None:
        for (x0, z0), (x1, z1) in itertools.pairwise(points):
            steps = np.linspace(0, 1, max(2, int(scale * max(abs(x1 - x0), abs(z1 - z0)))))
            rows = np.round((z0 + steps * (z1 - z0) + WALL) * scale).astype(int)
            columns = np.round((x0 + steps * (x1 - x0) + WALL) * scale).astype(int)
            for i in (0, 1):
                for j in (0, 1):
                    out[np.clip(rows + i, 0, side - 1), np.clip(columns + j, 0, side - 1)] = colour

    line(shortest, SHORTEST)
    line(walked, WALKED)
    dots([goal], GOAL, 0.2)
    x, z = walked[-1]
    dots([(x, z)], AGENT, 0.2)
    line([(x, z), (x + 0.5 * float(np.cos(heading)), z - 0.5 * float(np.sin(heading)))], AGENT)
    return out
