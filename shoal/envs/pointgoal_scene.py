"""Scenes of point-goal navigation: rectangular rooms joined by doors, drawn from a seed. Lengths are in metres.

The floor of a scene is a union of rectangles ``(x0, x1, z0, z1)``: rooms, and doorways through the walls between them.
The centre of a square agent of half side ``radius`` can be anywhere in the union of the rooms shrunk by ``radius`` and
the doorways shrunk by it across and lengthened by it along (``Scene.free``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

WALL = 0.25  # thickness of walls
RADIUS = 0.2  # half the side of the agent
STEP = 1 / 16  # every length is a multiple, so that edges meet exactly
NUM_WALL_TEXTURES = 4  # kinds of wall texture
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True)
class Layout:
    """Rooms in a grid. rows, columns: the smallest and largest number; side: the shortest and longest side of a room;
    door: width of a doorway, 0 for as wide as the room; loops: probability of each door that connects no new room."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    side: tuple[float, float]
    door: float = 1.0
    loops: float = 0.0


LAYOUTS = {
    "room": Layout((1, 1), (1, 1), (3.0, 6.0)),
    "rooms": Layout((2, 3), (2, 3), (2.0, 4.0), loops=0.3),
    "maze": Layout((4, 5), (4, 5), (1.25, 1.25), door=0.0),
}


@dataclass(frozen=True, eq=False)
class Scene:
    """A scene. rooms: float64 ``[N, 4]``; doors: float64 ``[D, 4]``, in the order of ``links``, the pairs of rooms
    (left and right, or upper and lower) that they join; along_x: bool ``[D]``, whether the passage is along x; looks:
    int64 ``[N]``, which of ``NUM_WALL_TEXTURES`` textures each room has."""

    rooms: np.ndarray
    doors: np.ndarray
    links: tuple[tuple[int, int], ...]
    along_x: np.ndarray
    looks: np.ndarray

    @property
    def floor(self) -> np.ndarray:
        """Return every rectangle of floor, float64 ``[N + D, 4]``."""
        return np.concatenate([self.rooms, self.doors])

    def free(self, radius: float) -> np.ndarray:
        """Return the areas in which the centre of an agent may be, float64 ``[N + D, 4]``: closed rectangles."""
        shrink = np.array([radius, -radius, radius, -radius])
        along = np.array([-radius, radius, radius, -radius])
        through = np.where(self.along_x[:, None], along, along[[2, 3, 0, 1]])
        return np.concatenate([self.rooms + shrink, self.doors + through])


def make_scene(layout: Layout, split: Split, index: int) -> Scene:
    """Return scene ``index`` of a split. It is the same in every process, and in no other split."""
    rng = np.random.default_rng([SPLITS.index(split), index])
    rows, columns = (int(rng.integers(low, high + 1)) for low, high in (layout.rows, layout.columns))
    xs, zs = _spans(rng, columns, layout.side), _spans(rng, rows, layout.side)
    rooms = np.array([[*x, *z] for z in zs for x in xs])
    doors, links, along = [], [], []
    for a, b in _joined(rng, rows, columns, layout.loops):
        right = b == a + 1  # room b is to the right of a; otherwise below it
        low, high = (rooms[a, 2], rooms[a, 3]) if right else (rooms[a, 0], rooms[a, 1])
        low, high = _opening(rng, low, high, layout.door)
        doors.append([rooms[a, 1], rooms[b, 0], low, high] if right else [low, high, rooms[a, 3], rooms[b, 2]])
        links.append((a, b))
        along.append(right)
    looks = rng.integers(0, NUM_WALL_TEXTURES, len(rooms))
    return Scene(rooms, np.array(doors).reshape(-1, 4), tuple(links), np.array(along, bool), looks)


def _spans(rng: np.random.Generator, count: int, side: tuple[float, float]) -> list[tuple[float, float]]:
    """Return ``count`` intervals of random lengths, with a wall between each two."""
    out, at = [], 0.0
    for _ in range(count):
        length = STEP * int(rng.integers(round(side[0] / STEP), round(side[1] / STEP) + 1))
        out.append((at, at + length))
        at += length + WALL
    return out


def _opening(rng: np.random.Generator, low: float, high: float, width: float) -> tuple[float, float]:
    if not width:
        return low, high
    start = low + STEP * int(rng.integers(0, round((high - low - width) / STEP) + 1))
    return start, start + width


def _joined(rng: np.random.Generator, rows: int, columns: int, loops: float) -> list[tuple[int, int]]:
    """Return the pairs of neighbours in a grid that have a door: a random spanning tree (Kruskal), and some of the
    other pairs."""
    pairs = [(r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)]
    pairs += [(r * columns + c, (r + 1) * columns + c) for r in range(rows - 1) for c in range(columns)]
    group = list(range(rows * columns))
    out = []
    for i in rng.permutation(len(pairs)).tolist():
        a, b = pairs[i]
        if group[a] != group[b]:
            group = [group[a] if g == group[b] else g for g in group]
            out.append(pairs[i])
        elif rng.random() < loops:
            out.append(pairs[i])
    return out
