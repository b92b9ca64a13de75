"""Observations that random actions lead to, which virtual batch normalisation refers to."""

from __future__ import annotations

import time

import numpy as np

from shoal.api import MASK, Action, Arrays, EnvBatch
from shoal.ops import draw_allowed


def random_observations(env: EnvBatch, count: int, seed: int, seconds: float = float("inf")) -> Arrays:
    """``count`` observations [count, ...] that random actions lead to, or fewer where so many ``seconds`` are over
    before; closes the environments."""
    until = time.monotonic() + seconds
    generator, action = np.random.default_rng(seed), env.spec.action
    seen: dict[str, list[np.ndarray]] = {name: [] for name in env.spec.observations}
    obs = env.reset(seed)
    for _ in range(-(-count // env.num_envs)):
        for name, rows in seen.items():
            rows.append(np.array(obs[name]))
        chosen = uniform_actions(action, env.num_envs, obs.get(MASK), generator)
        obs = env.step(chosen).obs
        if time.monotonic() > until:
            break
    env.close()
    return {name: np.concatenate(rows)[:count] for name, rows in seen.items()}


def uniform_actions(action: Action, count: int, mask: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
    """Return ``count`` actions drawn uniformly from those that ``mask`` (bool [count, sizes in a row]) allows and from
    the box; along a side without a bound from one unit."""
    drawn = generator.integers(0, action.sizes, (count, len(action.sizes)))
    if mask is not None:
        parts = np.split(mask, np.cumsum(action.sizes)[:-1], axis=1)
        drawn = np.stack([draw_allowed(part, generator) for part in parts], -1)
    low, high = np.nan_to_num(action.low, neginf=-1.0), np.nan_to_num(action.high, posinf=1.0)
    box = generator.uniform(low, high, (count, len(low)))
    return np.concatenate((drawn, box), 1).astype(action.dtype).reshape(count, *action.shape)
