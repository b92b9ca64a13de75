"""Exact rays, walks and shortest paths in a union of rectangles, for depth images, motion and geodesic distances.

A shortest path among straight walls bends only at corners that protrude into the free space: here, at the corners of
doorways. The distance to a goal is therefore that of the straight line if it is free, or else the smallest over the
visible corners of the distance to the corner plus the corner's distance to the goal (a visibility graph).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.jit import jit

TOUCH = 1e-9  # metres; rectangles whose edges are closer are connected


@jit
def reach(x: float, z: float, dx: float, dz: float, rectangles: np.ndarray, most: float) -> float:
    """Return which multiple of (dx, dz), at most ``most``, a straight line from (x, z) reaches before it leaves the
    union of ``rectangles`` (float64 ``[N, 4]``: x0, x1, z0, z1). 0 outside of them."""
    t = 0.0
    while t < most:
        best = t
        for i in range(len(rectangles)):
            enter, leave = -math.inf, math.inf
            low, high = rectangles[i, 0] - TOUCH, rectangles[i, 1] + TOUCH
            if dx != 0.0:
                a, b = (low - x) / dx, (high - x) / dx
                enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
            elif x < low or x > high:
                continue
            low, high = rectangles[i, 2] - TOUCH, rectangles[i, 3] + TOUCH
            if dz != 0.0:
                a, b = (low - z) / dz, (high - z) / dz
                enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
            elif z < low or z > high:
                continue
            if enter <= t and leave > best:
                best = leave
        if best <= t:
            return t
        t = best
    return most


@jit
def _settle(x: float, z: float, rectangles: np.ndarray) -> tuple[float, float]:
    """Return the point, moved into the rectangle that it touches if it lies outside by rounding (``TOUCH``)."""
    for i in range(len(rectangles)):
        x0, x1, z0, z1 = rectangles[i, 0], rectangles[i, 1], rectangles[i, 2], rectangles[i, 3]
        if x0 - 2 * TOUCH <= x <= x1 + 2 * TOUCH and z0 - 2 * TOUCH <= z <= z1 + 2 * TOUCH:
            return min(max(x, x0), x1), min(max(z, z0), z1)
    return x, z


@jit
def walk(x: float, z: float, dx: float, dz: float, rectangles: np.ndarray, slide: bool) -> tuple[float, float]:
    """Return the end of a step by (dx, dz) from (x, z) in the free space: at the first wall or, with ``slide``, further
    along the wall by the rest of the step's component in that direction."""
    t = reach(x, z, dx, dz, rectangles, 1.0)
    x, z = _settle(x + t * dx, z + t * dz, rectangles)
    if slide and t < 1.0:
        dx, dz = (1.0 - t) * dx, (1.0 - t) * dz
        x += reach(x, z, dx, 0.0, rectangles, 1.0) * dx
        z += reach(x, z, 0.0, dz, rectangles, 1.0) * dz
        x, z = _settle(x, z, rectangles)
    return x, z


@jit
def wall_distances(
    x: float, z: float, heading: float, slopes: np.ndarray, far: float, floor: np.ndarray, out: np.ndarray
) -> None:
    """Compute the distance of the wall along the heading (not along the ray), for each column of a picture.

    heading: radians, 0 is towards +x, increasing to the left (towards -z); slopes: float64 ``[W]``, how far a column's
    ray goes to the right per metre ahead; out: float64 ``[W]``, at most ``far`` metres.
    """
    c, s = math.cos(heading), math.sin(heading)
    for i in range(len(slopes)):
        out[i] = reach(x, z, c + slopes[i] * s, -s + slopes[i] * c, floor, far)


@jit
def _link(points: np.ndarray, rectangles: np.ndarray, out: np.ndarray) -> None:
    """Fill ``out`` with the distances ``[V, V]`` of points that see each other, infinity elsewhere."""
    for i in range(len(points)):
        out[i, i] = 0.0
        for j in range(i):
            dx, dz = points[j, 0] - points[i, 0], points[j, 1] - points[i, 1]
            seen = reach(points[i, 0], points[i, 1], dx, dz, rectangles, 1.0) >= 1.0
            out[i, j] = out[j, i] = math.hypot(dx, dz) if seen else math.inf


@jit
def _dijkstra(links: np.ndarray, length: np.ndarray, after: np.ndarray, done: np.ndarray) -> None:
    """Compute the shortest ``length`` from each corner to the goal from initial estimates. after: the next corner on
    the path, -1 for the goal itself."""
    for _ in range(len(length)):
        i = -1
        for j in range(len(length)):
            if not done[j] and (i < 0 or length[j] < length[i]):
                i = j
        done[i] = True
        for j in range(len(length)):
            if length[i] + links[i, j] < length[j]:
                length[j] = length[i] + links[i, j]
                after[j] = i


@jit
def _nearest(x: float, z: float, corners: np.ndarray, length: np.ndarray, rectangles: np.ndarray) -> int:
    """Return the visible corner with the shortest path over it, or -1 if none is visible."""
    best, found = math.inf, -1
    for i in range(len(corners)):
        dx, dz = corners[i, 0] - x, corners[i, 1] - z
        way = math.hypot(dx, dz) + length[i]
        if way < best and reach(x, z, dx, dz, rectangles, 1.0) >= 1.0:
            best, found = way, i
    return found


@dataclass(frozen=True, eq=False)
class Goal:
    """A goal in the free space. length: float64 ``[V]``, metres from each corner to it; after: the next corner on that
    path, -1 for the goal itself."""

    x: float
    z: float
    length: np.ndarray
    after: np.ndarray


class Paths:
    """Shortest paths in the free space ``rectangles`` (float64 ``[N, 4]``), which bend at ``corners`` (float64 ``[V,
    2]``)."""

    def __init__(self, rectangles: np.ndarray, corners: np.ndarray) -> None:
        self.rectangles, self.corners = rectangles, corners
        self._links = np.zeros((len(corners), len(corners)))
        _link(corners, rectangles, self._links)

    def aim(self, x: float, z: float) -> Goal:
        """Return the precomputed ``Goal`` at (x, z) for the other methods."""
        length = np.array([self._straight(float(cx), float(cz), x, z) for cx, cz in self.corners])
        after = np.full(len(self.corners), -1)
        _dijkstra(self._links, length, after, np.zeros(len(self.corners), np.bool_))
        return Goal(x, z, length, after)

    def distance(self, x: float, z: float, goal: Goal) -> float:
        """Return the length of the shortest path from (x, z) to the goal in metres; infinity if there is none."""
        straight = self._straight(x, z, goal.x, goal.z)
        if straight < math.inf:
            return straight
        i = _nearest(x, z, self.corners, goal.length, self.rectangles)
        if i < 0:
            return math.inf
        return math.hypot(self.corners[i, 0] - x, self.corners[i, 1] - z) + float(goal.length[i])

    def path(self, x: float, z: float, goal: Goal) -> list[tuple[float, float]]:
        """Return the points of the shortest path from (x, z) to the goal."""
        points = [(x, z)]
        if self._straight(x, z, goal.x, goal.z) == math.inf:
            i = _nearest(x, z, self.corners, goal.length, self.rectangles)
            while i >= 0:
                points.append((float(self.corners[i, 0]), float(self.corners[i, 1])))
                i = int(goal.after[i])
        return [*points, (goal.x, goal.z)]

    def _straight(self, x: float, z: float, to_x: float, to_z: float) -> float:
        dx, dz = to_x - x, to_z - z
        return math.hypot(dx, dz) if reach(x, z, dx, dz, self.rectangles, 1.0) >= 1.0 else math.inf
