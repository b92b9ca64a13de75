"""Rendering of one environment: a batch of one, and the picture of its current state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shoal.api import Arrays, EnvBatch, EnvStep, Episode, UsageError

from . import ale, registry, wrappers
from ._make import make
from .batch import VectorBatch, sub_seeds
from .options import Backend, EnvOptions
from .types import Env

Picture = Callable[[], np.ndarray]  # uint8 [H, W, 3]
ATARI_RATE = 60  # emulator frames a second


def film(env: str, options: EnvOptions) -> tuple[EnvBatch, Picture, float]:
    """Return (a batch of one environment, a function that renders it, pictures per second).

    Gymnasium's environments and the user's are made with ``render_mode="rgb_array"``. For Atari a second emulator plays
    the same game, with the same seed and actions, in colour and at full size. Raises UsageError if it cannot be
    rendered.
    """
    found = registry.find(env, options)
    if found.backend == "ale":
        batch = make(env, 1, options)
        screen = _Screen(batch, found.game, options)
        return screen, screen.picture, ATARI_RATE / options.frame_skip
    if found.backend == "envpool":  # EnvPool has no pictures; its spaces are Gymnasium's
        options = replace(options, backend="gymnasium")
    filmed = replace(options, env_kwargs={**options.env_kwargs, "render_mode": "rgb_array"})
    try:
        batch = make(env, 1, filmed)
    except (UsageError, TypeError) as error:
        raise UsageError(f"environment '{env}' cannot be filmed with render_mode='rgb_array': {error}") from error
    raw = _innermost(batch).env
    size: tuple[int, ...] | None = None  # size of the first picture

    def picture() -> np.ndarray:
        nonlocal size
        try:
            frames = raw.render()
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise UsageError(f"environment '{env}' cannot be filmed: render() raised {told}") from error
        frame = np.asarray(frames[0] if isinstance(frames, (tuple, list)) else frames)
        if frame.ndim != 3 or frame.dtype != np.uint8 or frame.shape[2] not in (1, 3, 4):
            found = f"shape {list(frame.shape)} and dtype {frame.dtype}"
            raise UsageError(f"environment '{env}' cannot be filmed: render() gave {found}, not uint8 [H, W, 3]")
        size = size or frame.shape
        if frame.shape != size:
            raise UsageError(
                f"environment '{env}' cannot be filmed: its pictures change from {list(size)} to {list(frame.shape)}"
            )
        return frame.repeat(3, 2) if frame.shape[2] == 1 else frame[..., :3]

    rate = (raw.metadata or {}).get("render_fps")
    return batch, picture, float(rate) if isinstance(rate, (int, float)) and rate > 0 else 30.0


def playable(env: str, options: EnvOptions) -> Env:
    """Return one environment that renders itself (``render_mode="rgb_array"``), for a person to play. Raises UsageError
    if it cannot, or if it exists only as a batch."""
    backend: Backend = "gymnasium" if options.backend == "auto" else options.backend
    kwargs = {**options.env_kwargs, "render_mode": "rgb_array"}
    try:
        found = registry.find(env, replace(options, backend=backend, env_kwargs=kwargs))
        if found.single is None:
            raise UsageError("it is only there as a batch")
        return found.single()
    except UsageError as error:
        raise UsageError(f"environment '{env}' cannot be played by hand: {error}") from error


class _Screen:
    """An Atari batch of one, and a copy of the game in colour."""

    def __init__(self, inner: EnvBatch, game: str, options: EnvOptions):
        self.inner, self.spec, self.num_envs = inner, inner.spec, inner.num_envs
        self._twin = ale.make_vector(game, 1, options, colour=True)
        self._frame = np.zeros((*ale.SCREEN, 3), np.uint8)

    def reset(self, seed: int) -> Arrays:
        obs = self.inner.reset(seed)
        self._frame = self._twin.reset(seed=np.array(sub_seeds(seed, 1), np.int32))[0]
        return obs

    def step(self, action: np.ndarray) -> EnvStep:
        self._frame = self._twin.step(action)[0]
        return self.inner.step(action)

    def picture(self) -> np.ndarray:
        return np.asarray(self._frame).reshape(*ale.SCREEN, 3)

    def so_far(self) -> list[Episode]:
        return self.inner.so_far()

    def close(self) -> None:
        self.inner.close()
        self._twin.close()


def _innermost(batch: EnvBatch) -> VectorBatch:
    while not isinstance(batch, VectorBatch):
        assert isinstance(batch, (ale.LifeLoss, wrappers.TrainingReward, wrappers.LastActionReward))
        batch = batch.inner
    return batch
