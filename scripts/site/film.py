"""Film the live panel of a real run as one moving SVG: docs/pictures/panel.svg.

    python scripts/site/film.py

Trains recurrent PPO on CartPole with the panel that a terminal shows, keeps the panel of some of its reports, and shows
them in turn. A viewer that does not move pictures shows the last one.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.segment import Segment
from rich.terminal_theme import MONOKAI

import shoal
from shoal.run.progress import Progress

OUT = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "panel.svg"
COLUMNS, LINES = 100, 30  # of the terminal
LINE, CHARACTER, SIZE = 18, 8.0, 13.3  # pixels of its letters
FRAMES, SECONDS = 14, 0.8  # pictures of the film, and how long each is shown
RUN = "runs/cartpole"
COMMAND = "shoal train recurrent-ppo --env CartPole-v1"
GROUND, INK, FAINT = "#0d1117", "#e6edf3", "#8b949e"


class Filmed(Progress):
    """The panel of a run, each of whose pictures is kept."""

    pictures: list[list[list[Segment]]] = []  # noqa: RUF012 (of the one run that is filmed)

    def update(self, snapshot: Any) -> None:
        super().update(snapshot)
        self.path = Path(RUN)  # without the temporary folder that it lies in
        console = Console(
            width=COLUMNS, height=LINES, file=io.StringIO(), force_terminal=True, color_system="truecolor"
        )
        with patch.object(self, "live", SimpleNamespace(console=console)):  # the panel fits the terminal that it is in
            self.pictures.append(console.render_lines(self._panel(snapshot), pad=False))


def film(pictures: list[list[list[Segment]]]) -> str:
    height = LINE * (max(len(lines) for lines in pictures) + 2) + 16
    width = int(COLUMNS * CHARACTER) + 24
    whole = len(pictures) * SECONDS
    share = 100 / len(pictures)
    style = (
        f"text{{white-space:pre;fill:{INK}}}.f{{visibility:hidden;animation:show {whole:g}s infinite}}"
        f"@keyframes show{{0%{{visibility:visible}}{share:.3f}%,100%{{visibility:hidden}}}}"
        ".last{visibility:visible}@media (prefers-reduced-motion:reduce){.f{animation:none}}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="{SIZE}">',
        f"<title>The live panel of {COMMAND}</title><style>{style}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>',
        f'<text x="12" y="{LINE + 6}"><tspan fill="{FAINT}">$ </tspan>{COMMAND}</text>',
    ]
    for i, lines in enumerate(pictures):
        last = " last" if i == len(pictures) - 1 else ""
        drawn = "\n".join(text(line, LINE * (number + 2) + 6) for number, line in enumerate(lines))
        parts.append(f'<g class="f{last}" style="animation-delay:{i * SECONDS - whole:.1f}s">\n{drawn}\n</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def text(line: list[Segment], y: int) -> str:
    spans = []
    for part in line:
        style = part.style
        colour = style.color.get_truecolor(MONOKAI).hex if style and style.color and not style.color.is_default else ""
        look = f' fill="{FAINT}"' if style and style.dim else f' fill="{colour}"' if colour else ""
        look += ' font-weight="bold"' if style and style.bold else ""
        written = escape(part.text)
        spans.append(f"<tspan{look}>{written}</tspan>" if look else written)
    wide = sum(part.cell_length for part in line) * CHARACTER  # whatever the viewer's letters measure
    return f'<text x="12" y="{y}" textLength="{wide:g}" lengthAdjust="spacing">{"".join(spans)}</text>'


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, patch("shoal.run.training.Progress", Filmed):
        os.chdir(folder)
        shoal.train("recurrent-ppo", env="CartPole-v1", run_dir=RUN, quiet=False, seed=0)
        os.chdir("/")
    every = max(1, len(Filmed.pictures) // FRAMES)
    OUT.write_text(film(Filmed.pictures[::-1][::every][:FRAMES][::-1]), encoding="utf-8")
    print(f"{OUT}: {OUT.stat().st_size:,} bytes, {FRAMES} of {len(Filmed.pictures)} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
