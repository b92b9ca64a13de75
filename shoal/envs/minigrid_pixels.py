"""MiniGrid as the agent's own view in colours: ``--env shoal.envs.minigrid_pixels:pixels``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from shoal.api import UsageError

from .types import Env


def pixels(id: str = "MiniGrid-DoorKey-5x5-v0", tile: int = 6, **kwargs: Any) -> Env:
    """The MiniGrid environment ``id`` as an image ``[7 tile, 7 tile, 3]`` of the 7 x 7 cells before the agent, drawn
    with ``tile`` pixels a cell; kwargs: of the environment's constructor."""
    try:
        from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper  # importing it registers the ids
    except ModuleNotFoundError:
        raise UsageError("minigrid_pixels needs minigrid: pip install 'shoal[minigrid]'") from None
    env = gym.make(id, disable_env_checker=True, **kwargs)
    seen: Env = ImgObsWrapper(RGBImgPartialObsWrapper(env, tile_size=tile))  # type: ignore[no-untyped-call]
    return seen
