"""Runs side by side: final scores with intervals, speed, time to a threshold, probability of improvement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.analysis.curves import Group, differences
from shoal.analysis.stats import bootstrap, improvement_interval, iqm, probability_of_improvement

COLUMNS = (
    "group", "runs", "final return", "steps", "seconds", "steps/s", "steps to {}", "seconds to {}", "better than first",
)  # fmt: skip


def table(groups: Sequence[Group], threshold: float | None = None) -> tuple[list[str], list[list[str]]]:
    """(column heads, one row per group) of groups that share an environment.

    final return: interquartile mean of the runs' last returns, with the 95 % bootstrap interval. steps, seconds,
    steps/s: medians over runs. To the threshold (None: the lowest final return of all groups): medians over the runs
    that reached it, with their number if not all did. better than first: the probability that a run of this group ends
    higher than one of the first group, with its interval.
    """
    finals = [float(iqm(g.final())) for g in groups]
    goal = min(finals) if threshold is None else threshold
    heads = [c.format(f"{goal:.4g}") for c in COLUMNS]
    return heads, [_row(group, final, goal, groups[0]) for group, final in zip(groups, finals, strict=True)]


def _row(group: Group, final: float, goal: float, first: Group) -> list[str]:
    curves = group.curves
    reached = [r for c in curves if (r := c.reached(goal)) is not None]
    some = f" ({len(reached)} of {len(curves)})" if len(reached) < len(curves) else ""
    speeds = [c.steps[-1] / c.seconds[-1] for c in curves if c.seconds[-1] > 0]
    return [
        group.label,
        str(len(curves)),
        f"{final:.4g}" + _interval(*bootstrap([group.final()]), len(curves)),
        f"{np.median([c.steps[-1] for c in curves]):,.0f}",
        f"{np.median([c.seconds[-1] for c in curves]):,.1f}",
        f"{np.median(speeds):,.0f}" if speeds else "-",
        f"{np.median([s for s, _ in reached]):,.0f}{some}" if reached else "never",
        f"{np.median([s for _, s in reached]):,.1f}{some}" if reached else "never",
        "" if group is first else _improvement(group, first),
    ]


def as_data(groups: Sequence[Group], threshold: float | None = None) -> list[dict[str, Any]]:
    """Return what ``table`` tells, as numbers: a dict for each group, with the returns of its runs."""
    goal = min(float(iqm(g.final())) for g in groups) if threshold is None else threshold
    out = []
    for group in groups:
        low, high = bootstrap([group.final()])
        reached = [curve.reached(goal) for curve in group.curves]
        out.append({
            "group": group.label, "system": group.system, "env": group.env,
            "runs": [str(curve.path) for curve in group.curves], "final": group.final().tolist(),
            "iqm": float(iqm(group.final())), "interval": [float(low), float(high)],
            "steps": [float(curve.steps[-1]) for curve in group.curves],
            "seconds": [float(curve.seconds[-1]) for curve in group.curves], "threshold": goal,
            "reached": [None if r is None else {"steps": r[0], "seconds": r[1]} for r in reached],
        })  # fmt: skip
    return out


def _improvement(group: Group, first: Group) -> str:
    x, y = [group.final()], [first.final()]
    runs = min(len(group.curves), len(first.curves))
    return f"{probability_of_improvement(x, y):.0%}" + _interval(*improvement_interval(x, y), runs, ".0%")


def _interval(low: float | np.ndarray, high: float | np.ndarray, runs: int, form: str = ".4g") -> str:
    """An interval says nothing about a single run."""
    return f" [{float(low):{form}}, {float(high):{form}}]" if runs > 1 else ""


def config_table(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """(heads, rows): the config fields in which groups differ."""
    return ["field", *(g.label for g in groups)], [[k, *values] for k, values in differences(groups).items()]
