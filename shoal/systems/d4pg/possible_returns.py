"""The range of a distribution of returns: what an environment can give, as far as random play tells."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shoal.api import UsageError
from shoal.envs import EnvOptions, known_as, look, make, spec, training_reward
from shoal.words import counted

STEPS, ENVS = 1_000, 4  # of random play, and how many environments share them
MARGIN = 0.1  # of the range, on either side: a return at its end is not yet beyond it


def require_order(low: float | None, high: float | None) -> None:
    """UsageError for a range that is upside down."""
    if low is not None and high is not None and low >= high:
        raise UsageError(f"v_min must be below v_max; found {low:g} and {high:g}")


def require_atoms(low: float, high: float, count: int) -> None:
    """UsageError for a range of which float32 does not tell so many returns apart."""
    with np.errstate(over="ignore", invalid="ignore"):
        between = np.diff(np.linspace(low, high, count).astype(np.float32))
    if not (np.isfinite(between) & (between > 0)).all():
        raise UsageError(
            f"v_min and v_max expect numbers with {count} returns of float32 between them, found {low!r} and {high!r}"
        )


def return_range(
    env: str, options: EnvOptions, gamma: float, low: float | None, high: float | None,
    rewards: tuple[float, float] | None = None,
) -> tuple[float, float, str]:  # fmt: skip
    """``low`` and ``high``, each derived where it is None, and a sentence on where they came from (empty: both given).

    A reward r in every step is worth r / (1 - gamma). Derived is the range of this over 0 (an episode that ends at
    once) and the environment's ``rewards`` (smallest, largest), as they are scaled and clipped for training. Without
    these, over 0 and those of 1,000 steps of random play, where one that ends an episode comes once, and a tenth more
    on either side; where all of them are between 0 and 1, rewards from 0 to 1 are assumed. The sentence also says
    whether the mean reward of random play, in every step, lies outside of what does not come from there. Raises
    UsageError for a range that is upside down, that holds no return of random play (from which learning starts), or
    that cannot be derived because gamma is 1.
    """
    require_order(low, high)
    if rewards is not None and rewards[0] >= rewards[1]:
        raise UsageError(f"reward_range expects the smaller reward first, found {rewards[0]:g} and {rewards[1]:g}")
    if gamma == 1.0 and (low is None or high is None):
        raise UsageError("with --gamma 1 the range of returns does not follow from rewards: give --v-min and --v-max")
    seen, horizon, why = rewards_seen(env, options), 1 / (1 - gamma) if gamma < 1.0 else math.inf, ""
    if rewards is not None and (low is None or high is None):
        clip, scale = options.reward_clip, options.reward_scale
        least, most = sorted(training_reward(np.array(rewards, np.float64), clip, scale).tolist())
        bottom, top = min(least * horizon, 0.0), max(most * horizon, 0.0)  # 0: as behind a terminal state
        low, high = bottom if low is None else low, top if high is None else high
        if low >= high:
            raise UsageError(
                f"reward_range {rewards[0]:g} to {rewards[1]:g}, clipped and scaled to {least:g} to {most:g}, makes "
                f"returns from {low:g} to {high:g}: expected the smaller first"
            )
        why = f"rewards from {least:.4g} to {most:.4g} (reward_range), divided by 1 - gamma"
    bottom, top = _possible(seen, horizon)
    if (low is not None and low > top) or (high is not None and high < bottom):
        given = f"from {bottom if low is None else low:g} to {top if high is None else high:g}"
        whose = "reward_range" if why else "v_min, v_max"
        raise UsageError(
            f"no return of {env} under random play lies {given} ({whose}): its rewards from {seen.least:.4g} to "
            f"{seen.most:.4g} make returns from {bottom:.4g} to {top:.4g} at --gamma {gamma:g}"
        )
    outside = ""
    if low is None or high is None:
        low, high, why = _derived(seen, horizon, options.reward_scale, low, high)
    elif not low <= (typical := seen.mean * horizon if seen.mean else 0.0) <= high and math.isfinite(typical):
        outside = (
            f"random play of {env} earns {seen.mean:.4g} a step, which for ever is a return of {typical:.4g}: unless "
            f"its episodes are short, that is outside of {low:g} to {high:g} (--v-min and --v-max set the range)"
        )
    told = f"returns are taken to lie between {low:.4g} and {high:.4g}: {why} (--v-min and --v-max say otherwise)"
    return low, high, "; ".join(sentence for sentence in (told if why else "", outside) if sentence)


def _possible(seen: Rewards, horizon: float) -> tuple[float, float]:
    """Between which returns those of random play lie."""
    bottom = (seen.least if seen.least >= 0 else seen.least * horizon) + min(seen.last_least, 0.0)
    top = (seen.most if seen.most <= 0 else seen.most * horizon) + max(seen.last_most, 0.0)
    return bottom, top


def _derived(
    seen: Rewards, horizon: float, scale: float, low: float | None, high: float | None
) -> tuple[float, float, str]:
    """The range by random play, where it is not given, and where it came from; scale: of the rewards that were seen."""
    bottom, top = _possible(seen, horizon)
    bottom, top = min(bottom, 0.0), max(top, 0.0)
    why = f"rewards from {seen.least:.4g} to {seen.most:.4g} in {counted(STEPS, 'random step')}, divided by 1 - gamma"
    if seen.last_least or seen.last_most:
        why += f", and once one that ends an episode, from {seen.last_least:.4g} to {seen.last_most:.4g}"
    largest = max(seen.most, seen.last_most)
    if min(seen.least, seen.last_least) >= 0.0 and largest < scale:
        gave = "none" if largest == 0.0 else f"no more than {largest:.4g}"
        top, why = (
            scale * horizon,
            f"rewards assumed from 0 to {scale:g}, as {counted(STEPS, 'random step')} gave {gave}",
        )
    margin = MARGIN * (top - bottom)
    low, high = bottom - margin if low is None else low, top + margin if high is None else high
    if low >= high:
        raise UsageError(f"v_min must be below v_max; found {low:g} and {high:g} ({why})")
    return low, high, f"{why}; and a tenth more"


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
    """Return the rewards of ``STEPS`` steps with actions uniform in the box."""
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
