"""The layout of a run's panel in a terminal: the most important figures come first, in any size of window."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.untrusted import one_line

FIRST = ("time", "steps", "return", "bottleneck", "updates", "first update", "alert", "evaluation", "policy lag",
         "samples per insert", "restarts", "not improved", "fill", "memory", "episodes")  # fmt: skip
WRAPPED = ("alert", "not improved")  # sentences of at most two lines
KEY, LEAST_KEY = 19, 12  # columns of a figure's name, and of a narrow window's
CELL = 38  # columns of one metric in a row of several
TALL = 34  # rows of a window that has room for the heading
BARS = "▁▂▃▄▅▆▇█"
MOST_POINTS = 64  # points of a sparkline

Figure = tuple[str, str]


class Spark:
    """A curve in one line of text from the beginning of the run. Beyond ``MOST_POINTS`` points, every second one is
    dropped."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._stride, self._seen = 1, 0

    def add(self, value: float) -> None:
        """Add a value. Values that are not finite are ignored."""
        if not math.isfinite(value):
            return
        if self._seen % self._stride == 0:
            self._points.append(value)
        self._seen += 1
        if len(self._points) > MOST_POINTS:
            self._points, self._stride = self._points[::2], 2 * self._stride

    def text(self, most: int) -> str:
        """Return the curve in at most ``most`` characters, or "" before there are two points."""
        points = self._points
        if len(points) < 2 or most < 2:
            return ""
        if len(points) > most:
            points = [points[i * (len(points) - 1) // (most - 1)] for i in range(most)]
        low, high = min(points), max(points)
        if low == high:
            return BARS[0] * len(points)
        return "".join(BARS[min(7, int(8 * (value - low) / (high - low)))] for value in points)


def lines(
    heading: Sequence[Figure], figures: Sequence[Figure], times: Mapping[str, str], slow: str, width: int, height: int
) -> list[tuple[str, str]]:
    """Return (style, text) of at most ``height`` lines of at most ``width`` characters: first the ``figures`` named in
    ``FIRST``, then the other ones side by side, then how each role spends its time. slow: the bottleneck."""
    vital = sorted((f for f in figures if f[0] in FIRST), key=lambda f: FIRST.index(f[0]))
    rest = [f for f in figures if f[0] not in FIRST]
    out: list[tuple[str, str]] = []
    if height >= TALL:
        out += [("dim", _row(*each, width)) for each in heading] + [("", "")]
    for key, value in vital:
        style = {"return": "bold", "bottleneck": "yellow", "alert": "bold red"}.get(key, "")
        if key in WRAPPED:
            parts = textwrap.wrap(one_line(value), max(10, width - _key(width)), max_lines=2, placeholder=" ...")
            out += [(style, _row(key if i == 0 else "", part, width)) for i, part in enumerate(parts)]
        else:
            out.append((style, _row(key, value, width)))
    roles = [("yellow" if role == slow else "dim", _row(role, told, width)) for role, told in times.items()]
    room = max(0, height - len(out) - min(len(roles), 3))
    columns = max(1, width // CELL)
    cells = [_cut(f"{_cut(key, 19):<20}{value}", CELL - 1) for key, value in rest]
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    if len(rows) > room:
        shown = max(0, room - 1)
        rows = [*rows[:shown], [f"and {len(cells) - shown * columns} more figures"]] if room else []
    out += [("", _cut("".join(f"{cell:<{CELL}}" for cell in row).rstrip(), width)) for row in rows]
    return (out + roles)[: max(1, height)]


def render(title: str, shown: Sequence[tuple[str, str]], bar: Any) -> Any:
    """Return the panel as a rich renderable in which lines are not wrapped."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    text = [Text(line, style=style, no_wrap=True, overflow="ellipsis") for style, line in shown]
    return Panel(Group(bar, *text), title=Text(one_line(title)), title_align="left")


def _row(key: str, value: str, width: int) -> str:
    most = _key(width)
    return _cut(f"{_cut(key, most - 1):<{most}}{one_line(value)}", width)


def room(width: int) -> int:
    """Return the characters that a value has beside its name in a line of ``width``."""
    return width - _key(width)


def _key(width: int) -> int:
    return min(KEY, max(LEAST_KEY, width // 4))


def _cut(text: str, most: int) -> str:
    text = one_line(text)
    if len(text) <= most:
        return text
    kept = text[: max(0, most - 1)]
    whole = kept.rstrip() if text[len(kept)] == " " else kept.rpartition(" ")[0].rstrip()  # half a number misleads
    return (whole if len(whole) > most // 3 else kept) + "…"
