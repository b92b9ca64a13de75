"""When a run makes its first update, and why it made none."""

from __future__ import annotations

from typing import Any

from shoal.words import counted


def first_update(cfg: Any) -> float:
    """Return the environment steps before the first update, roughly; 0: nobody can say."""
    updates = cfg.updates()
    return max(float(getattr(cfg, "min_replay", 0)), cfg.steps / updates if updates else 0.0)


def why_no_update(cfg: Any, steps: int) -> str:
    """Return why a run that took so many steps made no update, and what would have sufficed."""
    least = getattr(cfg, "min_replay", 0)
    if least > steps:
        return (
            f"updates begin with {counted(least, 'item')} in the replay (min_replay), and it ended after "
            f"{counted(steps, 'step')}"
        )
    return (
        f"no update was complete after its {counted(steps, 'step')}: more steps, or {cfg.for_more_updates}, make some"
    )
