"""Atari through ALE's C++ vector environment.

Its behaviour, checked in ``tests/envs/test_ale.py`` against ale_py 0.12: NEXT_STEP autoreset; a stack holds zeros
before an episode's first frame; ``max_num_frames_per_episode`` counts frames of agent steps (not the no-ops) and is
flagged as truncation; frames are resized by area. Its ``episodic_life`` resets the whole game at a lost life, and its
``life_loss_info`` hides the end of the game, so both stay off and ``LifeLoss`` uses the number of lives instead. Its
reward clipping stays off too, so that raw returns are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from shoal.api import Arrays, EnvStep, Episode, UsageError
from shoal.types import Values

from .batch import VectorBatch
from .options import EnvOptions
from .types import Vector

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

OPTION_OF = {  # ALE's names of the fields of EnvOptions
    "repeat_action_probability": "sticky_actions",
    "full_action_space": "full_action_space",
    "img_height": "screen",
    "img_width": "screen",
    "stack_num": "frame_stack",
    "frameskip": "frame_skip",
    "noop_max": "noop_max",
    "use_fire_reset": "fire_reset",
    "reward_clipping": "reward_clip",
    "episodic_life": "life_loss",
    "life_loss_info": "life_loss",
    "max_num_frames_per_episode": "max_episode_frames",
}
SCREEN = (210, 160)  # pixels
FIRE = 1  # index of FIRE in every action set where it is the second action


def make_vector(game: str, num: int, options: EnvOptions, colour: bool = False) -> AtariVectorEnv:
    """Return the raw vector environment with one thread, as actors are processes. colour: show one frame of the whole
    screen."""
    from ale_py.vector_env import AtariVectorEnv

    taken = set(options.env_kwargs) & set(OPTION_OF)
    if taken:
        name = min(taken)
        raise UsageError(f"for Atari, set the option {OPTION_OF[name]!r} instead of {name!r} in kwargs")
    frames = options.max_episode_frames
    if options.max_episode_steps is not None:
        frames = options.max_episode_steps * options.frame_skip
    settings: Values = {
        "num_threads": 1,
        "max_num_frames_per_episode": frames,
        "repeat_action_probability": options.sticky_actions,
        "full_action_space": options.full_action_space,
        "img_height": options.screen,
        "img_width": options.screen,
        "stack_num": options.frame_stack,
        "frameskip": options.frame_skip,
        "noop_max": options.noop_max,
        "use_fire_reset": options.fire_reset,
        "reward_clipping": False,
        **options.env_kwargs,
    }
    if colour:
        settings |= {"grayscale": False, "img_height": SCREEN[0], "img_width": SCREEN[1], "stack_num": 1}
    try:
        return AtariVectorEnv(game, num_envs=num, **settings)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the Atari environment {game!r} cannot be made with these options: {error}") from error


def needs_fire(env: Vector) -> bool:
    """Return True if the game's second action is FIRE, for which it may wait after a lost life."""
    actions = cast("AtariVectorEnv", env).ale.get_action_set()
    return len(actions) > FIRE and getattr(actions[FIRE], "name", "") == "FIRE"


class LifeLoss:
    """Ends an episode for training at a lost life while the game continues.

    The row after it is like an autoreset row: the action is replaced (by FIRE if the game waits for it, else by no-op),
    the reward is 0, the row is not ``valid``, and the older frames of the stack are blanked until they belong to the
    new life. ``Episode`` still describes the whole game. If the game ends in that row, its flags stay cleared and one
    more row that is not valid follows.
    """

    def __init__(self, inner: VectorBatch, stack: int, restart_action: int):
        self.inner, self.spec, self.num_envs = inner, inner.spec, inner.num_envs
        self._stack, self._restart = stack, restart_action
        self._lives = np.zeros(self.num_envs, np.int64)
        self._lost = np.zeros(self.num_envs, np.bool_)
        self._age = np.full(self.num_envs, stack)  # rows since a life began within a game

    @property
    def env(self) -> Vector:
        return self.inner.env

    def reset(self, seed: int) -> Arrays:
        obs = self.inner.reset(seed)
        self._lives = np.array(self.inner.info["lives"], np.int64)
        self._lost[:] = False
        self._age[:] = self._stack
        return obs

    def step(self, action: np.ndarray) -> EnvStep:
        again = self._lost
        if again.any():
            action = np.where(again, self._restart, action)
        step = self.inner.step(action)
        lives = np.array(self.inner.info["lives"], np.int64)
        over = step.terminated | step.truncated
        self._age += 1
        self._age[again] = 0
        self._age[over | ~step.valid] = self._stack
        # some games (Qbert) show 0 lives some frames before their end, which is the end of the game
        self._lost = (lives < self._lives) & (lives > 0) & ~over & step.valid & ~again
        self._lives = lives
        obs = step.obs["obs"]
        young = (self._age < self._stack - 1).nonzero()[0]
        if young.size:
            obs = obs.copy()
            for row in young.tolist():
                obs[row, : self._stack - 1 - self._age[row]] = 0
        return EnvStep(
            {"obs": obs},
            np.where(again, np.float32(0), step.reward),
            (step.terminated | self._lost) & ~again,
            step.truncated & ~again,
            step.valid & ~again,
            None,
            step.episodes,
        )

    def so_far(self) -> list[Episode]:
        return self.inner.so_far()

    def close(self) -> None:
        self.inner.close()
