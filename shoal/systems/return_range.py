"""Which returns an environment can give, as far as random play tells: the range of a distribution of returns."""

from __future__ import annotations

import math

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

    A reward r in every step is worth r / (1 - gamma). Derived is the range of this over the training rewards of 1,000
    steps of random play and 0 (an episode that ends at once), and a tenth more on either side; where all these
    rewards are 0, rewards from 0 to 1 are assumed. Raises UsageError for a range that is upside down, that holds no
    return of random play (from which learning starts), or that cannot be derived because gamma is 1.
    """
    require_order(low, high)
    if gamma == 1.0:
        if low is None or high is None:
            raise UsageError(
                "with --gamma 1 the range of returns does not follow from rewards: give --v-min and --v-max"
            )
        return low, high, ""
    least, most = rewards_seen(env, options)
    bottom, top = min(least, 0.0) / (1 - gamma), max(most, 0.0) / (1 - gamma)
    if (low is not None and low > top) or (high is not None and high < bottom):
        given = f"from {bottom if low is None else low:g} to {top if high is None else high:g}"
        raise UsageError(
            f"no return of {env} under random play lies {given} (v_min, v_max): its rewards from {least:.4g} to "
            f"{most:.4g} make returns from {bottom:.4g} to {top:.4g} at --gamma {gamma:g}"
        )
    if low is not None and high is not None:
        return low, high, ""
    from_rewards = f"rewards from {least:.4g} to {most:.4g} in {STEPS:,} random steps"
    if least == most == 0.0:
        top, from_rewards = 1 / (1 - gamma), f"rewards assumed from 0 to 1, as {STEPS:,} random steps gave none"
    margin = MARGIN * (top - bottom)
    low, high = bottom - margin if low is None else low, top + margin if high is None else high
    if low >= high:
        raise UsageError(f"v_min must be below v_max; found {low:g} and {high:g} ({from_rewards})")
    why = (
        f"returns are taken to lie between {low:.4g} and {high:.4g}: {from_rewards}, divided by 1 - gamma, and a tenth"
    )
    return low, high, f"{why} more (--v-min and --v-max say otherwise)"


_seen: dict[tuple[str, str, tuple[str, ...]], tuple[float, float]] = {}  # of what was played


def rewards_seen(env: str, options: EnvOptions) -> tuple[float, float]:
    """The smallest and the largest training reward of ``STEPS`` steps with actions uniform in the box."""
    key = known_as(env, options)
    if key not in _seen:
        _seen[key] = look(env, options, _play)
    return _seen[key]


def _play(env: str, options: EnvOptions) -> tuple[float, float]:
    action = spec(env, options).action
    rng, batch = np.random.default_rng(0), make(env, ENVS, 0, options)
    least, most = math.inf, -math.inf
    try:
        batch.reset(0)
        for _ in range(STEPS // ENVS):
            drawn = rng.uniform(action.low, action.high, (ENVS, len(action.low)))
            step = batch.step(drawn.astype(np.float32))
            if step.valid.any():
                rewards = step.reward[step.valid]
                least, most = min(least, float(rewards.min())), max(most, float(rewards.max()))
    finally:
        batch.close()
    return least, most
