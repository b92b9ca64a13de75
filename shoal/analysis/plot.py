"""Pictures of learning curves: interquartile mean over seeds, its 95 % bootstrap interval, every run thin behind."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.analysis.curves import Group
from shoal.api import UsageError
from shoal.extras import pip_install
from shoal.paths import require_folder
from shoal.records.atomic_write import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"steps": "environment steps", "seconds": "wall time (s)"}
SUFFIXES = (".png", ".svg", ".pdf")
WIDTH = 60  # characters in a line of a legend
HEIGHT = 0.18  # inches of such a line
INSIDE = 6  # lines in a panel that leave its curves visible; a longer legend stands below all panels


def draw(groups: Sequence[Group], path: Path | None = None, x: str = "both") -> Figure:
    """Return one picture, also written to ``path`` (its suffix says the format): a row per environment, a column for
    ``x``, one of ``AXES``, or for ``both``.

    Raises UsageError for another suffix, or without the extra ``plot``.
    """
    if path is not None:
        check_path(path)
    require_matplotlib()
    with plain_text():
        figure = draw_figure(groups, tuple(AXES) if x == "both" else (x,))
        if path is not None:
            save(figure, path, 150)
    return figure


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Write a picture, whose suffix says the format, or raise ShoalError and leave what was there before."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.removeprefix("."), dpi=dpi)
    write_output(path, drawn.getvalue())


def check_path(path: Path) -> None:
    """UsageError for a file that no picture can be written to."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"a picture's name ends in {', '.join(SUFFIXES)}; found '{path.name}'")
    require_folder(path)


def require_matplotlib() -> None:
    """UsageError where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"plots need matplotlib: {pip_install('plot')}")


@contextlib.contextmanager
def plain_text() -> Iterator[None]:
    """Labels are drawn as they are: a dollar sign in them begins no formula, and no TeX is started for them."""
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
        yield


def draw_figure(groups: Sequence[Group], axes: Sequence[str] = ("steps", "seconds")) -> Figure:
    """The matplotlib figure."""
    require_matplotlib()
    from matplotlib import figure  # without pyplot: no window, no global state

    envs = list(dict.fromkeys(group.env for group in groups))
    drawn = figure.Figure(figsize=(5.5 * len(axes), 4.0 * len(envs)), layout="constrained")
    panels = drawn.subplots(len(envs), len(axes), squeeze=False)
    colours = {group.label: f"C{i}" for i, group in enumerate(groups)}
    for row, env in zip(panels, envs, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            for group in groups:
                if group.env == env:
                    _draw_group(panel, group, axis, colours[group.label])
            panel.set_xlabel(AXES[axis])
            panel.set_ylabel("return (mean of 100 episodes)")
            panel.set_title(env)
            panel.grid(alpha=0.3)
    entries = [row[0].get_legend_handles_labels() for row in panels]
    lines = [sum(text.count("\n") + 1 for text in texts) for _, texts in entries]
    if max(lines) <= INSIDE:
        for panel in panels.flat:
            panel.legend(loc="best", fontsize="small")
    else:
        handles, texts = ([one for row in entries for one in row[i]] for i in range(2))
        drawn.set_figheight(drawn.get_figheight() + HEIGHT * sum(lines))
        drawn.legend(handles, texts, loc="outside lower left", fontsize="small")
    return drawn


def _draw_group(panel: Axes, group: Group, axis: str, colour: str) -> None:
    n = len(group.curves)
    label = textwrap.fill(f"{group.label} ({n} run{'s' if n > 1 else ''})", WIDTH)
    if n == 1:
        curve = group.curves[0]
        panel.plot(curve.x(axis), curve.returns, color=colour, label=label)
        return
    for curve in group.curves:
        panel.plot(curve.x(axis), curve.returns, color=colour, alpha=0.25, linewidth=0.7)
    x, middle, low, high = group.band(axis)
    panel.plot(x, middle, color=colour, label=label)
    panel.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
