"""Hooks of MkDocs: draw Mermaid as SVG and LaTeX as MathML while the site is built, so that pages need no script."""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path
from typing import Any

import mermaidx
from latex2mathml.converter import convert
from pymdownx.superfences import SuperFencesException

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "diagrams"  # drawings by the hash of their source: one takes up to a minute
PLAIN_LABELS = {"htmlLabels": False, "flowchart": {"htmlLabels": False}}  # text that any SVG viewer shows
WIDTH = re.compile(r"max-width: ([\d.]+)px;")
LEAST_SCALE = 0.65  # of a drawing's own size
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """Register the drawing of Mermaid blocks, which YAML cannot name."""
    fences = [{"name": "mermaid", "class": "diagram", "format": diagram}]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": fences}
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave only the language behind a fence, as the theme knows no other word there (the tests' ``run steps/50``)."""
    return re.sub(r"^(```\w+) [a-z][\w/ ]*$", r"\1", markdown, flags=re.MULTILINE)


def diagram(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """Return a Mermaid block as a figure that holds its SVG."""
    cached = CACHE / (hashlib.sha256(source.encode()).hexdigest()[:16] + ".svg")
    if not cached.exists():
        try:
            drawn = mermaidx.render(source, theme="neutral", config=PLAIN_LABELS).svg()
        except Exception as error:
            raise SuperFencesException(f"this diagram cannot be drawn: {error}\n{source}") from error
        CACHE.mkdir(parents=True, exist_ok=True)
        cached.write_text(drawn, encoding="utf-8")
    name = "diagram-" + cached.stem  # identifiers and styles of two diagrams on one page must differ
    drawn = WIDTH.sub(_readable, cached.read_text("utf-8").replace("my-svg", name), count=1)
    return f'<figure class="{css_class}">{drawn}</figure>'


def _readable(found: re.Match[str]) -> str:
    """Return the style of a drawing with a least width, below which its letters could not be read: it then scrolls."""
    return f"{found[0]} min-width: {float(found[1]) * LEAST_SCALE:.0f}px;"


def on_page_content(content: str, **_: Any) -> str:
    """Return a page's HTML with its LaTeX as MathML, which browsers draw themselves."""
    return FORMULA.sub(formula, content)


def formula(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return convert(html.unescape(found[3]).strip(), display=display)
