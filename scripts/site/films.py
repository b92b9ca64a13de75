"""Film the policies of the zoo for the pages of their systems: docs/systems/pictures/SYSTEM.gif.

    python scripts/site/films.py               those whose policy has changed, and those that are missing
    python scripts/site/films.py SYSTEM...     these again

Each shows the first seconds of one greedy episode. The GIF's comment holds the policy's name, its SHA-256 and the seed,
so that a test can compare them with the policy that ships.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import shoal
from shoal import zoo
from shoal.envs.film import film
from shoal.policy.policy import episode_limit, evaluation_options
from shoal.roles.evaluator import Episodes
from shoal.systems import SYSTEMS

PICTURES = Path(__file__).parents[2] / "docs" / "systems" / "pictures"
SEED = 7
SECONDS, RATE = 5.0, 12.5  # length of a film at most; pictures a second at most (a GIF counts in 1/100 s)
HEIGHT, COLOURS = 200, 24  # pixels; of the palette


def of_system(system: str) -> zoo.Entry | None:
    """Return the first policy of the zoo that is of a system, or None."""
    return next((one for one in zoo.entries() if one.system == system), None)


def path(system: str) -> Path:
    return PICTURES / f"{system}.gif"


def comment(entry: zoo.Entry) -> str:
    """Return what the film of a policy says of itself."""
    return f"{entry.source} {entry.sha256} seed {SEED}"


def is_current(entry: zoo.Entry) -> bool:
    """Return whether the film of the entry's system exists and shows the policy that ships."""
    file = path(entry.system)
    return file.exists() and comment(entry).encode() in file.read_bytes()


def frames(entry: zoo.Entry) -> tuple[list[np.ndarray], float]:
    """Return pictures uint8 ``[H, W, 3]`` and how many of them the environment shows in a second."""
    policy = shoal.load(entry.source)
    cfg = policy.cfg
    env, picture, rate = film(cfg.env, evaluation_options(cfg))
    wanted = int(SECONDS * rate)

    def play() -> Iterator[np.ndarray]:
        for seed in range(SEED, SEED + wanted):
            limit = episode_limit(cfg.env, cfg)
            episode = Episodes(env, policy.fresh_agent(seed), 1, seed, max_steps=limit)
            yield picture()
            while not episode.done:
                episode.step()
                yield picture()

    try:
        return [frame for frame, _ in zip(play(), range(wanted), strict=False)], rate
    finally:
        env.close()


def write(entry: zoo.Entry) -> int:
    """Film a policy; returns the file's size in bytes."""
    shown, rate = frames(entry)
    every = max(1, round(rate / RATE))
    from PIL import Image  # of the extra ``plot``

    pictures = [Image.fromarray(frame) for frame in shown[::every]]
    size = (round(pictures[0].width * HEIGHT / pictures[0].height), HEIGHT)
    scaled = [one.resize(size, Image.Resampling.BOX if one.height > HEIGHT else Image.Resampling.NEAREST)
              for one in pictures]  # fmt: skip
    palette = scaled[-1].quantize(COLOURS, dither=Image.Dither.NONE)
    first, *rest = (one.quantize(palette=palette, dither=Image.Dither.NONE) for one in scaled)
    pause = round(1000 * every / rate / 10) * 10  # milliseconds
    first.save(
        path(entry.system), save_all=True, append_images=rest, duration=pause, loop=0, optimize=True,
        comment=comment(entry).encode(),
    )  # fmt: skip
    return path(entry.system).stat().st_size


def main(systems: list[str]) -> int:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a screen
    lacking = []
    for system in systems or SYSTEMS:
        entry = of_system(system)
        if entry is None:
            lacking.append(system)
        elif systems or not is_current(entry):
            print(f"{path(system).name}: {write(entry):,} bytes", flush=True)
    if lacking:
        print(f"no policy of the zoo to film: {', '.join(lacking)}", file=sys.stderr)
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
