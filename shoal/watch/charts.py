"""The pictures of a page or a report as figures of Plotly: plain dicts of its schema, which its script draws."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.types import Values
from shoal.untrusted import markup
from shoal.watch.files import RunFiles, as_number, number
from shoal.watch.series import Columns

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d00", "#7f7f7f")  # Okabe and Ito
DASHES = ("solid", "dash", "dot", "dashdot")  # of the lines beyond the palette
INK, GRID = "#7d8590", "rgba(125,133,144,0.25)"  # readable on white and on black
AXES = {"steps": "environment steps", "seconds": "seconds of training"}
POINTS = 1_000  # of a line
MOST_PHASES = 8  # of a role, in the picture of its time; the rest is "other"
MOST_MARKS = 40
BUTTONS = (("toImage",), ("zoom2d", "pan2d"), ("zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"))
CONFIG = dict(responsive=True, displaylogo=False, plotlyServerURL="", modeBarButtons=BUTTONS)  # nothing is sent away


def figure(
    data: Sequence[Values], title: str, x: str, y: str = "", log: bool = False, marks: Sequence[Values] = ()
) -> Values:
    """A figure of lines over the axis ``x``."""
    axis = dict(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID, automargin=True)
    return dict(
        data=list(data),
        layout=dict(
            title=dict(text=markup(title), font=dict(size=14)),
            xaxis=dict(axis, title=dict(text=AXES.get(x, x), standoff=6), rangemode="tozero"),
            yaxis=dict(axis, title=dict(text=markup(y)), type="log" if log else "linear"),
            paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font=dict(color=INK, size=12),
            margin=dict(l=60, r=16, t=40, b=52), height=320, hovermode="closest", showlegend=len(data) > 1,
            legend=dict(orientation="h", yref="container", y=0, yanchor="bottom"),
            shapes=[mark["shape"] for mark in marks],
            annotations=[mark["note"] for mark in marks], uirevision="kept",
            modebar=dict(bgcolor="rgba(0,0,0,0)", color=INK, activecolor=PALETTE[0]),
        ),
        config=CONFIG,
    )  # fmt: skip


def line(x: np.ndarray, y: np.ndarray, name: str, index: int = 0, **more: Any) -> Values:
    """A line of a figure through the points that are known, ``POINTS`` at most."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) > POINTS:
        kept = np.unique(np.linspace(0, len(x) - 1, POINTS).round().astype(int))
        x, y = x[kept], y[kept]
    colour = PALETTE[index % len(PALETTE)]
    style = dict(color=colour, width=2, dash=DASHES[index // len(PALETTE) % len(DASHES)])
    return dict(type="scatter", mode="lines" if len(x) > 1 else "markers", x=listed(x), y=listed(y), name=markup(name),
                line=style, **more)  # fmt: skip


def listed(values: np.ndarray) -> list[float | None]:
    """Numbers as JSON, to six digits."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.tolist()]


def smoothed(y: np.ndarray, weight: float) -> np.ndarray:
    """Exponential moving average of ``y`` [rows] with ``weight`` of the past (0: none), without a bias towards 0 at the
    beginning; nan stays nan and counts for nothing."""
    if not 0.0 < weight < 1.0:
        return y
    out, total, mass = np.full(len(y), np.nan), 0.0, 0.0
    for i, value in enumerate(y.tolist()):
        if math.isfinite(value):
            total, mass = weight * total + (1 - weight) * value, weight * mass + (1 - weight)
            out[i] = total / mass
    return out


def column(run: RunFiles, name: str) -> tuple[Columns, np.ndarray]:
    """The table that has a metric, and its column."""
    table = run.metrics.columns if name in run.metrics.columns.names else run.performance.columns
    return table, table.column(name)


def axis(run: RunFiles, table: Columns, x: str) -> np.ndarray:
    """The ``steps`` or ``seconds`` of the rows of a table of this run; rows of both files are numbered alike."""
    if x != "seconds" or "seconds" in table.names:
        return table.column(x)
    return run.performance.columns.interpolated("seconds", "row", table.column("row"))


def points(run: RunFiles, metric: str, x: str) -> tuple[np.ndarray, np.ndarray]:
    """(place on the axis, value) of a metric. Scores of evaluations are few, and have a file of their own in which none
    is left out."""
    if metric == "evaluation_return" and (rows := run.evaluations()):
        steps, y = (np.array([as_number(row.get(name)) for row in rows]) for name in ("steps", "mean"))
        return (steps if x != "seconds" else run.performance.columns.interpolated("seconds", "steps", steps)), y
    table, y = column(run, metric)
    return axis(run, table, x), y


def curve(
    runs: Mapping[str, RunFiles], metric: str, unit: str = "", x: str = "steps", smooth: float = 0.0, log: bool = False,
    bands: Sequence[Sequence[str]] = (),
) -> Values:  # fmt: skip
    """One metric of several runs. bands: names of runs that differ by their seed alone, whose mean and range are
    drawn."""
    banded = {name for names in bands for name in names}
    data, found = [], {}
    for index, (name, run) in enumerate(runs.items()):
        where, y = points(run, metric, x)
        found[name] = where, smoothed(y, smooth)
        thin: Values = dict(opacity=0.35, showlegend=False) if name in banded else {}
        if smooth and name not in banded:
            data.append(line(found[name][0], y, name, index, opacity=0.25, showlegend=False, hoverinfo="skip"))
        data.append(line(*found[name], name, index) | thin)
    for index, names in enumerate(bands):
        data += _band([found[name] for name in names], f"mean and range of {len(names)} seeds: {names[0]}", index)
    marks = marks_of(next(iter(runs.values())), x) if len(runs) == 1 else []
    return figure(data, metric, x, unit, log, marks)


def _band(lines: Sequence[tuple[np.ndarray, np.ndarray]], name: str, index: int) -> list[Values]:
    """The mean of lines and the range between the lowest and the highest, over the stretch that all cover."""
    known = [(x[ok], y[ok]) for x, y in lines if (ok := np.isfinite(x) & np.isfinite(y)).any()]
    if len(known) < 2:
        return []
    begin, end = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if end <= begin:
        return []
    grid = np.linspace(begin, end, 200)
    stacked = np.stack([np.interp(grid, x, y) for x, y in known])
    low, high = stacked.min(0), stacked.max(0)
    colour = PALETTE[index % len(PALETTE)]
    edge = dict(mode="lines", line=dict(width=0), showlegend=False, hoverinfo="skip")
    return [
        line(grid, low, name, index) | edge,
        line(grid, high, name, index) | edge | dict(fill="tonexty", fillcolor=_faint(colour)),
        line(grid, stacked.mean(0), name, index),
    ]


def _faint(colour: str) -> str:
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},0.2)"


def marks_of(run: RunFiles, x: str) -> list[Values]:
    """Lines across a figure where the run was resumed, where its settings changed and where replicas were restarted."""
    table = run.performance.columns
    steps, where = table.column("steps"), table.column(x)
    if not len(steps):
        return []
    facts = run.config()
    resumed, changes = (found if isinstance(found := facts.get(name), list) else [] for name in ("resumed", "changes"))
    words: dict[float, list[str]] = {at: [] for at in map(number, resumed) if at is not None}
    for change in changes:
        at = number(change.get("steps")) if isinstance(change, dict) else None
        if at is not None and isinstance(change.get("settings"), dict):
            settings = change["settings"].items()
            words.setdefault(at, []).extend(
                f"{k} {pair[-1]}" for k, pair in settings if isinstance(pair, list) and pair
            )
    marks = [
        _mark(float(np.interp(at, steps, where)), "resumed" + (f": {', '.join(new)}" if new else ""))
        for at, new in sorted(words.items())
    ]
    restarts = np.nan_to_num(table.column("restarts"))
    for i in np.flatnonzero(np.diff(restarts) > 0) + 1:
        marks.append(_mark(float(where[i]), "restart"))
    return marks[:MOST_MARKS]


def _mark(at: float, text: str) -> Values:
    return dict(
        shape=dict(type="line", x0=at, x1=at, y0=0, y1=1, yref="paper", line=dict(color=INK, width=1, dash="dot")),
        note=dict(x=at, y=1, yref="paper", yanchor="top", xanchor="left", text=markup(text)[:60], showarrow=False,
                  font=dict(size=10), textangle=90),
    )  # fmt: skip


def times(run: RunFiles, x: str = "steps") -> list[Values]:
    """Where the time goes: the shares of each role's phases, stacked; then steps per second and memory."""
    table = run.performance.columns
    where = table.column(x)
    roles: dict[str, dict[str, np.ndarray]] = {}
    for name in table.names:
        if name.startswith("time/") and name.count("/") >= 2:
            role, _, phase = name.removeprefix("time/").rpartition("/")
            roles.setdefault(role, {})[phase] = table.column(name)
    out = []
    for role, phases in roles.items():
        known = np.any([np.isfinite(y) for y in phases.values()], axis=0)  # a role in a long step reports nothing
        filled = {phase: np.where(known, np.nan_to_num(y), np.nan) for phase, y in phases.items()}
        ordered = sorted(filled, key=lambda phase: -float(np.nansum(filled[phase])))
        data = [
            line(where, filled[phase], phase, i, stackgroup="one") | dict(mode="lines")
            for i, phase in enumerate(ordered[:MOST_PHASES])
        ]
        drawn = figure(data, f"time of {role}", x, "share")
        drawn["layout"]["yaxis"]["range"] = [0, 1]
        drawn["layout"]["showlegend"] = True
        out.append(drawn)
    for name, unit in (("steps_per_second", "agent steps/s"), ("memory", "bytes")):
        if name in table.names:
            drawn = figure([line(where, table.column(name), name)], name, x, unit)
            drawn["layout"]["yaxis"]["rangemode"] = "tozero"
            out.append(drawn)
    return out


def as_json(value: Any) -> str:
    """JSON that may also stand inside a script of a page."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", "")
