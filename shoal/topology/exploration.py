"""Exploration rates that differ by environment (Ape-X), and temporally correlated noise (DDPG)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.api import Context
from shoal.ops import epsilon_ladder
from shoal.settings.ranges import Fraction, NonNegative
from shoal.topology.config import SystemConfig


@dataclass(frozen=True, kw_only=True)
class LadderConfig(SystemConfig):
    """Settings of the ladder of exploration rates, which spans all environments of all actors (Horgan et al. 2018)."""

    epsilon_base: Fraction = 0.4
    """Probability of a random action in the first environment of the ladder of exploration rates (ε in Ape-X)."""
    epsilon_alpha: NonNegative = 7.0
    """Exponent of the ladder of exploration rates: a larger one makes it fall more steeply (α in Ape-X)."""


def ladder(cfg: LadderConfig, ctx: Context) -> np.ndarray:
    """Return the exploration rates of an actor's environments [cfg.envs]. Environment ``e`` of actor ``i`` is at rung
    ``i * envs + e`` of the ladder."""
    rungs, first = ctx.replicas * cfg.envs, ctx.index * cfg.envs
    return np.array([epsilon_ladder(first + e, rungs, cfg.epsilon_base, cfg.epsilon_alpha) for e in range(cfg.envs)])


class LastingNoise:
    """Gaussian noise with standard deviation 1 that is correlated over time: ``x <- c x + sqrt(1 - c^2) e`` with a new
    ``e`` and the ``correlation`` ``c`` of two consecutive steps. Where an episode begins, ``x = e``. If c is 0, steps
    are independent.

    Source: the Ornstein-Uhlenbeck process of Lillicrap et al. 2016, section 7 (c = 1 - theta = 0.85; its standard
    deviation of 0.2 per step is 0.38 in the long run), here with the same deviation from the first step on.
    """

    def __init__(self, correlation: float, rng: np.random.Generator) -> None:
        self.correlation, self.rng = correlation, rng
        self.last: np.ndarray | None = None  # [E, A]

    def __call__(self, first: np.ndarray, actions: int) -> np.ndarray:
        """Return the noise [E, actions] (float32) of a step. first: bool [E], True where an episode begins."""
        drawn = self.rng.standard_normal((len(first), actions), np.float32)
        if not self.correlation:
            return drawn
        if self.last is not None and self.last.shape == drawn.shape:
            fresh = np.float32(math.sqrt(1.0 - self.correlation**2))
            drawn = np.where(first[:, None], drawn, np.float32(self.correlation) * self.last + fresh * drawn)
        self.last = drawn
        return drawn
