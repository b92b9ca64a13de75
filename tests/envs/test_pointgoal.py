"""Point-goal navigation: scenes, shortest paths, motion, reward and SPL, without drawing anything."""

from __future__ import annotations

import heapq
import itertools
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from shoal.api import UsageError
from shoal.envs import EnvOptions, held_out, make, spec
from shoal.envs.pointgoal import FORWARD, LEFT, RIGHT, STOP, PointGoal, Trip, World, spl, world
from shoal.envs.pointgoal_camera import CEILING, EYE, MAX_DEPTH_METRES, DepthCamera
from shoal.envs.pointgoal_geometry import Paths, reach, walk
from shoal.envs.pointgoal_scene import LAYOUTS, RADIUS, SPLITS, WALL, Scene, make_scene
from shoal.extras import pip_install

L = np.array([[0.0, 4.0, 0.0, 1.0], [3.0, 4.0, 1.0, 5.0]])  # a corridor along x, then one along z
CORNER = np.array([[3.0, 1.0]])


def two_rooms(door: tuple[float, float] = (1.0, 2.0)) -> Scene:
    """Side by side, 4 x 3 m each, joined by a doorway."""
    rooms = np.array([[0.0, 4.0, 0.0, 3.0], [4.0 + WALL, 8.0 + WALL, 0.0, 3.0]])
    doors = np.array([[4.0, 4.0 + WALL, *door]])
    return Scene(rooms, doors, ((0, 1),), np.array([True]), np.array([0, 1]))


def world_of(scene: Scene) -> World:
    free = scene.free(RADIUS)
    doors = free[len(scene.rooms) :]
    return World(scene, Paths(free, np.concatenate([doors[:, [i, j]] for i in (0, 1) for j in (2, 3)])))


# ------------------------------------------------------------------------------------------------ lines
def test_reach_of_a_straight_line() -> None:
    assert reach(1.0, 0.5, 1.0, 0.0, L, 100.0) == pytest.approx(3.0, abs=1e-8)
    assert reach(1.0, 0.5, 2.0, 0.0, L, 100.0) == pytest.approx(1.5, abs=1e-8)  # in lengths of the direction
    assert reach(3.5, 0.5, 0.0, 1.0, L, 100.0) == pytest.approx(4.5, abs=1e-8)  # through the shared edge
    assert reach(3.5, 0.5, 0.0, 1.0, L, 2.0) == 2.0
    assert reach(1.0, 2.0, 1.0, 0.0, L, 1.0) == 0.0  # starts in a wall
    assert reach(1.0, 1.0, 1.0, 0.0, L, 100.0) == pytest.approx(3.0, abs=1e-8)  # along a wall
    assert reach(2.0, 0.0, 1.0, 1.0, L, 100.0) == pytest.approx(2.0, abs=1e-8)  # just past the corner
    assert reach(1.9, 0.0, 1.0, 1.0, L, 100.0) == pytest.approx(1.0, abs=1e-8)  # just not


def test_reach_agrees_with_small_steps() -> None:
    rng = np.random.default_rng(0)
    for index in range(20):
        floor = make_scene(LAYOUTS["rooms"], "train", index).floor
        rect = floor[rng.integers(len(floor))]
        x, z, angle = rng.uniform(rect[0], rect[1]), rng.uniform(rect[2], rect[3]), rng.uniform(0, math.tau)
        dx, dz = math.cos(angle), math.sin(angle)
        steps = np.arange(0, 20, 1e-3)
        px, pz = (x + steps * dx)[:, None], (z + steps * dz)[:, None]
        inside = ((floor[:, 0] <= px) & (px <= floor[:, 1]) & (floor[:, 2] <= pz) & (pz <= floor[:, 3])).any(1)
        assert reach(x, z, dx, dz, floor, 20.0) == pytest.approx(steps[inside.argmin() - 1], abs=2e-3)


# -------------------------------------------------------------------------------------- shortest paths
def test_geodesic_distances_around_one_corner() -> None:
    paths = Paths(L, CORNER)
    goal = paths.aim(3.5, 4.0)
    assert paths.distance(3.5, 1.0, goal) == 3.0  # in sight
    assert paths.distance(0.0, 1.0, goal) == pytest.approx(3.0 + math.hypot(0.5, 3.0))
    assert paths.path(0.0, 0.5, goal) == [(0.0, 0.5), (3.0, 1.0), (3.5, 4.0)]
    assert paths.path(3.5, 1.0, goal) == [(3.5, 1.0), (3.5, 4.0)]


def test_no_way_is_infinite() -> None:
    apart = np.array([[0.0, 1.0, 0.0, 1.0], [2.0, 3.0, 0.0, 1.0]])
    paths = Paths(apart, np.zeros((0, 2)))
    assert paths.distance(0.5, 0.5, paths.aim(2.5, 0.5)) == math.inf


def grid_distance(free: np.ndarray, start: tuple[float, float], goal: tuple[float, float], cell: float) -> float:
    """Dijkstra over points ``cell`` apart, joined to all within 4 of them where 8 points between are free."""
    near = [(i, j) for i in range(-4, 5) for j in range(-4, 5) if math.gcd(i, j) == 1]

    def is_free(x: np.ndarray, z: np.ndarray) -> bool:
        x, z = x[:, None], z[:, None]
        tiny = 1e-9
        inside = (
            (free[:, 0] - tiny <= x) & (x <= free[:, 1] + tiny) & (free[:, 2] - tiny <= z) & (z <= free[:, 3] + tiny)
        )
        return bool(inside.any(1).all())

    between = np.linspace(0, 1, 8)
    best = {(0, 0): 0.0}
    queue = [(0.0, (0, 0))]
    while queue:
        d, (i, j) = heapq.heappop(queue)
        if d > best[i, j]:
            continue
        x, z = start[0] + i * cell, start[1] + j * cell
        if math.hypot(goal[0] - x, goal[1] - z) < 2 * cell:
            return d + math.hypot(goal[0] - x, goal[1] - z)
        for a, b in near:
            way = d + cell * math.hypot(a, b)
            if way < best.get((i + a, j + b), math.inf) and is_free(x + between * a * cell, z + between * b * cell):
                best[i + a, j + b] = way
                heapq.heappush(queue, (way, (i + a, j + b)))
    return math.inf


@pytest.mark.parametrize("layout, index", [("rooms", 0), ("maze", 0)])
def test_geodesic_distances_agree_with_a_grid(layout: str, index: int) -> None:
    place, rng = world(layout, "validation", index), np.random.default_rng(index)
    free = place.paths.rectangles
    for _ in range(2):
        ends = [free[rng.integers(len(place.scene.rooms))] for _ in range(2)]
        (x, z), goal = ((float(rng.uniform(r[0], r[1])), float(rng.uniform(r[2], r[3]))) for r in ends)
        exact = place.paths.distance(x, z, place.paths.aim(*goal))
        coarse = grid_distance(free, (x, z), goal, 0.1)
        assert exact <= coarse + 1e-9  # a path on a grid is a path
        assert coarse <= 1.03 * exact + 0.25
        back = place.paths.distance(*goal, place.paths.aim(x, z))
        assert back == pytest.approx(exact, abs=1e-6)
        points = place.paths.path(x, z, place.paths.aim(*goal))
        legs = [math.dist(a, b) for a, b in itertools.pairwise(points)]
        assert sum(legs) == pytest.approx(exact)
        for a, b in itertools.pairwise(points):
            assert reach(*a, b[0] - a[0], b[1] - a[1], free, 1.0) >= 1.0


# ----------------------------------------------------------------------------------------------- scenes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_place_of_a_scene_can_be_reached(layout: str) -> None:
    for index in range(10):
        place = world(layout, "train", index)
        free = place.paths.rectangles
        assert (free[:, 0] < free[:, 1]).all() and (free[:, 2] < free[:, 3]).all()
        goal = place.paths.aim(float(free[0, 0]), float(free[0, 2]))
        middles = (free[:, [0, 2]] + free[:, [1, 3]]) / 2
        assert all(place.paths.distance(x, z, goal) < math.inf for x, z in middles.tolist())


def test_doorways_join_their_rooms_exactly() -> None:
    for index in range(20):
        scene = make_scene(LAYOUTS["rooms"], "train", index)
        for (a, b), door, along in zip(scene.links, scene.doors, scene.along_x, strict=True):
            i, across = (0, (2, 3)) if along else (2, (0, 1))
            assert door[i] == scene.rooms[a, i + 1] and door[i + 1] == scene.rooms[b, i]
            assert door[across[1]] - door[across[0]] == 1.0
            for room in (a, b):
                assert scene.rooms[room, across[0]] <= door[across[0]] < door[across[1]] <= scene.rooms[room, across[1]]


def test_scenes_follow_from_their_number_in_every_process() -> None:
    code = (
        "from shoal.envs.pointgoal_scene import *;"
        "print([make_scene(LAYOUTS[l], s, 7).floor.tobytes().hex() for l in LAYOUTS for s in SPLITS])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = [make_scene(LAYOUTS[layout], s, 7).floor.tobytes().hex() for layout in LAYOUTS for s in SPLITS]
    assert told.strip() == str(here)
    floors = [
        make_scene(LAYOUTS["rooms"], split, i).floor.tobytes() for split in ("train", "validation") for i in range(50)
    ]
    assert len(set(floors)) == 100  # none is in both splits


# ----------------------------------------------------------------------------------------------- motion
def test_a_step_goes_ahead_and_turns_to_the_left() -> None:
    trip = Trip(world_of(two_rooms()), (1.0, 1.5, 0.0), (3.0, 1.5))
    trip.move(FORWARD, 0.25, 1.0)
    assert (trip.x, trip.z, trip.walked) == (1.25, 1.5, 0.25)
    assert trip.compass() == pytest.approx((1.75, 1.0, 0.0))
    trip.move(LEFT, 0.25, math.pi / 2)
    assert trip.compass() == pytest.approx((1.75, 0.0, -1.0), abs=1e-9)  # the goal is to the right now
    trip.move(FORWARD, 0.25, 1.0)
    assert (trip.x, trip.z) == pytest.approx((1.25, 1.25))  # left of +x is -z
    trip.move(RIGHT, 0.25, math.pi / 2)
    assert trip.compass()[2] == pytest.approx(-0.25 / math.hypot(1.75, 0.25))


def test_walls_stop_and_are_slid_along() -> None:
    free = np.array([[0.0, 2.0, 0.0, 2.0]])
    assert walk(1.9, 1.0, 0.3, 0.4, free, False) == pytest.approx((2.0, 1.0 + 0.4 / 3))
    assert walk(1.9, 1.0, 0.3, 0.4, free, True) == pytest.approx((2.0, 1.4))
    assert walk(2.0, 1.0, 1.0, 0.0, free, True) == (2.0, 1.0)
    assert walk(1.9, 1.9, 0.3, 0.4, free, True) == (2.0, 2.0)  # into the corner


@pytest.mark.parametrize("slide", [True, False])
@pytest.mark.parametrize("layout", ["rooms", "maze"])
def test_an_agent_never_leaves_the_free_space_nor_gets_stuck(layout: str, slide: bool) -> None:
    rng = np.random.default_rng(3)
    for index in range(5):
        place = world(layout, "train", index)
        free = place.paths.rectangles
        trip = Trip(place, (float(free[0, 0]), float(free[0, 2]), 0.0), (float(free[0, 1]), float(free[0, 3])), slide)
        moved = 0
        for _ in range(400):
            before = trip.x, trip.z
            trip.move(int(rng.choice([FORWARD, FORWARD, FORWARD, LEFT])), 0.25, math.radians(35))
            inside = (free[:, 0] <= trip.x) & (trip.x <= free[:, 1]) & (free[:, 2] <= trip.z) & (trip.z <= free[:, 3])
            assert inside.any() and trip.distance < math.inf
            moved += before != (trip.x, trip.z)
        assert moved > 100
        for _ in range(16):  # from wherever it is, some direction is free
            trip.move(LEFT, 0.25, math.tau / 16)
            before = trip.x, trip.z
            trip.move(FORWARD, 0.01, 0.0)
            if before != (trip.x, trip.z):
                break
        else:
            pytest.fail("stuck")


# --------------------------------------------------------------------------------------- reward and SPL
def test_spl_of_the_fact_sheet() -> None:
    three = [spl(True, 10.0, 12.0), spl(False, 3.0, 3.0), spl(True, 5.0, 4.9)]
    assert np.mean(three) == pytest.approx(0.611111, abs=1e-6)


def placed(distance: float, **given: float) -> PointGoal:
    """One agent that faces its goal ``distance`` metres ahead in an empty room."""
    env = PointGoal(1, "blind", "room", **given)  # type: ignore[arg-type]
    env.reset(seed=0)
    scene = Scene(np.array([[0.0, 9.0, 0.0, 3.0]]), np.zeros((0, 4)), (), np.zeros(0, bool), np.array([0]))
    env.trips[0] = Trip(world_of(scene), (0.5, 1.5, 0.0), (0.5 + distance, 1.5))
    return env


def test_rewards_of_the_fact_sheet() -> None:
    env = placed(5.0, forward=0.2)
    _, reward, *_ = env.step([FORWARD])
    assert reward[0] == pytest.approx(0.19)  # 5.0 -> 4.8
    _, reward, *_ = env.step([LEFT])
    assert reward[0] == pytest.approx(-0.01)


def test_a_stop_at_the_goal_is_paid_by_spl() -> None:
    env = placed(1.0)
    for action in (LEFT, RIGHT, FORWARD, FORWARD, FORWARD, FORWARD):
        obs, _, terminated, truncated, info = env.step([action])
        assert not terminated[0] and not truncated[0] and info == {}
    assert obs["goal"][0] == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)
    _, reward, terminated, truncated, info = env.step([STOP])
    assert terminated[0] and not truncated[0] and reward[0] == pytest.approx(2.49)
    assert {k: v.tolist() for k, v in info.items()} == {
        "success": [1.0], "_success": [True], "spl": [1.0], "_spl": [True],
        "distance_to_goal": [0.0], "_distance_to_goal": [True],
    }  # fmt: skip
    _, reward, terminated, _, info = env.step([STOP])  # ignored: the next episode begins
    assert reward[0] == 0 and not terminated[0] and info == {}


def test_a_detour_lowers_spl_and_a_stop_elsewhere_is_none() -> None:
    env = placed(1.0)
    env.trips[0].walked = 1.0
    for _ in range(4):
        env.step([FORWARD])
    assert env.step([STOP])[1][0] == pytest.approx(2.5 * 0.5 - 0.01)
    env = placed(1.0)
    _, reward, terminated, _, info = env.step([STOP])
    assert terminated[0] and reward[0] == pytest.approx(-0.01)
    assert (info["success"][0], info["spl"][0], info["distance_to_goal"][0]) == (0, 0, 1)


def test_the_time_limit_truncates() -> None:
    env = placed(5.0, max_episode_steps=3)
    ends = [env.step([LEFT])[2:4] for _ in range(3)]
    assert [(bool(a[0]), bool(b[0])) for a, b in ends] == [(False, False), (False, False), (False, True)]


def test_success_is_measured_along_the_way_not_through_walls() -> None:
    rooms = Scene(
        np.array([[0.0, 2.0, 0.0, 5.0], [2.05, 4.0, 0.0, 5.0]]), np.array([[2.0, 2.05, 4.0, 5.0]]), ((0, 1),),
        np.array([True]), np.array([0, 0]),
    )  # fmt: skip
    trip = Trip(world_of(rooms), (1.8, 1.0, 0.0), (2.25, 1.0))
    assert math.hypot(trip.x - trip.goal.x, trip.z - trip.goal.z) < 0.5
    assert trip.distance == pytest.approx(0.45 + 2 * 3.2, abs=0.01)  # down to the doorway, through, and back


# ------------------------------------------------------------------------------------------------ depth
class Standing:
    def __init__(self, scene: Scene, x: float, z: float, heading: float) -> None:
        self.scene, self.x, self.z, self.heading = scene, x, z, heading


def test_depth_is_the_distance_ahead_not_along_the_ray() -> None:
    camera = DepthCamera(48, 64)
    room = Scene(np.array([[0.0, 4.0, 0.0, 3.0]]), np.zeros((0, 4)), (), np.zeros(0, bool), np.array([0]))
    depth = camera.depths(Standing(room, 1.0, 1.5, 0.0))
    slopes = (2 * np.arange(64) + 1) / 64 - 1  # the wall ahead is 3 m away in all columns, those aside 1.5 m aside
    np.testing.assert_allclose(depth[24], np.minimum(3.0, 1.5 / np.abs(slopes)), atol=1e-6)
    up = camera.depths(Standing(two_rooms(), 1.0, 1.5, 0.0))[0, 32]
    slope = 48 / 64 * (1 - 1 / 48)
    assert up == pytest.approx((CEILING - EYE) / slope)


def test_depth_agrees_with_small_steps_along_each_ray() -> None:
    scene, camera, rng = make_scene(LAYOUTS["rooms"], "train", 4), DepthCamera(12, 16), np.random.default_rng(0)
    floor = scene.floor
    for _ in range(3):
        room = scene.rooms[rng.integers(len(scene.rooms))]
        x, z, heading = (
            rng.uniform(room[0] + 0.2, room[1] - 0.2),
            rng.uniform(room[2] + 0.2, room[3] - 0.2),
            rng.uniform(0, 6),
        )
        depth = camera.depths(Standing(scene, x, z, heading))
        ahead = np.arange(0, MAX_DEPTH_METRES, 0.002)
        for v in (0, 5, 6, 11):
            for u in range(16):
                right, up = 2 * (u + 0.5) / 16 - 1, 12 / 16 * (1 - 2 * (v + 0.5) / 12)
                px = x + ahead * (math.cos(heading) + right * math.sin(heading))
                pz = z + ahead * (-math.sin(heading) + right * math.cos(heading))
                height = EYE + ahead * up
                inside = (floor[:, :1] <= px) & (px <= floor[:, 1:2]) & (floor[:, 2:3] <= pz) & (pz <= floor[:, 3:])
                free = inside.any(0) & (height >= 0) & (height <= CEILING)
                expected = ahead[free.argmin()] if not free.all() else MAX_DEPTH_METRES
                assert depth[v, u] == pytest.approx(expected, abs=0.005)


# ---------------------------------------------------------------------------------- as an environment
@pytest.mark.parametrize("name", ["pointgoal:depth", "pointgoal:blind-room", "pointgoal:depth-maze"])
def test_the_same_seed_plays_the_same(name: str) -> None:
    runs = []
    for _ in range(2):
        batch = make(name, 3, EnvOptions(env_kwargs={"max_episode_steps": 20}))
        told = [batch.reset(5)]
        rng = np.random.default_rng(0)
        episodes = []
        for _ in range(60):
            step = batch.step(rng.choice(4, 3, p=[0.05, 0.65, 0.15, 0.15]))
            told.append(step.obs)
            episodes += step.episodes
        runs.append((told, episodes))
    assert runs[0][1] == runs[1][1] and len(runs[0][1]) > 3
    assert all(set(e.info) == {"success", "spl", "distance_to_goal"} for e in runs[0][1])
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        assert all(np.array_equal(a[k], b[k]) for k in a)
    starts = [tuple(np.asarray(runs[0][0][0]["obs/goal"])[i]) for i in range(3)]
    assert len(set(starts)) == 3


def test_an_evaluation_is_in_other_scenes_than_the_training() -> None:
    def scene_sizes(given: dict[str, Any]) -> list[float]:
        batch: Any = make("pointgoal:blind", 2, EnvOptions(env_kwargs={"scenes": 3, **given}))
        batch.reset(0)
        return [float(trip.scene.floor.sum()) for trip in batch.env.trips]

    held = {split: {float(make_scene(LAYOUTS["rooms"], split, i).floor.sum()) for i in range(3)} for split in SPLITS}
    assert set(scene_sizes({})) <= held["train"] and not held["train"] & held["validation"]
    assert held_out("CartPole-v1") == {}
    assert set(scene_sizes(held_out("pointgoal:blind"))) <= held["validation"]


def test_spaces() -> None:
    depth = spec("pointgoal:depth", EnvOptions()).observations
    assert {k: (v.shape, v.kind) for k, v in depth.items()} == {
        "obs/depth": ((1, 48, 64), "image"), "obs/goal": ((3,), "vector"),
    }  # fmt: skip
    assert list(spec("pointgoal:blind", EnvOptions()).observations) == ["obs/goal"]
    assert spec("pointgoal:blind", EnvOptions()).action.sizes == (4,)


@pytest.mark.parametrize(
    "name, kwargs, text",
    [
        ("pointgoal:dept", {}, "did you mean 'pointgoal:depth'"),
        ("pointgoal:depth", {"split": "test"}, "split is one of train, validation, found 'test'"),
        ("pointgoal:depth", {"scenes": 0}, "scenes is a number above 0, found 0"),
        ("pointgoal:depth", {"speed": 2}, "cannot be made: .*speed"),
    ],
)
def test_usage_errors(name: str, kwargs: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        make(name, 1, EnvOptions(env_kwargs=kwargs))
    assert "\n" not in str(caught.value)


def test_colour_needs_miniworld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "miniworld", None)
    with pytest.raises(UsageError, match=re.escape(pip_install("pointgoal"))):
        make("pointgoal:rgb", 1, EnvOptions())


def test_a_picture_shows_the_view_and_the_map() -> None:
    env = PointGoal(2, "blind", "rooms", render_mode="rgb_array")
    env.reset(seed=1)
    before = env.render()
    assert before is not None and len(before) == 2
    assert before[0].shape == (288, 384 + 288, 3) and before[0].dtype == np.uint8
    env.step([FORWARD, LEFT])
    after = env.render()
    assert after is not None and not np.array_equal(before[0], after[0]) and not np.array_equal(before[1], after[1])
    assert PointGoal(1, "blind").render() is None
