"""Colour images of point-goal scenes: MiniWorld's rooms, textures and light, rendered without a display (EGL).

Chevalier-Boisvert et al. 2023, "Minigrid & Miniworld". MiniWorld draws each vertex by a call from Python and takes many
samples per pixel. Here a scene's arrays are passed to OpenGL once, and there is one sample per pixel.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import math
import os
from collections import OrderedDict
from typing import Any

import numpy as np

from shoal.api import EnvironmentFailed, UsageError
from shoal.extras import pip_install

from .pointgoal_scene import Scene

LIBRARIES = ("EGL", "GL", "GLU")
WALLS = ("brick_wall", "wood_planks", "marble", "stucco")  # as many as pointgoal_scene.NUM_WALL_TEXTURES
KEPT = 256  # scenes kept in OpenGL's memory
NEAR, MOST = 0.04, 100.0  # metres: nearest and farthest visible distance


def check() -> None:
    """Raise UsageError unless MiniWorld and OpenGL are installed. Loads neither."""
    if importlib.util.find_spec("miniworld") is None:
        raise UsageError(f"pointgoal in colour needs miniworld: {pip_install('pointgoal')}")
    missing = [name for name in LIBRARIES if ctypes.util.find_library(name) is None]
    if missing:
        raise UsageError(
            f"pointgoal in colour needs OpenGL without a display, and lib{missing[0]} is not there: "
            "apt-get install libegl1 libglu1-mesa libgl1-mesa-dri"
        )


class Renderer:
    """Renders scenes into pictures of ``height`` x ``width`` pixels, for any number of agents.

    eye, ceiling: metres above the floor; field: radians from the left to the right edge.
    """

    def __init__(self, height: int, width: int, eye: float, ceiling: float, field: float) -> None:
        os.environ.setdefault(
            "LP_NUM_THREADS", "0"
        )  # Mesa's software renderer uses this thread only, as actors have one core
        import pyglet

        pyglet.options["headless"] = True  # must be set before anything else of pyglet is imported
        pyglet.options["debug_gl"] = False  # skips an error check after each call
        try:
            from miniworld.miniworld import Room
            from miniworld.opengl import Texture
            from pyglet import gl

            self._window = pyglet.window.Window(width=1, height=1, visible=False)
        except Exception as error:  # the driver may raise anything
            raise EnvironmentFailed(
                f"pointgoal cannot draw without a display: {type(error).__name__}: {error}"
            ) from error
        self._gl, self._room, self._texture = gl, Room, Texture
        self._size, self._eye, self._ceiling = (height, width), eye, ceiling
        self._pixels = np.zeros((height, width, 3), np.uint8)
        self._lists: OrderedDict[int, tuple[int, Scene]] = OrderedDict()
        self._target()
        self._projection = _perspective(field, height / width)

    def view(self, scene: Scene, x: float, z: float, heading: float) -> np.ndarray:
        """Return the view from (x, z) along ``heading``, uint8 ``[3, H, W]``."""
        gl = self._gl
        self._window.switch_to()
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._frame)
        gl.glViewport(0, 0, self._size[1], self._size[0])
        drawn = self._drawn(scene)
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)
        gl.glMatrixMode(gl.GL_PROJECTION)
        gl.glLoadMatrixf(self._projection)
        gl.glMatrixMode(gl.GL_MODELVIEW)
        gl.glLoadMatrixf(_looking(x, self._eye, z, heading))
        gl.glCallList(drawn)
        height, width = self._size
        gl.glReadPixels(0, 0, width, height, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, self._pixels.ctypes.data)
        return np.array(self._pixels[::-1].transpose(2, 0, 1))  # OpenGL's first row is the bottom

    def close(self) -> None:
        """Release OpenGL's resources."""
        for number, _ in self._lists.values():
            self._gl.glDeleteLists(number, 1)
        self._lists.clear()
        self._window.close()

    def _target(self) -> None:
        """Create a framebuffer with one sample per pixel, 8-bit colours and 24-bit depth."""
        gl = self._gl
        height, width = self._size
        self._frame = gl.GLuint()
        gl.glGenFramebuffers(1, ctypes.byref(self._frame))
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._frame)
        for kind, place in (
            (gl.GL_RGBA8, gl.GL_COLOR_ATTACHMENT0),
            (gl.GL_DEPTH_COMPONENT24, gl.GL_DEPTH_ATTACHMENT),
        ):
            buffer = gl.GLuint()
            gl.glGenRenderbuffers(1, ctypes.byref(buffer))
            gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, buffer)
            gl.glRenderbufferStorage(gl.GL_RENDERBUFFER, kind, width, height)
            gl.glFramebufferRenderbuffer(gl.GL_FRAMEBUFFER, place, gl.GL_RENDERBUFFER, buffer)
        if gl.glCheckFramebufferStatus(gl.GL_FRAMEBUFFER) != gl.GL_FRAMEBUFFER_COMPLETE:
            raise EnvironmentFailed("pointgoal cannot draw: OpenGL gives no frame of 8-bit colours")
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        for switch in (gl.GL_DEPTH_TEST, gl.GL_CULL_FACE, gl.GL_TEXTURE_2D):
            gl.glEnable(switch)

    def _drawn(self, scene: Scene) -> int:
        """Return the number of the display list that draws a scene."""
        if id(scene) in self._lists:
            self._lists.move_to_end(id(scene))
            return self._lists[id(scene)][0]
        if len(self._lists) >= KEPT:
            self._gl.glDeleteLists(self._lists.popitem(last=False)[1][0], 1)
        number = int(self._gl.glGenLists(1))
        self._compile(number, self._rooms(scene))
        self._lists[id(scene)] = number, scene
        return number

    def _rooms(self, scene: Scene) -> list[Any]:
        """Return MiniWorld's rooms: those of the scene, with its doorways as openings and as rooms of their own."""
        rooms = []
        looks = [*scene.looks.tolist(), *(scene.looks[a] for a, _ in scene.links)]
        for (x0, x1, z0, z1), look in zip(scene.floor.tolist(), looks, strict=True):
            outline = np.array([[x1, z1], [x1, z0], [x0, z0], [x0, z1]])  # walls in the order east, north, west, south
            rooms.append(self._room(outline, self._ceiling, wall_tex=WALLS[look]))
        for i, ((a, b), (x0, x1, z0, z1)) in enumerate(zip(scene.links, scene.doors.tolist(), strict=True)):
            span = dict(min_z=z0, max_z=z1) if scene.along_x[i] else dict(min_x=x0, max_x=x1)
            first, second = (0, 2) if scene.along_x[i] else (3, 1)
            door = rooms[len(scene.rooms) + i]
            for room, edge in ((rooms[a], first), (rooms[b], second), (door, first), (door, second)):
                room.add_portal(edge, **span)
        for room in rooms:
            room._gen_static_data(None, None)
        return rooms

    def _compile(self, number: int, rooms: list[Any]) -> None:
        gl = self._gl
        four = gl.GLfloat * 4
        gl.glNewList(number, gl.GL_COMPILE)
        gl.glLightfv(gl.GL_LIGHT0, gl.GL_POSITION, four(0, 2.5, 0, 1))  # MiniWorld's own light
        gl.glLightfv(gl.GL_LIGHT0, gl.GL_AMBIENT, four(0.45, 0.45, 0.45, 1))
        gl.glLightfv(gl.GL_LIGHT0, gl.GL_DIFFUSE, four(0.7, 0.7, 0.7, 1))
        for switch in (gl.GL_LIGHTING, gl.GL_LIGHT0, gl.GL_COLOR_MATERIAL):
            gl.glEnable(switch)
        gl.glColor3f(1, 1, 1)
        for room in rooms:
            level = np.array([[0.0, 1.0, 0.0]] * 4)
            self._quads(room.floor_tex, room.floor_verts, level, room.floor_texcs)
            self._quads(room.ceil_tex, room.ceil_verts, -level, room.ceil_texcs)
            if len(room.wall_verts):
                self._quads(room.wall_tex, room.wall_verts, room.wall_norms, room.wall_texcs)
        gl.glEndList()

    def _quads(self, texture: Any, vertices: np.ndarray, normals: np.ndarray, places: np.ndarray) -> None:
        """Add quads to the list: arrays ``[N, 3]``, ``[N, 3]`` and ``[N, 2]``, which are read at once."""
        gl = self._gl
        arrays = [np.ascontiguousarray(a, np.float32) for a in (vertices, normals, places)]
        states = (gl.GL_VERTEX_ARRAY, gl.GL_NORMAL_ARRAY, gl.GL_TEXTURE_COORD_ARRAY)
        for state in states:
            gl.glEnableClientState(state)
        texture.bind()
        gl.glVertexPointer(3, gl.GL_FLOAT, 0, arrays[0].ctypes.data)
        gl.glNormalPointer(gl.GL_FLOAT, 0, arrays[1].ctypes.data)
        gl.glTexCoordPointer(2, gl.GL_FLOAT, 0, arrays[2].ctypes.data)
        gl.glDrawArrays(gl.GL_QUADS, 0, len(vertices))
        for state in states:
            gl.glDisableClientState(state)


def _columns(matrix: list[list[float]]) -> Any:
    """Return a 4x4 matrix in OpenGL's column-major order."""
    return (ctypes.c_float * 16)(*(matrix[row][column] for column in range(4) for row in range(4)))


def _perspective(field: float, aspect: float) -> Any:
    """Return the projection matrix. field: radians from left to right; aspect: height divided by width."""
    near = 1 / math.tan(field / 2)
    depth = NEAR - MOST
    return _columns(
        [
            [near, 0, 0, 0],
            [0, near / aspect, 0, 0],
            [0, 0, (MOST + NEAR) / depth, 2 * MOST * NEAR / depth],
            [0, 0, -1, 0],
        ]
    )


def _looking(x: float, y: float, z: float, heading: float) -> Any:
    """Return the view matrix from (x, y, z): right is (sin, 0, cos) of the heading, ahead is (cos, 0, -sin)."""
    c, s = math.cos(heading), math.sin(heading)
    return _columns([[s, 0, c, -s * x - c * z], [0, 1, 0, -y], [-c, 0, s, c * x - s * z], [0, 0, 0, 1]])
