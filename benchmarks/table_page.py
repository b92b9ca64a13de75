"""docs/table.md and its pictures, drawn from the runs that ``benchmarks/table.py`` has recorded; what is missing says
"not run"."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import table as tables
from common import HERE, table as markdown
from learning import kept_curve
from table import Record, random_play
from table_scores import Aggregate, aggregate
from table_suites import SUITES, Claim, Row, Task

sys.path.insert(0, str(HERE.parent / "scripts" / "site"))
from charts import Panel, chart

PAGE = HERE.parent / "docs" / "table.md"
NOT_RUN = "not run"
ABOUT = """# All systems side by side

Every system on the same tasks, with one preset and one network for all tasks of a suite. `python benchmarks/table.py`
runs the systems and writes this page.

- A **score** is the mean return of fresh episodes of the final policy: greedy for systems that learn values, sampled
  for systems that learn a policy.
- A **normalised** score is 0 for random play (`python benchmarks/table.py --random`) and 1 for the best published
  figure that was found. A task without a published figure shows its score and is left out of IQM and median.
- The **IQM** is the interquartile mean over all runs, and the **median** is over the means of the tasks. Both have 95 %
  stratified bootstrap intervals (Agarwal et al. 2021). With one seed of each task an interval is a point, and shows
  nothing of the spread between seeds.
"""


def drawn() -> list[Record]:
    """The tables of the page: both suites by their own budgets, then the others that are recorded."""
    whole = [Record(name, name, suite.frames, suite.minutes) for name, suite in SUITES.items()]
    names = sorted(path.parent.name for path in tables.KEPT.glob("*/table.json"))
    others = [Record.read(name) for name in names if name not in SUITES and not name.endswith("-check")]
    return [*whole, *(record for record in others if record is not None)]


def draw(page: Path | None = None) -> None:
    """Write the page, and a picture for each table that has runs."""
    page = page or PAGE
    parts = [ABOUT]
    for record in drawn():
        parts.append(section(record))
        if has_runs(record):
            picture = page.parent / "pictures" / f"table-{record.name}.svg"
            picture.parent.mkdir(exist_ok=True)
            plot(record, picture)
            parts.append(f"![Profile of scores and learning curves](pictures/{picture.name})\n")
    page.write_text("\n".join(parts), encoding="utf-8")
    print(f"wrote {page}", flush=True)


def budget_words(budget: str) -> str:
    kind, _, amount = budget.partition("-")
    return f"{int(amount):,} frames" if kind == "frames" else f"{amount} minutes"


def section(record: Record) -> str:
    """One table: what it is, the aggregates, each task's scores, what these are measured by, the papers' order."""
    suite = record.of
    short = (record.frames, record.minutes) != (suite.frames, suite.minutes)
    title = f"{suite.title}: {', '.join(map(budget_words, record.budgets()))}"
    title += f" (a shorter table, {record.name}: not comparable with the full one)" if short else ""
    parts = [f"## {title}\n"]
    if not has_runs(record):
        return "\n".join([*parts, "No system has been run for this table yet.\n", *baselines(record)])
    for budget in record.budgets():
        cores = sorted({r["cores"] for row in suite.rows for t in suite.tasks for r in record.results(row, t, budget)})
        on = f", each run on {' or '.join(map(str, cores))} core{'s' * (cores != [1])}" if cores else ""
        parts += [f"### After equal {budget_words(budget)}{on}\n", summary(record, budget), ""]
    parts += baselines(record)
    if suite.claims and record.budgets():
        parts += ["The order that the papers claim, by IQM:\n", claimed(record, record.budgets()[0]), ""]
    return "\n".join(parts)


def has_runs(record: Record) -> bool:
    suite = record.of
    return any(record.results(row, task, b) for row in suite.rows for task in suite.tasks for b in record.budgets())


def baselines(record: Record) -> list[str]:
    return ["What scores are measured by:\n", measured(record), ""]


def summary(record: Record, budget: str) -> str:
    """The rows, best IQM first, with every task's own score; then the names of those that are not run."""
    tasks = record.of.tasks
    rows, missing = [], []
    for row in record.of.rows:
        found = {task.env: record.results(row, task, budget) for task in tasks}
        whole = aggregate(record.normalised(row, budget))
        seeds = sorted({r["seed"] for results in found.values() for r in results})
        if not seeds:
            missing.append(row.name)
            continue
        means = aggregate_cells(whole, tasks) if whole else ["-", "-", "0"]
        cells = [row.name, *means, ", ".join(map(str, seeds))]
        cells += [scores(record, row, found[task.env]) for task in tasks]
        rows.append((-whole.iqm if whole else np.inf, cells))
    columns = ["system", "IQM", "median", "tasks in both", "seeds", *(task.name for task in tasks)]
    told = markdown(columns, [cells for _, cells in sorted(rows, key=lambda pair: pair[0])]) if rows else ""
    return and_missing(told, "Not run yet", missing)


def and_missing(table: str, what: str, names: Sequence[str]) -> str:
    """Return a table, and below it a sentence that names what is not in it."""
    return "\n\n".join(part for part in (table, f"{what}: {', '.join(names)}." if names else "") if part)


def aggregate_cells(found: Aggregate, tasks: Sequence[Task]) -> list[str]:
    low, high = found.iqm_interval
    least, most = found.median_interval
    return [
        f"{found.iqm:.3f} [{low:.3f}, {high:.3f}]", f"{found.median:.3f} [{least:.3f}, {most:.3f}]",
        f"{found.tasks} of {len(tasks)}",
    ]  # fmt: skip


def scores(record: Record, row: Row, results: list[dict[str, Any]]) -> str:
    return " / ".join(f"{record.score(row, result):.4g}" for result in results) or NOT_RUN


def measured(record: Record) -> str:
    """Random play and the published figure of each task, with its source."""
    rows = []
    for task in record.of.tasks:
        random = random_play(task)
        told = "not measured"
        if random is not None:
            told = f"{random['mean']:.4g} ± {random['standard_error']:.2g} ({random['episodes']} episodes)"
        source = task.source + ("" if task.verified or task.best is None else " (unverified)")
        rows.append([task.env, told, "none" if task.best is None else f"{task.best:.6g}", source])
    return markdown(["task", "random play", "best published", "source"], rows)


def claimed(record: Record, budget: str) -> str:
    """Whether each paper's order holds here, and by what; then the claims of which a side is not run."""
    claims = {f"{c.better} > {c.worse}": (c.paper, *judged(record, c, budget)) for c in record.of.claims}
    rows = [[claim, *told] for claim, told in claims.items() if told[1] != NOT_RUN]
    missing = [claim for claim, told in claims.items() if told[1] == NOT_RUN]
    told = markdown(["claim", "paper", "here", "why"], rows) if rows else ""
    return and_missing(told, "Not decided, since one or both have not been run", missing)


def judged(record: Record, claim: Claim, budget: str) -> tuple[str, str]:
    """("held" or "not held", ...) over the tasks that both have run; undecided where the intervals overlap."""
    sides = [record.normalised(record.of.row(name), budget) for name in (claim.better, claim.worse)]
    both = [env for env in sides[0] if sides[0][env] and sides[1].get(env)]
    found = [aggregate({env: side[env] for env in both}) for side in sides]
    better, worse = found
    if better is None or worse is None:
        return NOT_RUN, ""
    told = f"{better.iqm:.3f} against {worse.iqm:.3f} on {len(both)} task{'s' * (len(both) > 1)}"
    held = "held" if better.iqm > worse.iqm else "not held"
    if max(better.runs, worse.runs) == len(both):
        return f"{held}, by one seed", told
    apart = better.iqm_interval[0] > worse.iqm_interval[1] or worse.iqm_interval[0] > better.iqm_interval[1]
    return held if apart else f"{held}, undecided: the intervals overlap", told


def plot(record: Record, target: Path) -> None:
    """Performance profiles (the share of runs above each normalised score), and learning curves of each task."""
    suite, budget = record.of, record.budgets()[0]
    levels = np.linspace(0, 1.2, 61).tolist()
    profiles = []
    for row in suite.rows:
        values = [x for runs in record.normalised(row, budget).values() for x in runs]
        if values:
            profiles.append((row.name, [(level, mean(x > level for x in values)) for level in levels]))
    panels = [Panel("Share of runs above a score", profiles)] if profiles else []
    for task in suite.tasks:
        lines = []
        for row in suite.rows:
            for result in record.results(row, task, budget):
                steps, _, returns = kept_curve(record.run(row, task, budget, result["seed"]) / "curve.csv")
                lines += [(row.name, list(zip(steps.tolist(), returns.tolist(), strict=True)))] * bool(len(steps))
        if lines:
            panels.append(Panel(task.name, lines))
    if panels:
        target.write_text(chart(panels, f"{suite.title}, after {budget_words(budget)}", 2), encoding="utf-8")
