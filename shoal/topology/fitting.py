"""Rollouts for short runs and slow environments: fewer environments and shorter unrolls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from shoal.types import Values
from shoal.words import counted

ROUNDS = 16  # smallest number of messages of each actor in a run
SECONDS = 30.0  # longest time of a message
LEAST_STEPS = 64  # agent steps of all actors together; shorter rounds are not shortened
LEAST_UNROLL = 8  # agent steps
LEAST_MINIBATCH = 32  # agent steps


@dataclass(frozen=True)
class Fit:
    """Requirements on rollouts.

    free: fields that the user has not set. steps: of the run; infinite if the user has not set them, because a preset's
    own rollouts suit its own steps. pace: environment steps per second of one process; None: not measured. agents: rows
    of a game that they play together.
    """

    free: Collection[str]
    steps: float
    pace: float | None = None
    agents: int = 1

    def reason(self, actors: int) -> str:
        """Return why the rollouts of ``actors`` actors are shortened: the tighter of the two bounds on a round."""
        if self.pace is not None and self.pace * actors * ROUNDS * SECONDS < self.steps:
            return f"the environment makes {self.pace:.2g} steps a second"
        return f"the run has {counted(self.steps, 'step')}"


def fitted(cfg: Any, fit: Fit) -> Values:
    """Return smaller values of the fields ``fit.free`` of ``cfg``, with which a round (one message of each actor) takes
    at most a 16th of the run and half a minute, or {} if it does already. The larger of environments and unroll is
    halved, repeatedly."""
    actors, unroll = cfg.num_actors(), cfg.unroll
    each = "total_envs" if cfg.total_envs else "envs"
    envs, whole = cfg.envs * actors, fit.agents * actors
    pace = float("inf") if fit.pace is None else fit.pace * actors
    bound = max(LEAST_STEPS, min(fit.steps / ROUNDS, pace * SECONDS))
    while envs * unroll > bound:
        halves_envs = {"envs", each} <= set(fit.free) and envs % (2 * whole) == 0
        halves_unroll = "unroll" in fit.free and unroll >= 2 * LEAST_UNROLL
        if halves_envs and (envs >= unroll or not halves_unroll):
            envs //= 2
        elif halves_unroll:
            unroll //= 2
        else:
            break
    new = {each: envs if cfg.total_envs else envs // actors, "unroll": unroll}
    return changed(cfg, new)


def fitted_minibatches(cfg: Any, fit: Fit) -> Values:
    """Return fewer ``minibatches`` if those of ``cfg`` would be shorter than 32 steps, or would not divide whole
    trajectories where these are needed."""
    columns, minibatches = cfg.num_actors() * cfg.envs, cfg.minibatches
    while "minibatches" in fit.free and minibatches > 1:
        divided = cfg.core == "none" or columns % minibatches == 0
        if divided and columns * cfg.unroll >= minibatches * LEAST_MINIBATCH:
            break
        minibatches //= 2
    return changed(cfg, {"minibatches": minibatches})


def fitted_replay(cfg: Any, fit: Fit) -> Values:
    """Return a smaller ``min_replay`` if updates would begin after more than a quarter of the run, or two minutes."""
    pace = float("inf") if fit.pace is None else fit.pace * cfg.num_actors()
    bound = max(LEAST_STEPS, cfg.batch, min(fit.steps / 4, pace * 4 * SECONDS))
    return changed(cfg, {"min_replay": int(min(cfg.min_replay, bound))} if "min_replay" in fit.free else {})


def changed(cfg: Any, values: Values) -> Values:
    """Return those of ``values`` that differ from the fields of ``cfg``."""
    return {name: value for name, value in values.items() if getattr(cfg, name) != value}
