"""Observations that random actions lead to, which virtual batch normalisation refers to."""

from __future__ import annotations

import numpy as np

from shoal.api import MASK, Arrays, EnvBatch
from shoal.ops import draw_allowed


def random_observations(env: EnvBatch, count: int, seed: int) -> Arrays:
    """``count`` observations [count, ...] that random actions lead to; closes the environments."""
    generator, action = np.random.default_rng(seed), env.spec.action
    seen: dict[str, list[np.ndarray]] = {name: [] for name in env.spec.observations}
    obs = env.reset(seed)
    chosen: np.ndarray
    for _ in range(-(-count // env.num_envs)):
        for name, rows in seen.items():
            rows.append(np.array(obs[name]))
        if action.kind == "continuous":
            low, high = np.nan_to_num(action.low, neginf=-1.0), np.nan_to_num(action.high, posinf=1.0)
            chosen = generator.uniform(low, high, (env.num_envs, len(low))).astype(np.float32)
        else:
            drawn = generator.integers(0, action.sizes, (env.num_envs, len(action.sizes)))
            if MASK in obs:
                parts = np.split(obs[MASK], np.cumsum(action.sizes)[:-1], axis=1)
                drawn = np.stack([draw_allowed(part, generator) for part in parts], -1)
            chosen = drawn[:, 0] if action.kind == "discrete" else drawn
        obs = env.step(chosen).obs
    env.close()
    return {name: np.concatenate(rows)[:count] for name, rows in seen.items()}
