"""Exploration at a different rate in each environment, as Ape-X has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.api import Context
from shoal.ops import epsilon_ladder
from shoal.settings.ranges import Fraction, NonNegative
from shoal.topology.config import SystemConfig


@dataclass(frozen=True, kw_only=True)
class LadderConfig(SystemConfig):
    """The ladder of exploration rates, which spans all environments of all actors (Horgan et al. 2018)."""

    epsilon_base: Fraction = 0.4
    """Probability of a random action in the first environment of the ladder."""
    epsilon_alpha: NonNegative = 7.0
    """Exponent that says how steeply the ladder of epsilons falls."""


def ladder(cfg: LadderConfig, ctx: Context) -> np.ndarray:
    """Exploration of an actor's environments [cfg.envs]: ``e`` of actor ``i`` stands at rung ``i * envs + e``."""
    rungs, first = ctx.replicas * cfg.envs, ctx.index * cfg.envs
    return np.array([epsilon_ladder(first + e, rungs, cfg.epsilon_base, cfg.epsilon_alpha) for e in range(cfg.envs)])
