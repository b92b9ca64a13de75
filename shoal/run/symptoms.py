"""One sentence on why a run does not learn, if its metrics show a known cause. docs/not-learning.md describes all
causes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.metering.aggregator import Snapshot
from shoal.settings.schedule import linear
from shoal.words import counted

PAGE = "docs/not-learning.md"
EPISODES = 100  # episodes at the beginning and at the end of a run that are compared
LEAST_EPISODES, LEAST_UPDATES = 20, 20  # fewer are not judged
MAX_STEPS_WITHOUT_EPISODE = 10_000  # steps of each environment without the end of an episode
CHANCE = 2.5  # standard errors by which chance rarely moves a mean
MIN_RUN_SHARE = 0.5  # share of a run before which it is not judged


class Symptoms:
    """Collects a run's snapshots; ``sentences`` returns the likely causes if the run has not improved.

    A run has improved if its last episodes return more than its first ones, by half of their standard deviation or by
    more than chance explains (``CHANCE``). For such a run nothing is said, because some apparent causes (a policy
    without entropy, actions at their bounds) are the solution of some tasks. cfg: the configuration. limit: agent steps
    of the run.
    """

    def __init__(self, cfg: Any, limit: int) -> None:
        self.cfg, self.limit = cfg, limit
        self.first: list[float] = []  # returns of the first episodes
        self.last: deque[float] = deque(maxlen=EPISODES)
        self.episodes = self.steps = self.updates = self.ended_at = 0
        self.length = math.nan
        self._seen: dict[str, list[tuple[int, float]]] = {}  # steps and values of the metrics that causes depend on

    def update(self, snapshot: Snapshot) -> None:
        for value, _ in snapshot.new_episodes:
            if len(self.first) < EPISODES:
                self.first.append(value)
            self.last.append(value)
        self.steps, self.updates, self.length = snapshot.steps, snapshot.updates, snapshot.episode_length
        if snapshot.new_episodes:
            self.ended_at = snapshot.steps
        self.episodes += len(snapshot.new_episodes)
        for name in LOOKED_AT & snapshot.records.keys():
            self._seen.setdefault(name, []).append((snapshot.steps, snapshot.records[name]))

    @property
    def improved(self) -> bool:
        """Return True if the last episodes return more than the first."""
        half = self.episodes // 2  # a run with few episodes is split in halves
        first, last = np.array(self.first[: max(half, 1)]), np.array(list(self.last)[-max(half, 1) :])
        if not len(last):
            return False
        chance = CHANCE * math.sqrt((first.var() + last.var()) / len(first))
        return bool(last.mean() > first.mean() + min(0.5 * first.std(), chance))

    def of_late(self, name: str) -> float:
        """Return the median of a metric over the second half of the run so far, or nan if it was not recorded."""
        late = [value for steps, value in self._seen.get(name, ()) if steps >= self.steps / 2]
        return float(np.median(late)) if late else math.nan

    def growth(self, name: str) -> float:
        """Return the ratio of a metric's mean in the last quarter of the run so far to that in the second quarter, or
        nan."""
        quarters: list[list[float]] = [[], [], [], []]
        for steps, value in self._seen.get(name, ()):
            quarters[min(3, 4 * steps // max(self.steps, 1))].append(value)
        early, late = quarters[1], quarters[3]
        return float(np.median(late) / max(np.median(early), 1e-12)) if early and late else math.nan

    def sentences(self) -> list[str]:
        """Return the causes found, the likeliest first; none if the run has improved or is too short."""
        return list(self._found()) if self.old else []

    @property
    def old(self) -> bool:
        """Return True if the run is long enough to be judged."""
        return self.steps >= MIN_RUN_SHARE * self.limit and self.updates >= LEAST_UPDATES

    @property
    def stuck(self) -> bool:
        """Return True if enough episodes show that it has not improved."""
        return self.old and self.episodes >= LEAST_EPISODES and not self.improved

    def _found(self) -> Iterator[str]:
        for cause in CAUSES:
            if (self.stuck or cause.without_episodes) and (shown := cause.shows(self)):
                remedy = cause.remedy if isinstance(cause.remedy, str) else cause.remedy(self)
                yield f"{shown}; try {remedy} ({PAGE}#{cause.name})"


@dataclass(frozen=True)
class Cause:
    """A known cause. shows: returns a sentence on the evidence, or ""; remedy: what to try, possibly as a function of
    the run; without_episodes: whether it applies to a run whose returns say nothing."""

    name: str
    shows: Callable[[Symptoms], str]
    remedy: str | Callable[[Symptoms], str]
    without_episodes: bool = False


def _endless(run: Symptoms) -> str:
    each = (run.steps - run.ended_at) / max(1, run.cfg.num_actors() * getattr(run.cfg, "envs", 1))
    return (
        f"no episode has ended for {counted(each, 'step')} of each environment"
        if each >= MAX_STEPS_WITHOUT_EPISODE
        else ""
    )


def _constant(run: Symptoms) -> str:
    same = len(set(run.last)) == 1 and float(np.median(run.first)) == run.last[0]
    return f"the last {len(run.last)} episodes all returned {run.last[0]:g}, as the first ones did" if same else ""


def _deterministic(run: Symptoms) -> str:
    action = run.cfg.env_spec().action
    sizes = () if action.low else action.sizes  # the box part of a mixed action has no least entropy
    most, now = sum(math.log(size) for size in sizes), run.of_late("entropy")
    few = sizes and now < 0.02 * most
    return (
        f"the policy has hardly any entropy left ({now:.2g} of {most:.2g} nats), so that it explores no more"
        if few
        else ""
    )


def _saturated(run: Symptoms) -> str:
    share = run.of_late("saturated")
    return f"{share:.0%} of the policy's actions lie at the bounds, where its gradient is 0" if share > 0.9 else ""


def _unexplained(run: Symptoms) -> str:
    share = run.of_late("explained_variance")
    if _constant(run):  # there is no variance to explain
        return ""
    return f"the values explain none of the returns' variance (explained_variance {share:.2g})" if share <= 0.0 else ""


def _explaining(run: Symptoms) -> str:
    """Return what may help the value function to explain returns, without what the run already has."""
    cfg, vectors = run.cfg, not run.cfg.has_images()
    out = ["--normalise-obs"] if vectors and not getattr(cfg, "normalise_obs", True) else []
    if not getattr(cfg, "normalise_reward", True):
        out.append("--normalise-reward")
    if not getattr(cfg, "pop_art", True):
        out.append("--pop-art")
    if getattr(cfg, "core", "") == "none":
        out.append("--core lstm")
    return ", ".join([*out, "a larger network"]).replace(", a larger", " or a larger")


def _growing(run: Symptoms) -> str:
    name = "value_loss" if "value_loss" in run._seen else "td_error"
    factor = run.growth(name)
    return f"{name} has grown {factor:,.0f}-fold since the run's first half" if factor > 10 else ""


def _short_replay(run: Symptoms) -> str:
    replay = getattr(run.cfg, "replay", 0) if getattr(run.cfg, "items_are_steps", False) else 0
    short = 0 < replay < run.length
    return (
        f"the replay ({counted(replay, 'transition')}) is shorter than an episode ({counted(run.length, 'step')})"
        if short
        else ""
    )


def _random(run: Symptoms) -> str:
    cfg = run.cfg
    if not getattr(cfg, "epsilon_steps", 0) or not hasattr(cfg, "epsilon_end") or cfg.epsilon_ladder:
        return ""
    epsilon = linear(cfg.epsilon_start, cfg.epsilon_end).at(run.limit / cfg.epsilon_steps)
    return f"{epsilon:.0%} of the actions are random even at the run's end" if epsilon > 0.3 else ""


def _clipped(run: Symptoms) -> str:
    clip, mean = getattr(run.cfg, "reward_clip", "none"), abs(float(np.mean(run.last)) if run.last else 0.0)
    large = clip != "none" and mean > run.length  # a reward above 1 per step
    return f"episodes return more than 1 a step, and rewards are clipped (reward_clip {clip})" if large else ""


CAUSES = (
    Cause("endless-episodes", _endless, "--max-episode-steps N", without_episodes=True),
    Cause("one-return", _constant, "--novelty 1, or more exploration"),
    Cause("replay-shorter-than-an-episode", _short_replay, "a larger --replay"),
    Cause("random-actions", _random, "fewer --epsilon-steps, or a smaller --epsilon-end"),
    Cause("clipped-rewards", _clipped, "--reward-clip none with a --reward-scale"),
    Cause("growing-loss", _growing, "a smaller --learning-rate or --reward-scale"),
    Cause("no-entropy", _deterministic, "a larger --entropy-cost"),
    Cause("saturated-actions", _saturated, "a smaller --learning-rate, or --layer-norm"),
    Cause("unexplained-returns", _unexplained, _explaining),
)
LOOKED_AT = frozenset({"entropy", "saturated", "explained_variance", "value_loss", "td_error"})
