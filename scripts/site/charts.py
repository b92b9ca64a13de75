"""Learning curves as SVG: a panel per task, a thin line per seed, a dashed line at the mark."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
COLOURS = ("#0969da", "#bc6c00", "#1a7f37", "#8250df", "#cf222e", "#57606a")
WIDTH, HEIGHT = 270, 150  # a panel's plot, in pixels
LEFT, TOP, RIGHT, BOTTOM = 50, 30, 16, 40  # what a panel has around its plot
LEGEND = 14  # between two lines of a legend
POINTS = 100  # a line has at most so many: the raw files have the rest


@dataclass
class Panel:
    """``lines``: (legend or "", points) of each curve, where curves of one legend have one colour. ``legend``: names in
    the order of their colours, where several panels share them; else each panel begins with the first colour."""

    title: str
    lines: list[tuple[str, list[tuple[float, float]]]]
    mark: float | None = None
    legend: list[str] = field(default_factory=list)


def chart(panels: list[Panel], caption: str, columns: int = 3) -> str:
    """Return a self-contained picture of all panels."""
    columns = min(columns, len(panels))
    lines = max((y + 1 for panel in panels for *_, y in _legend(panel)), default=1)
    across, down = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM + LEGEND * (lines - 1)
    width, height = columns * across, math.ceil(len(panels) / columns) * down
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="{FONT}" font-size="11"><title>{escape(caption)}</title>'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
    )
    drawn = [
        f'<g transform="translate({i % columns * across + LEFT} {i // columns * down + TOP})">{_panel(panel)}</g>'
        for i, panel in enumerate(panels)
    ]
    return "\n".join([head, *drawn, "</svg>"]) + "\n"


def _panel(panel: Panel) -> str:
    points = [point for _, line in panel.lines for point in line]
    ys = [y for _, y in points] + ([panel.mark] if panel.mark is not None else [])
    right, low, high = max(x for x, _ in points), min(ys), max(ys)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        return round(WIDTH * x / right, 1), round(HEIGHT * (high - y) / (high - low or 1), 1)

    parts = [f'<text y="-10" font-size="13" font-weight="600" fill="#1f2328">{escape(panel.title)}</text>']
    for tick in ticks:
        y = at(0, tick)[1]
        parts.append(f'<path d="M0 {y}H{WIDTH}" stroke="#d8dee4"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end" fill="#57606a">{short(tick)}</text>')
    for x in (t for t in nice_ticks(0, right) if t <= right):
        parts.append(f'<text x="{at(x, 0)[0]}" y="{HEIGHT + 16}" text-anchor="middle" fill="#57606a">{short(x)}</text>')
    if panel.mark is not None:
        parts.append(f'<path d="M0 {at(0, panel.mark)[1]}H{WIDTH}" stroke="#cf222e" stroke-dasharray="4 3"/>')
    legends = _order(panel)
    for name, line in panel.lines:
        step = max(1, math.ceil(len(line) / POINTS))
        kept = [*line[:-1:step], line[-1]]
        path = " ".join("{:g},{:g}".format(*at(*point)) for point in kept)
        colour, dashes = style(legends.index(name))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.3"{dashes}/>')
    for name, x, y in _legend(panel):
        height = HEIGHT + 32 + LEGEND * y
        colour, dashes = style(legends.index(name))
        told = f"{escape(name)}{' (dashed)' if dashes else ''}"
        parts.append(f'<text x="{x:.0f}" y="{height}" fill="{colour}">{told}</text>')
    if not any(legends):
        parts.append(f'<text y="{HEIGHT + 32}" fill="#57606a">environment steps</text>')
    return "".join(parts)


def style(i: int) -> tuple[str, str]:
    """Return the colour of the line of that number, and what makes it dashed where the colours begin again."""
    again = i // len(COLOURS)
    return COLOURS[i % len(COLOURS)], f' stroke-dasharray="{6 // again} 2"' if again else ""


def _order(panel: Panel) -> list[str]:
    """The names of a panel's lines in the order of their colours."""
    return list(dict.fromkeys([*panel.legend, *(name for name, _ in panel.lines)]))


def _legend(panel: Panel) -> list[tuple[str, float, int]]:
    """The names of a panel's lines, each with its place: pixels from the left, and the line of text."""
    out, x, y = list[tuple[str, float, int]](), 0.0, 0
    names = [name for name in dict.fromkeys(name for name, _ in panel.lines) if name]
    room = WIDTH if len(names) > len(COLOURS) else LEFT + WIDTH + RIGHT  # a few may reach the margin
    for name in names:
        size = 6.5 * len(f"{name} (dashed)" if style(_order(panel).index(name))[1] else name) + 12
        if x and x + size > room:
            x, y = 0.0, y + 1
        out.append((name, x, y))
        x += size
    return out


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return about ``count`` round numbers that cover [low, high]."""
    rough = (high - low or abs(high) or 1) / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    return [round(step * i, 10) for i in range(first, math.ceil(high / step - 1e-9) + 1)]


def short(number: float) -> str:
    """12000 as 12K, 1500000 as 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "K")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"
