"""The site builds strictly, loads nothing from elsewhere, and draws every diagram and formula."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import shoal
from shoal import building

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REPOSITORY = re.compile(r"https://github\.com/shoal-rl/shoal/(?:tree|blob)/main/(.*)")
PROSE_OF_CODE = re.compile(r"<(pre|code|script|style|svg|math)\b.*?</\1>", re.DOTALL)
LATEX = re.compile(r"\$\$|\\[(\[]|\\[a-zA-Z]{2,}|class=\"arithmatex\"")


class Links(HTMLParser):
    """Targets, identifiers and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.identifiers: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.identifiers |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("img", "script", "source", "iframe") and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("material", "mkdocstrings", "mermaidx", "latex2mathml"):
        pytest.importorskip(name, reason='the site needs: pip install "shoal[docs]"')
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}


def local_targets(site: Path, page: Path, target: str) -> Iterator[tuple[Path, str]]:
    """The file and the fragment that a link within the site leads to."""
    if re.match(r"[a-z]+:", target):
        return
    place, fragment = urldefrag(unquote(target))
    path = (page.parent / place).resolve() if place else page
    yield (path / "index.html" if path.is_dir() else path), fragment


@pytest.mark.timeout(900)  # the first build draws the diagrams
def test_no_link_is_dead(site: Path, pages: dict[Path, str]) -> None:
    parsed = {page: Links(text) for page, text in pages.items()}
    dead = []
    for page, found in parsed.items():
        for target in found.links + found.loaded:
            if (inside := REPOSITORY.fullmatch(urldefrag(target)[0])) and not (ROOT / unquote(inside[1])).exists():
                dead.append((page.relative_to(site), target))
            for path, fragment in local_targets(site, page, target):
                known = parsed[path].identifiers if path in parsed else set()
                if not path.exists() or (fragment and path.suffix == ".html" and fragment not in known):
                    dead.append((page.relative_to(site), target))
    assert not dead, dead


def test_every_page_is_reached_from_the_first(site: Path, pages: dict[Path, str]) -> None:
    seen, waiting = set(), [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in seen or page not in pages:
            continue
        seen.add(page)
        waiting += [path for link in Links(pages[page]).links for path, _ in local_targets(site, page, link)]
    assert seen == set(pages), set(pages) - seen


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, str]) -> None:
    away = {(page.name, src) for page, text in pages.items() for src in Links(text).loaded if "//" in src}
    assert not away


def test_every_diagram_is_drawn(pages: dict[Path, str]) -> None:
    asked = sum(path.read_text("utf-8").count("\n```mermaid\n") for path in DOCS.rglob("*.md"))
    figure = re.compile(r'<figure class="diagram"><svg.*?</svg></figure>', re.DOTALL)
    drawn = sum(len(figure.findall(text)) for text in pages.values())
    assert drawn == asked >= 2
    assert not [page for page, text in pages.items() if "```mermaid" in text or 'class="mermaid"' in text]


def test_every_fenced_block_is_code(pages: dict[Path, str]) -> None:
    assert not [page.parent.name for page, text in pages.items() if "```" in PROSE_OF_CODE.sub("", text)]


def test_every_formula_is_drawn(pages: dict[Path, str]) -> None:
    raw = [
        (page.parent.name, found[0])
        for page, text in pages.items()
        if (found := LATEX.search(PROSE_OF_CODE.sub("", text)))
    ]
    assert not raw, raw
    unknown = [
        (page.parent.name, found[0])
        for page, text in pages.items()
        for found in re.finditer(r"<mi>(\\[a-zA-Z]+)</mi>", html.unescape(text))
    ]
    assert not unknown, "commands that latex2mathml does not know"
    assert sum(text.count("<math xmlns") for text in pages.values()) >= 20


def test_the_reference_has_every_public_name(pages: dict[Path, str]) -> None:
    for module, page in ((shoal, "shoal"), (building, "building")):
        text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
        listed = re.findall(rf"^::: {module.__name__}\.(\w+)$", text, re.MULTILINE)
        public = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        assert sorted(listed) == sorted(public)
        (built,) = [text for path, text in pages.items() if path.parent.parts[-2:] == ("reference", page)]
        headings = set(re.findall(r'id="([\w.]+)" class="doc doc-heading"', built))
        assert len(headings) >= len(listed)
