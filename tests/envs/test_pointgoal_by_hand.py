"""Point-goal navigation by hand: every setting is read, every bound is met, and what a scene, a picture and a map hold
is what a few numbers say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from noted import noted

from shoal.envs import pointgoal, pointgoal_scene
from shoal.envs.pointgoal import FORWARD, LEFT, STOP, PointGoal, Trip, World, draw_trip
from shoal.envs.pointgoal_camera import DepthCamera
from shoal.envs.pointgoal_geometry import Paths
from shoal.envs.pointgoal_map import AGENT, FLOOR, WALLS, draw_map, picture
from shoal.envs.pointgoal_scene import LAYOUTS, NUM_WALL_TEXTURES, STEP, Layout, Scene, make_scene


def room(width: float = 9.0, depth: float = 3.0) -> Scene:
    return Scene(np.array([[0.0, width, 0.0, depth]]), np.zeros((0, 4)), (), np.zeros(0, bool), np.array([0]))


def world_of(*rectangles: tuple[float, float, float, float]) -> World:
    return World(room(), Paths(np.array(rectangles), np.zeros((0, 2))))


def test_every_episode_is_drawn_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    place = world_of((0.0, 9.0, 0.0, 3.0))

    def drawn(at: World, rng: Any, *how: Any) -> Trip:
        asked[-1] += how
        return Trip(at, (1.0, 1.0, 0.0), (2.0, 1.0))

    monkeypatch.setattr(pointgoal, "world", lambda *what: noted(asked, what, place))
    monkeypatch.setattr(pointgoal, "draw_trip", drawn)
    env = PointGoal(60, "blind", "maze", "validation", scenes=3, slide=False, least=2.5)
    env.reset(seed=0)
    assert {(layout, split, *how) for layout, split, _, *how in asked} == {("maze", "validation", 2.5, False)}
    assert {index for _, _, index, *_ in asked} == {0, 1, 2}


def placed(distance: float, **given: Any) -> PointGoal:
    """One agent that faces its goal ``distance`` metres ahead in an empty room."""
    env = PointGoal(1, "blind", "room", **given)
    env.reset(seed=0)
    env.trips[0] = Trip(world_of((0.0, 9.0, 0.0, 3.0)), (0.5, 1.5, 0.0), (0.5 + distance, 1.5))
    return env


@pytest.mark.parametrize("distance, success", [(0.55, True), (0.65, False)])
def test_a_stop_succeeds_within_the_distance_that_was_asked_for(distance: float, success: bool) -> None:
    *_, info = placed(distance, success_distance=0.6).step([STOP])
    assert bool(info["success"][0]) is success


def test_a_step_is_as_long_and_a_turn_as_wide_as_was_asked_for() -> None:
    env = placed(3.0, forward=0.4, turn=90.0)
    obs, *_ = env.step([FORWARD])
    assert obs["goal"][0] == pytest.approx([2.6, 1.0, 0.0], abs=1e-6)
    obs, *_ = env.step([LEFT])
    assert obs["goal"][0] == pytest.approx([2.6, 0.0, -1.0], abs=1e-6)
    assert env.trips[0].walked == pytest.approx(0.4)
    env.trips[0].move(FORWARD, 0.3, 0.0)
    assert env.trips[0].walked == pytest.approx(0.7), "of the whole way"


def test_every_episode_lasts_as_many_steps_as_the_limit_and_the_next_begins_from_none() -> None:
    env = placed(3.0, max_episode_steps=3)
    told = []
    for _ in range(9):
        _, reward, terminated, truncated, _ = env.step([LEFT])
        told.append((bool(terminated[0]), bool(truncated[0]), bool(reward[0])))
    went, last, again = (False, False, True), (False, True, True), (False, False, False)
    assert told == [went, went, last, again, went, went, last, again, went]


def test_after_a_reset_no_episode_is_still_ended() -> None:
    env = placed(3.0)
    assert env.step([STOP])[2][0]
    env.reset(seed=1)
    assert env.step([LEFT])[1][0] == pytest.approx(-0.01), "it is a step, not the beginning of another episode"


class Counting:
    """Random numbers that tell what they were asked for: the fifty-first goal is the farthest, the others are alike."""

    def __init__(self) -> None:
        self.weights: list[Any] = []

    def choice(self, count: int, p: Any = None) -> int:
        self.weights.append(p)
        return (len(self.weights) - 1) % count

    def uniform(self, low: float, high: float) -> float:
        return low + (0.75 if len(self.weights) == 2 * 51 else 0.25) * (high - low)


FAR = math.hypot(2.25, 1.0)


@pytest.mark.parametrize("least, draws, way", [(0.0, 1, 1.75), (2.0, 51, FAR), (math.inf, 100, FAR)])
def test_a_trip_is_the_first_that_is_long_enough_or_the_longest_of_a_hundred(
    least: float, draws: int, way: float
) -> None:
    place, rng = world_of((0.0, 2.0, 0.0, 2.0), (2.0, 3.0, 0.0, 2.0)), Counting()
    trip = draw_trip(place, rng, least)  # type: ignore[arg-type]
    assert len(rng.weights) == 2 * draws, "a start and a goal each"
    assert all(p.tolist() == pytest.approx([4 / 6, 2 / 6]) for p in rng.weights), "by their areas"
    assert trip.shortest == pytest.approx(way, abs=1e-9)


# ----------------------------------------------------------------------------------------------- scenes
class Extreme:
    """Integers at one end of what was asked for."""

    def __init__(self, highest: bool) -> None:
        self.highest = highest

    def integers(self, low: int, high: int) -> int:
        return high - 1 if self.highest else low


@pytest.mark.parametrize("highest", [False, True])
def test_rooms_and_doors_go_to_both_ends_of_their_ranges(highest: bool) -> None:
    rng: Any = Extreme(highest)
    length = 4.0 if highest else 2.0
    spans = pointgoal_scene._spans(rng, 2, (2.0, 4.0))
    assert spans == [(0.0, length), (length + 0.25, 2 * length + 0.25)]
    assert pointgoal_scene._opening(rng, 1.0, 3.0, 0.5) == ((2.5, 3.0) if highest else (1.0, 1.5))
    assert pointgoal_scene._opening(rng, 1.0, 3.0, 0.0) == (1.0, 3.0)


def test_scenes_have_as_many_rooms_doors_and_kinds_of_walls_as_their_layout_says() -> None:
    scenes = [make_scene(LAYOUTS["rooms"], "train", index) for index in range(60)]
    assert {len(scene.rooms) for scene in scenes} == {4, 6, 9}
    assert {int(look) for scene in scenes for look in scene.looks} == set(range(NUM_WALL_TEXTURES))
    sides = {float(side) for scene in scenes for side in (scene.rooms[:, 1] - scene.rooms[:, 0])}
    assert min(sides) == 2.0 and max(sides) == 4.0 and all((side / STEP).is_integer() for side in sides)


@pytest.mark.parametrize("loops, doors", [(0.0, 3 * 4 - 1), (1.0, 2 * 4 + 3 * 3)])
def test_no_room_or_every_room_has_doors_that_none_depends_on(loops: float, doors: int) -> None:
    scene = make_scene(Layout((3, 3), (4, 4), (2.0, 2.0), loops=loops), "train", 0)
    assert len(scene.links) == len(set(scene.links)) == doors


def test_an_agent_may_be_as_near_to_a_wall_as_it_is_wide_and_in_a_doorway_from_end_to_end() -> None:
    rooms = np.array([[0.0, 4.0, 0.0, 3.0], [4.25, 8.0, 0.0, 3.0]])
    doors = np.array([[4.0, 4.25, 1.0, 2.0], [1.0, 2.0, 3.0, 3.25]])
    free = Scene(rooms, doors, ((0, 1), (0, 2)), np.array([True, False]), np.array([0, 1])).free(0.2)
    expected = [[0.2, 3.8, 0.2, 2.8], [4.45, 7.8, 0.2, 2.8], [3.8, 4.45, 1.2, 1.8], [1.2, 1.8, 2.8, 3.45]]
    np.testing.assert_allclose(free, expected)


# ---------------------------------------------------------------------------------------------- pictures
def test_rays_go_through_the_middles_of_pixels_as_wide_as_they_are_high() -> None:
    camera = DepthCamera(4, 8)  # a right angle across 8 pixels: 1 m to either side a metre ahead
    assert camera._slopes.tolist() == pytest.approx([-0.875, -0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.875])
    assert camera._level.tolist() == pytest.approx([1.25 / 0.375, 10.0, 10.0, 1.25 / 0.375])


def test_colours_are_as_high_and_wide_as_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    for name in ("RgbCamera", "DepthCamera"):
        monkeypatch.setattr(pointgoal, name, lambda *size: sizes.append(size))
    for sensor in ("rgb", "depth"):
        PointGoal(1, sensor, height=12, width=16)
    assert sizes == [(12, 16), (12, 16)]


def test_a_map_has_a_wall_around_its_rooms_and_the_agent_looks_where_it_goes() -> None:
    drawn = draw_map(room(2.0, 1.0), [], [(1.0, 0.5)], (5.0, 5.0), math.pi / 2, 100)  # 40 pixels a metre
    assert (drawn[10, 10:45] == FLOOR).all() and (drawn[49, 10:90] == FLOOR).all()
    for outside in (drawn[9], drawn[50], drawn[:, 9], drawn[:, 90]):
        assert (outside == WALLS).all()
    rows = np.flatnonzero((drawn[:, 50] == AGENT).all(1))
    assert rows[0] == 10 and rows[-1] == 38, "half a metre ahead of the middle, and 0.2 m behind it"


@pytest.mark.parametrize("height, times", [(48, 6), (64, 5), (400, 1)])
def test_a_view_is_shown_as_large_as_fits(height: int, times: int) -> None:
    shown = picture(np.zeros((1, height, 10), np.uint8), room(), [], [(1.0, 1.0)], (2.0, 1.0), 0.0)
    assert shown.shape == (times * height, times * 10 + times * height, 3)
