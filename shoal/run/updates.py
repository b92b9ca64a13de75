"""The first update of a run: when it is made, and why there was none."""

from __future__ import annotations

from shoal.topology.config import SystemConfig
from shoal.words import counted


def first_update(cfg: SystemConfig) -> float:
    """Return the approximate number of environment steps before the first update, or 0 if unknown."""
    updates = cfg.updates()
    return max(float(getattr(cfg, "min_replay", 0)), cfg.steps / updates if updates else 0.0)


def why_no_update(cfg: SystemConfig, steps: int) -> str:
    """Return why a run of ``steps`` steps made no update, and what would have sufficed."""
    least = getattr(cfg, "min_replay", 0)
    if least > steps:
        return (
            f"updates begin with {counted(least, 'item')} in the replay (min_replay), and it ended after "
            f"{counted(steps, 'step')}"
        )
    return (
        f"no update was complete after its {counted(steps, 'step')}: more steps, or {cfg.for_more_updates}, make some"
    )
