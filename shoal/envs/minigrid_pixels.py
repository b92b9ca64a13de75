"""MiniGrid with the agent's own view as a colour image: ``--env shoal.envs.minigrid_pixels:pixels``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from shoal.api import UsageError
from shoal.extras import pip_install

from .types import Env

UNSEEN, EMPTY = 0, 1  # MiniGrid's codes for the contents of a cell
LOOKING_UP = 3  # the agent's direction in its own view


class Pixels(gym.ObservationWrapper[np.ndarray, Any, Any]):
    """Draws the cells in front of the agent from their codes ``[W, H, 3]`` (object, colour, state), with MiniGrid's
    tiles of ``tile`` pixels a side. The result equals that of MiniGrid's RGBImgPartialObsWrapper, which computes the
    view again and draws each tile anew."""

    def __init__(self, env: Env, tile: int) -> None:
        super().__init__(env)
        self._tile, (self._width, self._height, _) = tile, env.observation_space["image"].shape  # type: ignore[index]
        shape = (self._height * tile, self._width * tile, 3)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self._tiles: dict[tuple[bytes, int | None], np.ndarray] = {}

    def observation(self, obs: Any) -> np.ndarray:
        codes, size = obs["image"], self._tile
        picture = np.empty((self._height, size, self._width, size, 3), np.uint8)
        raw, at = codes.tobytes(), 0
        for x in range(self._width):
            for y in range(self._height):
                picture[y, :, x] = self._drawn(raw[at : at + 3])
                at += 3
        x, y = self._width // 2, self._height - 1
        picture[y, :, x] = self._drawn(codes[x, y].tobytes(), LOOKING_UP)  # the agent, on top of what it carries
        return picture.reshape(self.observation_space.shape)

    def _drawn(self, code: bytes, looking: int | None = None) -> np.ndarray:
        """Return the tile of a cell. looking: the direction of the agent in it; None: it is elsewhere."""
        if (tile := self._tiles.get((code, looking))) is None:
            from minigrid.core.grid import Grid
            from minigrid.core.world_object import WorldObj

            thing = WorldObj.decode(*code) if code[0] > EMPTY else None
            tile = self._tiles[code, looking] = Grid.render_tile(thing, looking, code[0] != UNSEEN, self._tile)
        return tile


def pixels(id: str = "MiniGrid-DoorKey-5x5-v0", tile: int = 6, **kwargs: Any) -> Env:
    """Return the MiniGrid environment ``id`` with images ``[7 tile, 7 tile, 3]`` of the 7 x 7 cells in front of the
    agent, drawn with ``tile`` pixels a cell. kwargs: of the environment's constructor."""
    try:
        import minigrid  # noqa: F401  (it registers the ids)
    except ModuleNotFoundError:
        raise UsageError(f"minigrid_pixels needs minigrid: {pip_install('minigrid')}") from None
    return Pixels(gym.make(id, disable_env_checker=True, **kwargs), tile)
