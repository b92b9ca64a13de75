"""Point-goal navigation: walk to a goal given by its distance and direction, through rooms never seen before.

Anderson et al. 2018, "On evaluation of embodied navigation agents" (the task and SPL); Wijmans et al. 2020, "DD-PPO"
(reward, sensors, actions). Names are ``pointgoal:SENSOR`` or ``pointgoal:SENSOR-LAYOUT``; see docs/pointgoal.md.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.api import UsageError
from shoal.types import Values

from .pointgoal_camera import Camera, DepthCamera, RgbCamera
from .pointgoal_geometry import Paths, walk
from .pointgoal_map import picture
from .pointgoal_scene import LAYOUTS, RADIUS, SPLITS, Scene, Split, make_scene

STOP, FORWARD, LEFT, RIGHT = range(4)
SENSORS = ("depth", "rgb", "blind")
SLACK, SUCCESS = -0.01, 2.5  # rewards: of each step, and of success times SPL (Wijmans et al. 2020)


def spl(success: bool, shortest: float, walked: float) -> float:
    """Return success weighted by path length, ``S * l / max(p, l)`` (Anderson et al. 2018); lengths in metres."""
    return shortest / max(walked, shortest) if success else 0.0


@dataclass(frozen=True, eq=False)
class World:
    """A scene and the shortest paths in it."""

    scene: Scene
    paths: Paths


@functools.lru_cache(maxsize=256)
def world(layout: str, split: Split, index: int) -> World:
    """Return scene ``index`` of a split, for agents of the task's size."""
    scene = make_scene(LAYOUTS[layout], split, index)
    free = scene.free(RADIUS)
    doors = free[len(scene.rooms) :]
    return World(scene, Paths(free, np.concatenate([doors[:, [i, j]] for i in (0, 1) for j in (2, 3)])))


class Trip:
    """One agent on its way from a start to a goal. x, z: metres; heading: radians, 0 towards +x, increasing to the left
    (towards -z); distance: geodesic, to the goal; shortest: that of the start; walked: length of the path so far;
    trace: its points."""

    def __init__(
        self, world: World, start: tuple[float, float, float], goal: tuple[float, float], slide: bool = True
    ) -> None:
        self.world, self.slide = world, slide
        self.x, self.z, self.heading = start
        self.goal = world.paths.aim(*goal)
        self.distance = self.shortest = world.paths.distance(self.x, self.z, self.goal)
        self.walked = 0.0
        self.trace = [(self.x, self.z)]

    def move(self, action: int, forward: float, turn: float) -> None:
        """Execute an action other than STOP. forward: metres; turn: radians."""
        if action == FORWARD:
            dx, dz = forward * math.cos(self.heading), -forward * math.sin(self.heading)
            x, z = walk(self.x, self.z, dx, dz, self.world.paths.rectangles, self.slide)
            self.walked += math.hypot(x - self.x, z - self.z)
            self.x, self.z = x, z
            self.distance = self.world.paths.distance(x, z, self.goal)
            self.trace.append((x, z))
        else:
            self.heading = (self.heading + (turn if action == LEFT else -turn)) % math.tau

    def compass(self) -> tuple[float, float, float]:
        """Return the goal as seen from the agent: metres of the straight line, cosine and sine of the angle to the
        left."""
        dx, dz = self.goal.x - self.x, self.goal.z - self.z
        angle = math.atan2(-dz, dx) - self.heading
        return math.hypot(dx, dz), math.cos(angle), math.sin(angle)

    @property
    def scene(self) -> Scene:
        return self.world.scene

    def picture(self, view: np.ndarray) -> np.ndarray:
        """Return the agent's view (uint8 ``[C, H, W]``) beside a map as one image, uint8 ``[H, W, 3]``."""
        shortest = self.world.paths.path(*self.trace[0], self.goal)
        return picture(view, self.scene, shortest, self.trace, (self.goal.x, self.goal.z), self.heading)


def draw_trip(world: World, rng: np.random.Generator, least: float, slide: bool = True) -> Trip:
    """Draw a start, a heading and a goal uniformly over the free space, with a geodesic distance of at least ``least``
    metres (or the longest of 100 draws, if none has)."""
    free = world.paths.rectangles
    areas = (free[:, 1] - free[:, 0]) * (free[:, 3] - free[:, 2])
    best: Trip | None = None
    for _ in range(100):
        (x, z), goal = (_anywhere(free[rng.choice(len(free), p=areas / areas.sum())], rng) for _ in range(2))
        trip = Trip(world, (x, z, float(rng.uniform(0, math.tau))), goal, slide)
        if best is None or trip.shortest > best.shortest:
            best = trip
        if best.shortest >= least:
            break
    assert best is not None
    return best


def _anywhere(rectangle: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    x0, x1, z0, z1 = rectangle.tolist()
    return float(rng.uniform(x0, x1)), float(rng.uniform(z0, z1))


class PointGoal(VectorEnv[Any, Any, np.ndarray]):
    """The vector environment of point-goal navigation.

    Actions: 0 stop, 1 forward, 2 left, 3 right. Observations: ``goal``, float32 ``[3]`` (``Trip.compass``), and
    ``depth`` (uint8 ``[1, H, W]``, 0 to 10 metres ahead) or ``rgb`` (uint8 ``[3, H, W]``). Reward: the decrease of the
    geodesic distance, minus 0.01, and, on a stop within ``success_distance`` of the goal, 2.5 times SPL. A stop
    terminates the episode, ``max_episode_steps`` truncates it. Its last ``info`` holds ``success``, ``spl`` and
    ``distance_to_goal``. Each episode uses another scene of the split.

    split: ``train`` or ``validation``; scenes: how many of it are used; forward: metres; turn: degrees;
    success_distance: metres, geodesic; slide: along walls, instead of stopping at them; least: metres of the shortest
    path from a start to its goal.
    """

    def __init__(
        self,
        num_envs: int,
        sensor: str = "depth",
        layout: str = "rooms",
        split: Split = "train",
        scenes: int = 1000,
        forward: float = 0.25,
        turn: float = 10.0,
        success_distance: float = 0.2,
        slide: bool = True,
        least: float = 1.0,
        height: int = 48,
        width: int = 64,
        max_episode_steps: int = 500,
        render_mode: str | None = None,
    ):
        for name, value, known in (
            ("sensor", sensor, SENSORS),
            ("layout", layout, tuple(LAYOUTS)),
            ("split", split, SPLITS),
        ):
            if value not in known:
                raise UsageError(f"pointgoal: {name} is one of {', '.join(known)}, found {value!r}")
        for name, number in (("scenes", scenes), ("height", height), ("width", width), ("forward", forward),
                             ("turn", turn), ("success_distance", success_distance)):  # fmt: skip
            if not number > 0:
                raise UsageError(f"pointgoal: {name} is a number above 0, found {number!r}")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": 10}
        self.num_envs, self.sensor, self.split, self.scenes = num_envs, sensor, split, int(scenes)
        self.forward, self.turn, self.success_distance = forward, math.radians(turn), success_distance
        self.slide, self.least, self.limit, self.render_mode = slide, least, max_episode_steps, render_mode
        self._layout = layout
        spaces: dict[str, gs.Space[Any]] = {"goal": gs.Box(-1, np.inf, (3,), np.float32)}
        if sensor != "blind":
            spaces[sensor] = gs.Box(0, 255, (1 if sensor == "depth" else 3, height, width), np.uint8)
        self.single_observation_space, self.single_action_space = gs.Dict(spaces), gs.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._camera: Camera = RgbCamera(height, width) if sensor == "rgb" else DepthCamera(height, width)
        self._steps = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: Values | None = None) -> tuple[Any, Values]:
        super().reset(seed=seed)
        self._rngs = self.np_random.spawn(self.num_envs)
        self.trips = [self._begin(row) for row in range(self.num_envs)]
        self._ended[:] = False
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Values]:
        reward = np.zeros(self.num_envs, np.float32)
        again, terminated = self._ended, np.zeros(self.num_envs, np.bool_)
        numbers = np.zeros((3, self.num_envs))
        for row, action in enumerate(np.asarray(actions).tolist()):
            if again[row]:
                self.trips[row] = self._begin(row)
                continue
            self._steps[row] += 1
            trip, before = self.trips[row], self.trips[row].distance
            if action == STOP:
                terminated[row] = True
            else:
                trip.move(action, self.forward, self.turn)
            success = action == STOP and trip.distance < self.success_distance
            score = spl(success, trip.shortest, trip.walked)
            reward[row] = before - trip.distance + SLACK + SUCCESS * score
            numbers[:, row] = success, score, trip.distance
        truncated = (self._steps >= self.limit) & ~terminated & ~again
        self._ended = terminated | truncated
        info: Values = {}
        if self._ended.any():
            for name, values in zip(("success", "spl", "distance_to_goal"), numbers, strict=True):
                info |= {name: values, f"_{name}": self._ended.copy()}
        return self._observe(), reward, terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Return an image for each agent, uint8 ``[H, W, 3]``: its view beside a map of the scene with its path."""
        if self.render_mode is None:
            return None
        views = self._camera.views(self.trips)
        return tuple(trip.picture(view) for trip, view in zip(self.trips, views, strict=True))

    def close(self, **_: Any) -> None:
        self._camera.close()

    def _begin(self, row: int) -> Trip:
        rng = self._rngs[row]
        self._steps[row] = 0
        return draw_trip(world(self._layout, self.split, int(rng.integers(self.scenes))), rng, self.least, self.slide)

    def _observe(self) -> Any:
        out = {"goal": np.array([trip.compass() for trip in self.trips], np.float32)}
        if self.sensor != "blind":
            out[self.sensor] = self._camera.views(self.trips)
        return out
