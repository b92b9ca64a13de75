"""Checks of an environment's observations after a run that has not improved, by random actions."""

from __future__ import annotations

import numpy as np

from shoal.policy.policy import evaluation_envs
from shoal.roles.random_observations import random_observations
from shoal.run.symptoms import PAGE
from shoal.topology.config import SystemConfig

ROWS, ENVS = 512, 4
LEAST_ROWS, SECONDS = 64, 10.0  # fewer rows are not enough; a user is waiting for the report
WHERE = f"({PAGE}#observations)"
# standard deviations among the numbers of an observation, beyond which one dominates or is negligible
LARGE, SMALL = 30.0, 1e-3


def observed(cfg: SystemConfig, seed: int) -> str:
    """Return a sentence about bad observations of a configuration's environment, or "" if none are found or it is too
    slow to tell. Plays ``ROWS`` steps with random actions, for at most about ``SECONDS``."""
    rows = random_observations(evaluation_envs(cfg, ENVS), ROWS, seed, SECONDS)
    if any(len(array) < LEAST_ROWS for array in rows.values()):
        return ""
    leaves = {k: v for k, v in rows.items() if k != "obs/action_mask"}
    if all((array == array[:1]).all() for array in leaves.values()):
        return f"every observation is the same, whatever random actions do {WHERE}"
    for name, array in leaves.items():
        if array.dtype.kind != "f":
            continue
        if not np.isfinite(array).all():
            return f"the observation '{name}' is not always finite {WHERE}"
        spread = array.reshape(len(array), -1).std(0)
        moving = spread[spread > 0]
        if len(moving) and (moving.max() > LARGE or moving.max() < SMALL) and not getattr(cfg, "normalise_obs", False):
            return (
                f"the observation '{name}' has numbers of another size than 1 (standard deviations from "
                f"{moving.min():.2g} to {moving.max():.2g}), which networks learn from slowly; normalise it {WHERE}"
            )
    return ""
