"""``shoal report``: the pictures, settings and events of runs in one HTML file that needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from shoal.api import UsageError
from shoal.paths import shown
from shoal.types import Values
from shoal.watch import charts, page
from shoal.watch.catalogue import Catalogue
from shoal.watch.files import RunFiles
from shoal.watch.page import cells
from shoal.watch.populations import is_population, state as population_state
from shoal.watch.server import own_file, plotly_script, require_packages
from shoal.words import counted

MOST_RUNS = 20  # of a report
MOST_CURVES = 30  # metrics of a run that are drawn
DRAW = (
    "for (const [i, f] of JSON.parse(document.getElementById('figures').textContent).entries()) "
    "{ if (matchMedia('(hover: none)').matches) { f.layout.dragmode = false; f.config.displayModeBar = false; } "
    "Plotly.newPlot('figure-' + i, f); }"
)


def html(paths: Sequence[Path]) -> str:
    """Return the report of the runs and populations in ``paths``, or of those below them. UsageError where there are
    none, or too many, or without the extra ``watch``."""
    require_packages()
    found = Catalogue(list(paths)).find()
    chosen = {name: RunFiles(path) for name, path in found.items()}
    runs = {name: run for name, run in chosen.items() if not is_population(run.folder)}
    populations = {name: run for name, run in chosen.items() if name not in runs}
    if not chosen:
        raise UsageError(f"no run in {', '.join(repr(shown(path)) for path in paths)}")
    if populations:  # whose members are told of together
        runs = {}
    if len(runs) > MOST_RUNS:
        raise UsageError(f"a report holds {MOST_RUNS} runs at most, found {len(runs)}")
    figures: list[Values] = []
    for run in runs.values():
        run.refresh()
    parts = [_population(name, run, figures) for name, run in populations.items()]
    if len(runs) > 1:
        parts.append(_together(runs, figures))
    parts += [_run(name, run, figures, alone=len(runs) == 1) for name, run in runs.items()]
    return _document(", ".join(chosen), parts, figures)


def card(path: Path) -> str:
    """Return the figures of a run and its program as a piece of HTML, which needs no extra and runs no script."""
    run = RunFiles(path)
    state = page.state(path.name, run)
    rows = [[name, f"{value} ({age})" if age else value] for name, value, age in state["figures"]]
    picture = state["svg"] or f"<pre>{escape(state['text'])}</pre>"
    return f"<b>{escape(state['title'])}</b><table>{cells(rows)}</table>{_problems(state['problems'])}{picture}"


def _document(title: str, parts: Sequence[str], figures: Sequence[Values]) -> str:
    """One file: no script but these two can run in it, whatever its text says, and it can load nothing."""
    scripts = plotly_script().decode("utf-8").replace("</script", "<\\/script"), DRAW
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"
    )
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{escape(page.told(title))}</title><style>{own_file("app.css").decode("utf-8")}</style></head><body><main>
{body}
</main><script type="application/json" id="figures">{charts.as_json(list(figures))}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script></body></html>
"""


def _chart(figure: Values, figures: list[Values]) -> str:
    figures.append(figure)
    return f'<div class="chart" id="figure-{len(figures) - 1}"></div>'


def _charts(drawn: Sequence[Values], figures: list[Values]) -> str:
    return '<div class="charts">' + "\n".join(_chart(figure, figures) for figure in drawn) + "</div>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = cells([[page.told(cell) for cell in row] for row in rows])
    return f'<div class="scroll"><table><thead>{cells([heads], "th")}</thead><tbody>{body}</tbody></table></div>'


def _problems(problems: Values) -> str:
    return "".join(f'<p class="bad">{escape(page.told(f"{name}: {text}"))}</p>' for name, text in problems.items())


def _together(runs: dict[str, RunFiles], figures: list[Values]) -> str:
    """Several runs in the same figures, and what differs in their settings."""
    bands = page.seeds(runs)
    known = {metric["name"] for run in runs.values() for metric in page.metrics(run)}
    metrics = [name for name in page.FIRST if name in known]
    drawn = [charts.curve(runs, metric, page.meaning(metric)[0], bands=bands) for metric in metrics]
    differing = page.differing(runs)
    table = f"<h2>Settings that differ</h2>{_table(['setting', *runs], differing)}" if differing else ""
    return f"<h1>{counted(len(runs), 'run')}</h1>{_charts(drawn, figures)}{table}"


def _run(name: str, run: RunFiles, figures: list[Values], alone: bool) -> str:
    state = page.state(name, run)
    numbers = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}{escape(f' ({age})' if age else '')}</dd></div>"
        for label, value, age in state["figures"]
    )
    first = state["first"]
    if alone:
        others = [metric["name"] for metric in state["metrics"] if not metric["name"].startswith(("time/", "fill/"))]
        skipped = ("steps", "seconds", "episodes", "updates")
        first = [*first, *(one for one in others if one not in first and one not in skipped)][:MOST_CURVES]
    drawn = [charts.curve({name: run}, metric, page.meaning(metric)[0]) for metric in first]
    picture = state["svg"] or f"<pre>{escape(state['text'])}</pre>"
    evaluated = state["evaluations"]
    heads = list(dict.fromkeys(key for row in evaluated for key in row))
    scores = _table(heads, [[row.get(h, "") for h in heads] for row in evaluated]) if heads else ""
    error = f'<p class="bad">{escape(page.told(state["error"]))}</p>' if state["error"] else ""
    return "\n".join([
        f"<h1>{escape(state['title'])}</h1><p>{escape(page.told(name))}</p>", error, _problems(state["problems"]),
        f'<dl class="figures">{numbers}</dl>', f'<div class="program">{picture}</div>',
        "<h2>Curves</h2>", _charts(drawn, figures), "<h2>Where the time goes</h2>",
        _charts(charts.times(run), figures),
        f"<h2>Evaluations</h2>{scores}" if scores else "",
        *_origins(state),
        "<h2>Events, the newest first</h2>", _table(["when", "level", "what"],
                                  [[e["when"], e["level"], e["text"]] for e in state["events"]]),
    ])  # fmt: skip


def _origins(state: Values) -> list[str]:
    """What a run, or a population, was made of."""
    rows = [[row["name"], row["value"], row["origin"]] for row in state["config"]]
    return [
        "<h2>Command, machine, versions</h2>", _table(["", ""], state["facts"]),
        "<h2>Settings</h2>", _table(["setting", "value", "from"], rows),
    ]  # fmt: skip


def _population(name: str, run: RunFiles, figures: list[Values]) -> str:
    state = population_state(name, run.folder)
    return "\n".join([
        f"<h1>{escape(page.told(name))}: {counted(state['members'], 'member')}, "
        f"{counted(state['copies'], 'copy')}</h1>",
        _problems(state["problems"]), _charts(state["figures"], figures),
        "<h2>Members</h2>", _table(state["columns"], state["rows"]), "<h2>Copies, the newest first</h2>",
        _table(["child", "parent", "at steps", "score given up", "parent's score"], state["lineage"]),
        *_origins(state),
    ])  # fmt: skip
