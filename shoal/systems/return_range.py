"""Which returns an environment can give, as far as random play tells: the range of a distribution of returns."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shoal.api import UsageError
from shoal.envs import EnvOptions, known_as, look, make, spec

STEPS, ENVS = 1_000, 4  # of random play, and how many environments share them
MARGIN = 0.1  # of the range, on either side: a return at its end is not yet beyond it


def require_order(low: float | None, high: float | None) -> None:
    """UsageError for a range that is upside down."""
    if low is not None and high is not None and low >= high:
        raise UsageError(f"v_min must be below v_max; found {low:g} and {high:g}")


def return_range(
    env: str, options: EnvOptions, gamma: float, low: float | None, high: float | None
) -> tuple[float, float, str]:
    """``low`` and ``high``, each derived where it is None, and a sentence on where they came from (empty: both given).

    A reward r in every step is worth r / (1 - gamma); one that ends an episode comes once. Derived is the range of this
    over the training rewards of 1,000 steps of random play and 0 (an episode that ends at once), and a tenth more on
    either side; where all these rewards are between 0 and 1, rewards from 0 to 1 are assumed. Of a given range, the
    sentence says whether the mean reward, in every step, lies outside. Raises UsageError for a range that is upside
    down, that holds no return of random play (from which learning starts), or that cannot be derived because gamma is
    1.
    """
    require_order(low, high)
    if gamma == 1.0 and (low is None or high is None):
        raise UsageError("with --gamma 1 the range of returns does not follow from rewards: give --v-min and --v-max")
    least, most, mean, last_least, last_most = rewards_seen(env, options)
    horizon = 1 / (1 - gamma) if gamma < 1.0 else math.inf
    bottom = (least if least >= 0 else least * horizon) + min(last_least, 0.0)
    top = (most if most <= 0 else most * horizon) + max(last_most, 0.0)
    if (low is not None and low > top) or (high is not None and high < bottom):
        given = f"from {bottom if low is None else low:g} to {top if high is None else high:g}"
        raise UsageError(
            f"no return of {env} under random play lies {given} (v_min, v_max): its rewards from {least:.4g} to "
            f"{most:.4g} make returns from {bottom:.4g} to {top:.4g} at --gamma {gamma:g}"
        )
    if low is not None and high is not None:
        typical = mean * horizon if mean else 0.0
        if low <= typical <= high or math.isinf(typical):
            return low, high, ""
        return low, high, (
            f"random play of {env} earns {mean:.4g} a step, which for ever is a return of {typical:.4g}: unless its "
            f"episodes are short, that is outside of {low:g} to {high:g} (--v-min and --v-max set the range)"
        )  # fmt: skip
    bottom, top = min(bottom, 0.0), max(top, 0.0)
    from_rewards = f"rewards from {least:.4g} to {most:.4g} in {STEPS:,} random steps, divided by 1 - gamma"
    if last_least or last_most:
        from_rewards += f", and once one that ends an episode, from {last_least:.4g} to {last_most:.4g}"
    if min(least, last_least) >= 0.0 and max(most, last_most) < 1.0:
        gave = "none" if most == last_most == 0.0 else f"no more than {max(most, last_most):.4g}"
        top, from_rewards = horizon, f"rewards assumed from 0 to 1, as {STEPS:,} random steps gave {gave}"
    margin = MARGIN * (top - bottom)
    low, high = bottom - margin if low is None else low, top + margin if high is None else high
    if low >= high:
        raise UsageError(f"v_min must be below v_max; found {low:g} and {high:g} ({from_rewards})")
    why = f"returns are taken to lie between {low:.4g} and {high:.4g}: {from_rewards}; and a tenth more"
    return low, high, f"{why} (--v-min and --v-max say otherwise)"


class Rewards(NamedTuple):
    """Training rewards: the smallest and the largest of steps that end no episode, the mean of all, and the smallest
    and the largest of steps that end one (0 where there are none)."""

    least: float
    most: float
    mean: float
    last_least: float
    last_most: float


_seen: dict[tuple[str, str, tuple[str, ...]], Rewards] = {}  # of what was played


def rewards_seen(env: str, options: EnvOptions) -> Rewards:
    """Those of ``STEPS`` steps with actions uniform in the box."""
    key = known_as(env, options)
    if key not in _seen:
        _seen[key] = look(env, options, _play)
    return _seen[key]


def _play(env: str, options: EnvOptions) -> Rewards:
    action = spec(env, options).action
    rng, batch = np.random.default_rng(0), make(env, ENVS, options)
    rewards, last = [], []
    try:
        batch.reset(0)
        for _ in range(STEPS // ENVS):
            drawn = rng.uniform(action.low, action.high, (ENVS, len(action.low)))
            step = batch.step(drawn.astype(np.float32))
            rewards.append(step.reward[step.valid].copy())
            last.append(step.terminated[step.valid].copy())
    finally:
        batch.close()
    seen, ends = np.concatenate(rewards), np.concatenate(last)
    return Rewards(*_bounds(seen[~ends]), float(seen.mean()), *_bounds(seen[ends]))


def _bounds(rewards: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest; 0 of none."""
    return (float(rewards.min()), float(rewards.max())) if len(rewards) else (0.0, 0.0)
