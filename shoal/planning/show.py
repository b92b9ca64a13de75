"""A plan on a terminal: the costs with their spreads, progress, and the table."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table

from shoal.planning.costs import Costs
from shoal.planning.scan import Row
from shoal.program.draw import human_bytes
from shoal.terminal import cell, print_table
from shoal.words import counted


def note(text: str) -> None:
    """Say on stderr what is going on."""
    print(text, file=sys.stderr)


def progress(row: Row) -> None:
    """Say what a point makes as soon as that is known."""
    if row.figures is None:
        note(f"  {counted(row.point.actors, 'actor')}: {row.why}")
    else:
        note(f"  {counted(row.point.actors, 'actor')}: {row.steps:,.0f} steps/s")


def costs(known: Costs) -> None:
    """Print what each role's work takes: mean seconds of a core for a step, and how far that spreads."""
    table = _table("role", "size", "phase", "mean", "spread")
    for role, found in known.roles.items():
        for bytes_, behaviours in found:
            for phase, (mean, spread) in phases(behaviours[0].cycle).items():
                table.add_row(cell(role), human_bytes(bytes_), cell(phase), f"{1e3 * mean:,.3f} ms", f"±{spread:.0%}")
    print_table(table)
    print(f"with all {known.cores} cores at work, each makes {known.busy:.0%} of what one makes alone")


def phases(cycle: Sequence[object]) -> dict[str, tuple[float, float]]:
    """Phase -> mean seconds in a cycle, and the spread of the work that it is most in; the largest first."""
    from shoal.simulation import Step

    total: dict[str, float] = {}
    spread: dict[str, tuple[float, float]] = {}
    for step in cycle:
        assert isinstance(step, Step)
        for op in step.ops:
            for name, share in op.phases:
                seconds = op.busy.mean * share
                total[name] = total.get(name, 0.0) + seconds + op.idle.mean * share
                spread[name] = max(spread.get(name, (0.0, 0.0)), (seconds, op.busy.spread))
    whole = sum(total.values())
    order = sorted(total, key=lambda n: -total[n])
    return {n: (total[n], spread[n][1]) for n in order if total[n] >= 0.01 * whole}


def table(rows: Sequence[Row]) -> None:
    """Print a line for each point."""
    several = any(row.point.nodes > 1 for row in rows)
    shown = _table(
        "actors", "learners", "envs", *(["nodes"] if several else []), "steps/s", "updates/s", "gain", "lag p50/p95",
        "memory", *(["link"] if several else []), "bottleneck",
    )  # fmt: skip
    for row in rows:
        point, figures = row.point, row.figures
        head = [str(point.actors), str(point.learners or 1), str(point.envs or ""), *([str(point.nodes)] * several)]
        if figures is None:
            shown.add_row(*head, "-", "", "", "", "", *([""] * several), cell(row.why))
            continue
        lag = figures.policy_lag()
        shown.add_row(
            *head, f"{row.steps:,.0f}", f"{figures.updates:,.1f}", f"{row.gain:.0%}",
            "" if lag is None else f"{lag[0]:g}/{lag[1]:g}", human_bytes(max(row.memory)),
            *([f"{human_bytes(max(*figures.sent, *figures.received))}/s"] * several), cell(figures.bottleneck()),
        )  # fmt: skip
    print_table(shown)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    words = ("role", "phase", "bottleneck")
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right")
    return table
