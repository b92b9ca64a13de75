"""Films a policy: an MP4 file of one whole episode."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.api import Agent, ShoalError, UsageError
from shoal.envs.film import film
from shoal.extras import pip_install
from shoal.paths import require_folder
from shoal.policy.policy import Policy, episode_limit, evaluation_options
from shoal.roles.evaluator import Episodes, Returns

MIN_FRAME_HEIGHT = 300  # pixels: lower pictures (Atari's) are enlarged


def record(policy: Policy, path: Path, seed: int = 0, greedy: bool = True, max_steps: int = 0) -> Returns:
    """Plays one episode and writes it to ``path`` (.mp4); returns its raw return. ``max_steps``: of it, see
    ``episode_limit``.

    Raises UsageError if the environment gives no pictures or there is no ffmpeg, ShoalError if that fails.
    """
    *_, episodes = filming(policy.fresh_agent, policy.cfg, path, seed, greedy, max_steps)
    return episodes.flat()


def require_film(cfg: Any) -> None:
    """UsageError if the environment gives no pictures or there is no ffmpeg."""
    _ffmpeg()
    env, picture, _ = film(cfg.env, evaluation_options(cfg))
    try:
        env.reset(0)
        picture()
    finally:
        env.close()


def filming(
    make_agent: Callable[[int], Agent], cfg: Any, path: Path, seed: int, greedy: bool, max_steps: int = 0
) -> Iterator[Episodes]:
    """``record`` with an agent that is made with the seed, picture by picture: between two of them others may have
    their turn. Gives the episode so far; the file is there at the end, and there is none if it ends sooner."""
    if path.suffix != ".mp4":
        raise UsageError(f"a video's name ends in .mp4, found '{path.name}'")
    require_folder(path)
    program = _ffmpeg()
    env, picture, rate = film(cfg.env, evaluation_options(cfg))
    try:
        episodes = Episodes(env, make_agent(seed), 1, seed, greedy, episode_limit(cfg.env, cfg, max_steps))
        unfinished = path.with_name(f".{path.stem}.tmp.mp4")
        unfinished.unlink(missing_ok=True)  # through a link, ffmpeg would write elsewhere
        try:
            for _ in _encoding(program, _play(episodes, picture), rate, unfinished):
                yield episodes
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    finally:
        env.close()


def _encoding(program: str, frames: Iterator[np.ndarray], rate: float, path: Path) -> Iterator[None]:
    """Write the frames, one at each turn, in one thread: the other cores are of what may train meanwhile."""
    first = next(frames)
    size = f"{first.shape[1]}x{first.shape[0]}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{rate:g}", "-i", "-"]
    target = ["-an", "-threads", "1", "-c:v", "libx264", "-pix_fmt", "yuv420p", str(path)]
    command = [program, "-y", "-loglevel", "error", *source, *target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        try:
            for frame in itertools.chain([first], frames):
                process.stdin.write(frame.tobytes())
                yield
            process.stdin.close()
        except BrokenPipeError:  # it says why
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise ShoalError(f"ffmpeg could not write '{path}': {said.splitlines()[-1] if said else process.returncode}")


def _play(episodes: Episodes, picture: Any) -> Iterator[np.ndarray]:
    """Every state's picture, enlarged by a whole number if it is small, its sides even (as H.264 wants them)."""
    yield _fit(picture())
    while not episodes.done:
        episodes.step()
        yield _fit(picture())


def _fit(frame: np.ndarray) -> np.ndarray:
    times = max(1, -(-MIN_FRAME_HEIGHT // frame.shape[0]))
    frame = frame.repeat(times, 0).repeat(times, 1)
    h, w = frame.shape[:2]
    return np.ascontiguousarray(np.pad(frame, ((0, h % 2), (0, w % 2), (0, 0))))


def _ffmpeg() -> str:
    """The program's path: the system's own, or the one in imageio-ffmpeg."""
    if (found := shutil.which("ffmpeg")) is not None:
        return found
    try:
        import imageio_ffmpeg
    except ImportError:
        install = pip_install("video")
        raise UsageError(f"a video needs ffmpeg: install it, or imageio-ffmpeg ({install})") from None
    return str(imageio_ffmpeg.get_ffmpeg_exe())
