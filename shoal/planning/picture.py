"""The picture of a plan: steps per second against actors, with a band, and the bottleneck's name along the curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.planning.scan import Row
from shoal.untrusted import markup

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 80, 30, 50, 60
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
INK, LINE, BAND, GRID = "#24292f", "#0969da", "#ddf4ff", "#d0d7de"


def svg(rows: Sequence[Row], title: str) -> str:
    """A self-contained picture of the rows that have figures; both axes are logarithmic."""
    found = sorted((r for r in rows if r.figures is not None and r.steps > 0), key=lambda r: r.point.actors)
    left, right = math.log(found[0].point.actors), math.log(found[-1].point.actors)
    low, high = math.log(0.8 * min(r.low or r.steps for r in found)), math.log(1.25 * max(r.high for r in found))

    def x(actors: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((math.log(actors) - left) / (right - left) if right > left else 0.5)

    def y(steps: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log(max(steps, 1e-9)) - low) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="{FONT}" font-size="12"><title>{markup(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="15" fill="{INK}">{markup(title)}: steps per second against actors</text>',
    ]
    for row in found:
        at = x(row.point.actors)
        out.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{GRID}"/>')
        out.append(_text(at, HEIGHT - BOTTOM + 18, f"{row.point.actors:,}"))
    for steps in _ticks(math.exp(low), math.exp(high)):
        out.append(f'<line x1="{LEFT}" y1="{y(steps):.1f}" x2="{WIDTH - RIGHT}" y2="{y(steps):.1f}" stroke="{GRID}"/>')
        out.append(_text(LEFT - 8, y(steps) + 4, f"{steps:,.0f}", "end"))
    band = [(x(r.point.actors), y(r.high)) for r in found] + [(x(r.point.actors), y(r.low)) for r in reversed(found)]
    out.append(f'<polygon points="{_path(band)}" fill="{BAND}"/>')
    curve = [(x(r.point.actors), y(r.steps)) for r in found]
    out.append(f'<polyline points="{_path(curve)}" fill="none" stroke="{LINE}" stroke-width="2"/>')
    before = ""
    for row, (px, py) in zip(found, curve, strict=True):
        assert row.figures is not None
        out.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{LINE}"/>')
        if (limit := row.figures.limit()) != before:
            out.append(_text(px, py - 12, f"{limit}", "end" if px > WIDTH - 120 else "middle"))
        before = limit
    out.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "actors; at each change, what holds the program back"))
    return "\n".join([*out, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{markup(text)}</text>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two numbers."""
    begin, end = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [m * 10.0**e for e in range(begin, end + 1) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
