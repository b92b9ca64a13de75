"""Tables of docs/scaling.md, from the raw files in ``benchmarks/results/plan``."""

from __future__ import annotations

import math
from typing import Any

import plan  # of benchmarks/, which figures.py puts on the path
from common import table
from recorded import RESULTS, read

PLAN = RESULTS / "plan"
PAPERS = PLAN / "papers.json"
NOT_RECORDED = "Not recorded yet. `python benchmarks/plan_papers.py` writes these figures."


def tables() -> dict[str, str]:
    """Return the text of each marked place of the page, by its name."""
    recorded: dict[str, Any] = read(PAPERS) if PAPERS.exists() else {}
    return {
        "plan": predictions(),
        "papers": papers(recorded.get("papers", [])),
        "ten-thousand-actors": beyond(recorded.get("beyond", [])),
    }


def predictions() -> str:
    """Return a table of the errors of ``shoal plan``, by case and number of actors, and what they come to."""
    results = read(PLAN / "results.json")["results"]
    found: dict[str, dict[int, float]] = {}
    for key, result in results.items():
        name, _, count = key.rpartition("/")
        errors = found.setdefault(name, {})
        if not math.isnan(error := plan.error(result)):
            errors[int(count)] = error
    counts = sorted({count for errors in found.values() for count in errors})
    rows = [
        [f"`{name}`", *(f"{errors[n]:+.0%}" if n in errors else "" for n in counts)] for name, errors in found.items()
    ]
    columns = ["case", *(f"{n} actors" if n > 1 else "1 actor" for n in counts)]
    return f"{table(columns, rows)}\n\n{plan.summary(results)}"


def papers(rows: list[dict[str, Any]]) -> str:
    """Return the published figures beside the simulator's, and the assumptions of each system."""
    if not rows:
        return NOT_RECORDED
    cells = []
    for row in rows:
        published, predicted = row["published"], row["predicted"]
        error = "" if published is None else f"{predicted / published - 1:+.0%}"
        cells.append([row["system"], row["what"], "" if published is None else published, predicted, error])
    assumed = {(row["system"], row["assumed"]): None for row in rows}  # in their order, each once
    notes = "\n".join(f"- {system}: {text}." for system, text in assumed)
    columns = ["system", "what", "published", "predicted", "error"]
    return f"{table(columns, cells)}\n\nAssumed, since the papers do not say it:\n\n{notes}"


def beyond(rows: list[list[Any]]) -> str:
    """Return the predictions for 10,000 actors: case, switch, actors, steps/s, link, bottleneck, advice."""
    if not rows:
        return NOT_RECORDED
    cells = []
    for case, change, *rest in rows:
        switch = " ".join(f"`--{name.replace('_', '-')} {value}`" for name, value in (change or {}).items())
        cells.append([f"`{case}`", switch, *rest])
    columns = ["case", "switch", "actors", "steps/s", "busiest link, GB/s", "bottleneck", "what would help"]
    return table(columns, cells)
