"""Point-goal navigation in colour: what MiniWorld draws is what the depth camera measures."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from shoal.api import UsageError
from shoal.envs import EnvOptions, make
from shoal.envs.film import film
from shoal.envs.pointgoal import PointGoal, world
from shoal.envs.pointgoal_camera import CEILING, EYE, FIELD_OF_VIEW, DepthCamera
from shoal.envs.pointgoal_miniworld import MOST, NEAR, Renderer, check

pytestmark = pytest.mark.filterwarnings("ignore")  # of pyglet's and MiniWorld's imports

try:
    check()
except UsageError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def renderer() -> Any:
    renderer = Renderer(48, 64, EYE, CEILING, FIELD_OF_VIEW)
    yield renderer
    renderer.close()


def drawn_depths(renderer: Renderer) -> np.ndarray:
    """Metres ``[H, W]`` from the depth buffer of the last picture."""
    from pyglet import gl

    out = np.zeros((48, 64), np.float32)
    gl.glReadPixels(0, 0, 64, 48, gl.GL_DEPTH_COMPONENT, gl.GL_FLOAT, out.ctypes.data_as(ctypes.c_void_p))
    return NEAR * MOST / (MOST - out[::-1] * (MOST - NEAR))


@pytest.mark.parametrize("layout", ["room", "rooms", "maze"])
def test_colours_and_depths_are_of_the_same_scene(renderer: Renderer, layout: str) -> None:
    camera, rng = DepthCamera(48, 64), np.random.default_rng(0)
    for index in range(4):
        place = world(layout, "train", index)
        agent = Standing(place.scene, place.paths.rectangles[index % len(place.scene.rooms)], rng)
        picture = renderer.view(agent.scene, agent.x, agent.z, agent.heading)
        assert picture.shape == (3, 48, 64) and picture.dtype == np.uint8 and picture.std() > 1
        drawn, cast = np.minimum(drawn_depths(renderer), 10.0), camera.depths(agent)
        wrong = np.abs(drawn - cast) > 0.02 + 0.02 * cast
        assert wrong.mean() < 0.02, f"{wrong.mean():.1%} of the pixels"  # those on the edge of a doorway


class Standing:
    def __init__(self, scene: Any, rectangle: np.ndarray, rng: np.random.Generator) -> None:
        self.scene = scene
        self.x, self.z = float(rng.uniform(*rectangle[:2])), float(rng.uniform(*rectangle[2:]))
        self.heading = float(rng.uniform(0, 6))


def test_agents_of_one_process_see_their_own_scenes() -> None:
    together, alone = PointGoal(3, "rgb", "rooms"), PointGoal(3, "rgb", "rooms")
    first = together.reset(seed=0)[0]["rgb"]
    assert first.shape == (3, 3, 48, 64)
    other = alone.reset(seed=1)[0]["rgb"]
    for _ in range(3):  # turning left and back, while the other batch's scenes are drawn in between
        together.step([2, 2, 2]), alone.step([1, 1, 1]), together.step([3, 3, 3])
    again = together.step([2, 2, 2])[0]["rgb"], together.step([3, 3, 3])[0]["rgb"]
    np.testing.assert_array_equal(again[1], first)
    assert not np.array_equal(again[0], first) and not np.array_equal(other, first)
    together.close()
    alone.close()


def test_it_trains_and_is_filmed() -> None:
    batch = make("pointgoal:rgb", 2, EnvOptions())
    assert batch.reset(0)["obs/rgb"].shape == (2, 3, 48, 64)
    assert batch.step(np.array([1, 2])).obs["obs/rgb"].dtype == np.uint8
    batch.close()
    filmed, picture, rate = film("pointgoal:rgb-room", EnvOptions())
    filmed.reset(0)
    assert picture().shape == (288, 672, 3) and rate == 10
    filmed.close()
