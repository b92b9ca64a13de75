"""A population as tables and figures: who copied whom, and the members' scores and hyperparameters over time."""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Sequence

import numpy as np

from shoal.types import Values
from shoal.untrusted import excerpt, markup, table_rows
from shoal.watch.charts import INK, figure, line, listed
from shoal.watch.files import RunFiles, as_dict, as_number
from shoal.watch.folder import Folder
from shoal.watch.page import about, cell, settings

Row = dict[str, str]
OWN = ("member", "step", "score", "seconds")  # columns of scores.csv that are no hyperparameters
MOST_MEMBERS = 200
MOST_HYPERPARAMETERS = 30


def is_population(folder: Folder) -> bool:
    """Return whether the directory holds a population rather than a run."""
    return folder.modified("population.json") is not None


def state(name: str, folder: Folder) -> Values:
    """Return what a page shows of a population, as JSON."""
    problems: dict[str, str] = {}
    scores, copies = (_rows(folder, file, problems) for file in ("scores.csv", "lineage.csv"))
    members = _members(scores)
    names = [column for column in (scores[0] if scores else ()) if column not in OWN][:MOST_HYPERPARAMETERS]
    kept = dict(sorted(members.items())[:MOST_MEMBERS])
    facts, made = _facts(folder, problems), RunFiles(folder.path)
    return {
        "name": name, "path": str(folder.path), "members": len(members), "copies": len(copies), "problems": problems,
        "columns": ["member", "steps", "score", *names],
        "rows": [[str(i), *(cell(newest(rows, column)) for column in ("step", "score", *names))]
                 for i, rows in kept.items()],
        "lineage": [[c.get("child", ""), c.get("parent", ""),
                     *(cell(c.get(column, "")) for column in ("step", "score", "parent_score"))]
                    for c in copies[::-1][:500]],
        "figures": [_figure(column, kept, copies) for column in ("score", *names)] if kept else [],
        "facts": about(made, facts),
        "config": settings({"config": facts.get("values"), "origins": facts.get("origins")}),
    }  # fmt: skip


def _facts(folder: Folder, problems: dict[str, str]) -> Values:
    """What population.json holds, and the machine and versions of its first member."""
    facts: Values = {}
    try:
        facts = folder.json("population.json")
    except (OSError, ValueError) as error:
        problems["population.json"] = f"damaged or half written: {excerpt(error)}"
    for name in folder.folders("members")[:1]:
        member = RunFiles(folder.path / "members" / name).config()
        facts = {key: member.get(key) for key in ("hardware", "versions", "git", "runtime")} | facts
    return facts


def _members(scores: Sequence[Row]) -> dict[int, list[Row]]:
    """The rows of each member."""
    members: dict[int, list[Row]] = {}
    for row in scores:
        index = as_number(row.get("member"))
        if math.isfinite(index):
            members.setdefault(int(index), []).append(row)
    return members


def newest(rows: Sequence[Row], column: str) -> str:
    """Return the last cell of a column that holds anything: a turn in which no episode ends has no score."""
    return next((found for row in reversed(rows) if (found := row.get(column, ""))), "")


def entry(folder: Folder) -> Values:
    """Return what the list of runs shows of a population: of what, the steps of all members, and the best score."""
    facts: Values = {}
    with contextlib.suppress(OSError, ValueError):
        facts = folder.json("population.json")
    members = _members(_rows(folder, "scores.csv", {}))
    scores, steps = (
        [value for rows in members.values() if math.isfinite(value := as_number(newest(rows, column)))]
        for column in ("score", "step")
    )
    values = as_dict(facts.get("values"))
    return {
        "system": f"population of {facts.get('system', '?')}", "env": values.get("env", ""),
        "seed": facts.get("seed", ""), "steps": int(sum(steps)), "return": max(scores, default=None),
    }  # fmt: skip


def _figure(column: str, members: dict[int, list[Row]], copies: list[Row]) -> Values:
    """A line for each member; where it copied another its line ends in a cross and begins again at the other's."""
    data = []
    copies_of: dict[float, list[Row]] = {}
    for copy in copies:
        copies_of.setdefault(as_number(copy.get("child")), []).append(copy)
    for index, rows in members.items():
        waiting = copies_of.get(index, [])[::-1]
        steps: list[float] = []
        values: list[float] = []
        for row in rows:
            steps.append(as_number(row.get("step")))
            values.append(as_number(row.get(column)))
            if waiting and row.get("step") == waiting[-1].get("step"):
                copy = waiting.pop()
                begun = copy.get("parent_score") if column == "score" else copy.get(f"after/{column}")
                steps += [math.nan, as_number(copy.get("parent_step"))]
                values += [math.nan, as_number(begun)]
        one = line(np.array(steps), np.array(values), f"member {index}", index)
        data.append(one | dict(x=listed(np.array(steps)), y=listed(np.array(values)), mode="lines+markers"))
    ends = [
        (as_number(c.get("step")), as_number(c.get("score" if column == "score" else f"before/{column}")))
        for c in copies
    ]
    if ends:
        x, y = np.array(ends).T
        data.append(dict(type="scatter", mode="markers", x=listed(x), y=listed(y), name=markup("given up"),
                         marker=dict(symbol="x", color=INK)))  # fmt: skip
    positive = [v for one in data for v in one["y"] if v is not None]
    log = column != "score" and bool(positive) and min(positive) > 0
    return figure(data, column, "environment steps of a member", "", log)


def _rows(folder: Folder, name: str, problems: dict[str, str]) -> list[Row]:
    try:
        found = table_rows(folder.read(name).decode("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        problems[name] = f"damaged or half written: {excerpt(error)}"
        return []
    return [{str(k): str(v) for k, v in row.items() if k is not None and v is not None} for row in found]
