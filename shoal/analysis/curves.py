"""Learning curves of finished or running runs, in groups that differ only by their seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from shoal.analysis.stats import bootstrap, iqm
from shoal.api import UsageError
from shoal.paths import shown
from shoal.records.metric_files import read_curve
from shoal.run.changes import told
from shoal.settings.flags import short_name
from shoal.types import Values
from shoal.untrusted import one_line

POINTS = 200  # of a group's curve


@dataclass(frozen=True)
class Curve:
    """One run. ``steps`` (environment steps), ``seconds`` and ``returns`` (mean of the last 100 training episodes)
    are arrays [rows], from the first finished episode on."""

    path: Path
    system: str
    env: str
    config: dict[str, object]
    steps: np.ndarray
    seconds: np.ndarray
    returns: np.ndarray
    changes: tuple[str, ...] = ()  # of its settings, as ``run.changes.told`` tells them

    def x(self, axis: str) -> np.ndarray:
        return self.steps if axis == "steps" else self.seconds

    def reached(self, threshold: float) -> tuple[float, float] | None:
        """(steps, seconds) at the first row that is at least ``threshold``; None if there is none."""
        rows = np.flatnonzero(self.returns >= threshold)
        return (float(self.steps[rows[0]]), float(self.seconds[rows[0]])) if rows.size else None


@dataclass(frozen=True)
class Group:
    """Runs of one system with one configuration. ``label`` tells it from the other groups."""

    label: str
    system: str
    env: str
    config: dict[str, object]
    curves: list[Curve]

    def final(self) -> np.ndarray:
        """Each run's last return."""
        return np.array([c.returns[-1] for c in self.curves])

    def band(self, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(x, interquartile mean, low, high) over the stretch that all runs cover; [] where there is none."""
        begin = max(c.x(axis)[0] for c in self.curves)
        end = min(c.x(axis)[-1] for c in self.curves)
        if end < begin:
            return (np.empty(0),) * 4
        x = np.linspace(begin, end, POINTS)
        y = np.stack([np.interp(x, c.x(axis), c.returns) for c in self.curves])
        low, high = bootstrap([y], samples=1_000)
        return x, iqm(y, 0), low, high


class NoEpisode(UsageError):
    """A run in which no episode has ended."""


class Recorded(Protocol):
    """What a curve needs of a run."""

    path: Path
    system: str
    config: Values
    changes: list[Values]
    init_from: str | None


def curve_of(run: Recorded) -> Curve:
    """The curve of a run; NoEpisode if no episode has ended in it."""
    rows = [r for r in read_curve(run.path) if "episode_return" in r and "seconds" in r]
    if not rows:
        raise NoEpisode(f"'{shown(run.path)}' has no learning curve: no episode has ended in it")
    steps, seconds, returns = (np.array([r[k] for r in rows]) for k in ("steps", "seconds", "episode_return"))
    config = {**run.config, **({"init_from": run.init_from} if run.init_from else {})}
    env = one_line(str(config["env"]))
    return Curve(run.path, one_line(run.system), env, config, steps, seconds, returns, tuple(told(run.changes)))


def grouped(runs: Sequence[Recorded], left_out: Callable[[str], object] = lambda sentence: None) -> list[Group]:
    """The runs that differ only by seed together, in the order of their first run. Runs in which no episode has ended
    are left out, each told by a sentence; NoEpisode if that is all of them."""
    found: dict[str, list[Curve]] = {}
    for run in runs:
        try:
            curve = curve_of(run)
        except NoEpisode as error:
            if len(runs) == 1:
                raise
            left_out(f"{error}; it is left out")
            continue
        changed = [change.rpartition(" at ")[0] for change in curve.changes]
        key = json.dumps([curve.system, curve.config, changed], sort_keys=True, default=str)
        found.setdefault(key, []).append(curve)
    if not found:
        raise NoEpisode(f"none of the {len(runs)} runs has a learning curve: no episode has ended in them")
    several = len({curves[0].env for curves in found.values()}) > 1
    systems = {curves[0].system for curves in found.values()}
    short = [short_name(system) for system in systems]
    names = {system: name if short.count(name) == 1 else system for system, name in zip(systems, short, strict=True)}
    out = []
    for curves in found.values():
        one = curves[0]
        alike = [c[0] for c in found.values() if (c[0].system, c[0].env) == (one.system, one.env)]
        differing = [k for k in one.config if any(c.config.get(k) != one.config[k] for c in alike)]
        words = [
            names[one.system],
            *([one.env] if several else []),
            *(f"{one_line(k)}={_short(one.config[k])}" for k in differing),
        ]
        words += [f"({change})" for change in one.changes]
        out.append(Group(" ".join(words), names[one.system], one.env, one.config, curves))
    return out


def differences(of: Sequence[Group]) -> dict[str, list[str]]:
    """Config field -> its value in every group (``-``: it has no such field), where groups of one system have several:
    those of different systems are different in nearly all."""
    fields = dict.fromkeys(k for g in of for k in g.config)
    table = {k: [_short(g.config[k]) if k in g.config else "-" for g in of] for k in fields}
    systems = [[i for i, g in enumerate(of) if g.system == system] for system in dict.fromkeys(g.system for g in of)]
    return {k: values for k, values in table.items() if any(len({values[i] for i in same}) > 1 for same in systems)}


def _short(value: object) -> str:
    return one_line(" ".join(map(str, value)) if isinstance(value, list) else str(value))
