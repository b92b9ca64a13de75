"""Tiny environments in NumPy for learning tests: ``toy:NAME``, each solved in seconds or minutes on one core.

All step every copy at once, in Gymnasium's NEXT_STEP mode. ``max_episode_steps`` truncates them earlier.

============================ ================================================= ================ ===================
name                         task                                              optimal return   random play
============================ ================================================= ================ ===================
``toy:bandit-identity``      say the number shown (1 of 4), 8 times            8                2
``toy:multi``                repeat two numbers (of 3 and of 4), 8 times       8                2.33
``toy:corridor``             5 steps right in a row; left starts over          1 (in 5 steps)   0.26
``toy:memory``               recall a cue shown 5 steps ago; needs a memory    1                0 (also without one)
``toy:point``                go to a point in the plane, 10 steps              -0.22 on average -11.1
``toy:catch``                catch a falling pixel with a paddle, image        1                -0.6
``toy:dict``                 combine an image and a vector, 8 times            8                2 (4 with one only)
============================ ================================================= ================ ===================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from .types import Info, Space

Mask = np.ndarray
Observed = np.ndarray | dict[str, np.ndarray]


class Toy(VectorEnv[Observed, np.ndarray, np.ndarray], ABC):
    """Base class of the toys. A subclass defines how rows begin, the effect of an action on all rows, and the
    observations."""

    observation: Space
    action: Space

    def __init__(self, num_envs: int, max_episode_steps: int | None = None):
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = self.observation, self.action
        self.observation_space = batch_space(self.observation, num_envs)
        self.action_space = batch_space(self.action, num_envs)
        self.steps = np.zeros(num_envs, np.int64)
        self._limit = max_episode_steps
        self._ended = np.zeros(num_envs, np.bool_)

    @abstractmethod
    def _begin(self, rows: Mask) -> None:
        """Start an episode in the rows of the mask."""

    @abstractmethod
    def _act(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards and terminations of all rows. ``self.steps`` already counts this step."""

    @abstractmethod
    def _observe(self) -> Observed: ...

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observed, Info]:
        super().reset(seed=seed)
        self.steps[:] = 0
        self._ended[:] = False
        self._begin(np.ones(self.num_envs, np.bool_))
        return self._observe(), {}

    def step(self, actions: np.ndarray) -> tuple[Observed, np.ndarray, np.ndarray, np.ndarray, Info]:
        again = self._ended
        self.steps += 1
        reward, terminated = self._act(np.asarray(actions))
        reward = np.where(again, 0, reward).astype(np.float32)
        terminated = terminated & ~again
        truncated = np.zeros_like(terminated) if self._limit is None else self.steps >= self._limit
        truncated = truncated & ~terminated & ~again
        if again.any():
            self.steps[again] = 0
            self._begin(again)
        self._ended = terminated | truncated
        return self._observe(), reward, terminated, truncated, {}

    def _draw(self, rows: Mask, values: int) -> np.ndarray:
        return self.np_random.integers(0, values, int(rows.sum()))


class OneOfFour(Toy):
    """Reward 1 for repeating the number ``shown``, one of 4. A new number in each step; 8 steps."""

    action = gs.Discrete(4)

    def _begin(self, rows: Mask) -> None:
        if not hasattr(self, "shown"):
            self.shown = np.zeros(self.num_envs, np.int64)
        self.shown[rows] = self._draw(rows, 4)

    def _act(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reward = action == self.shown
        self.shown = self.np_random.integers(0, 4, self.num_envs)
        return reward, self.steps >= 8


class BanditIdentity(OneOfFour):
    """The observation is one of 4 unit vectors; reward 1 for its index. A new one in each step; 8 steps."""

    observation = gs.Box(0, 1, (4,), np.float32)

    def _observe(self) -> Observed:
        return np.eye(4, dtype=np.float32)[self.shown]


class Multi(Toy):
    """The observation is two integers (below 3 and below 4); reward 1/2 for each that is repeated. 8 steps."""

    SIZES = np.array([3, 4])
    observation, action = gs.MultiDiscrete(SIZES), gs.MultiDiscrete(SIZES)
    shown: np.ndarray

    def _begin(self, rows: Mask) -> None:
        if not hasattr(self, "shown"):
            self.shown = np.zeros((self.num_envs, 2), np.int64)
        self.shown[rows] = self.np_random.integers(0, self.SIZES, (int(rows.sum()), 2))

    def _act(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reward = (action == self.shown).mean(1)
        self.shown = self.np_random.integers(0, self.SIZES, (self.num_envs, 2))
        return reward, self.steps >= 8

    def _observe(self) -> Observed:
        return np.array(self.shown)


class Corridor(Toy):
    """Six cells; action 1 moves right, 0 returns to the start. Reward 1 on reaching the last cell, otherwise 0;
    truncated after 20 steps. Credit must be propagated over 5 steps, so n-step returns learn faster."""

    observation, action = gs.Box(0, 1, (6,), np.float32), gs.Discrete(2)

    def __init__(self, num_envs: int, max_episode_steps: int | None = 20):
        super().__init__(num_envs, max_episode_steps)
        self.cell = np.zeros(num_envs, np.int64)

    def _begin(self, rows: Mask) -> None:
        self.cell[rows] = 0

    def _act(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.cell = np.where(action == 1, np.minimum(self.cell + 1, 5), 0)
        reached = self.cell == 5
        return reached, reached

    def _observe(self) -> Observed:
        return np.eye(6, dtype=np.float32)[self.cell]


class Memory(Toy):
    """The first observation shows a cue, 0 or 1. Five steps later an observation that is the same for both cues asks
    for it: +1 for the cue, -1 for the other. A network without memory cannot do better than 0 on average."""

    DELAY = 5
    observation, action = gs.Box(0, 1, (3,), np.float32), gs.Discrete(2)

    def __init__(self, num_envs: int, max_episode_steps: int | None = None):
        super().__init__(num_envs, max_episode_steps)
        self.cue = np.zeros(num_envs, np.int64)

    def _begin(self, rows: Mask) -> None:
        self.cue[rows] = self._draw(rows, 2)

    def _act(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked = self.steps > self.DELAY
        return np.where(asked, np.where(action == self.cue, 1, -1), 0), asked

    def _observe(self) -> Observed:
        obs = np.zeros((self.num_envs, 3), np.float32)
        first = (self.steps == 0).nonzero()[0]
        obs[first, self.cue[first]] = 1
        obs[:, 2] = self.steps == self.DELAY
        return obs


class Point(Toy):
    """The observation is the vector from the origin to a target in the square [-1, 1]^2. An action moves by half of
    itself; the reward is minus the distance after the move. Truncated after 10 steps."""

    observation, action = gs.Box(-np.inf, np.inf, (2,), np.float32), gs.Box(-1, 1, (2,), np.float32)

    def __init__(self, num_envs: int, max_episode_steps: int | None = 10):
        super().__init__(num_envs, max_episode_steps)
        self.way = np.zeros((num_envs, 2))

    def _begin(self, rows: Mask) -> None:
        self.way[rows] = self.np_random.uniform(-1, 1, (int(rows.sum()), 2))

    def _act(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.way = self.way - action / 2
        return -np.sqrt(np.square(self.way).sum(1)), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> Observed:
        return self.way.astype(np.float32)


class Catch(Toy):
    """bsuite's Catch: a ball falls through 10 rows of 5 columns. The paddle in the last row moves left, stays or moves
    right; +1 or -1 when the ball arrives, after 9 steps. Drawn as a uint8 image ``[1, screen, screen]``: 20 pixels suit
    a small or residual network; the Nature CNN needs ``screen=40`` or more (a multiple of 10). ``render`` returns the
    first environment's image, ``[screen, screen, 1]``."""

    action = gs.Discrete(3)

    def __init__(
        self, num_envs: int, max_episode_steps: int | None = None, screen: int = 20, render_mode: str | None = None
    ):
        self._tile = (screen // 10, screen // 5)
        self.observation = gs.Box(0, 255, (1, 10 * self._tile[0], 5 * self._tile[1]), np.uint8)
        super().__init__(num_envs, max_episode_steps)
        self.render_mode = render_mode
        self.metadata |= {"render_modes": ["rgb_array"], "render_fps": 5}
        self.ball, self.paddle = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def _begin(self, rows: Mask) -> None:
        self.ball[rows] = self._draw(rows, 5)
        self.paddle[rows] = 2

    def _act(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.paddle = np.clip(self.paddle + action - 1, 0, 4)
        landed = self.steps >= 9
        return np.where(landed, np.where(self.ball == self.paddle, 1, -1), 0), landed

    def _observe(self) -> np.ndarray:
        cells = np.zeros((self.num_envs, 10, 5), np.uint8)
        every = np.arange(self.num_envs)
        cells[every, 9, self.paddle] = 255
        cells[every, np.minimum(self.steps, 9), self.ball] = 255
        return cells.repeat(self._tile[0], 1).repeat(self._tile[1], 2)[:, None]

    def render(self) -> tuple[np.ndarray, ...]:  # a picture for each environment, as vector environments do
        return tuple(np.moveaxis(self._observe(), 1, -1))


class Both(OneOfFour):
    """A Dict: ``camera`` (uint8 ``[1, 20, 20]``) is bright on the left or the right, ``vector`` is (1, 0) or (0, 1);
    reward 1 for the action 2 * right + second. A new pair in each step; 8 steps."""

    observation = gs.Dict({"camera": gs.Box(0, 255, (1, 20, 20), np.uint8), "vector": gs.Box(0, 1, (2,), np.float32)})

    def _observe(self) -> Observed:
        camera = np.zeros((self.num_envs, 1, 20, 2, 10), np.uint8)
        camera[np.arange(self.num_envs), :, :, self.shown // 2] = 255
        vector = np.eye(2, dtype=np.float32)[self.shown % 2]
        return {"camera": camera.reshape(-1, 1, 20, 20), "vector": vector}


TOYS: dict[str, Callable[..., Toy]] = {
    "bandit-identity": BanditIdentity,
    "multi": Multi,
    "corridor": Corridor,
    "memory": Memory,
    "point": Point,
    "catch": Catch,
    "dict": Both,
}
