"""What a page or a report says of one run: its state, its figures, its program as it moves, its settings and events."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shoal.metering.bottleneck import bottleneck
from shoal.metering.glossary import SECTIONS
from shoal.program.draw import human_bytes
from shoal.types import Values
from shoal.untrusted import one_line, printable
from shoal.watch import moving
from shoal.watch.files import RunFiles, as_dict, as_number, number
from shoal.watch.series import Columns
from shoal.words import counted

GLOSSARY = {entry.name: entry for _, _, entries in SECTIONS for entry in entries}
FIRST = ("episode_return", "evaluation_return", "loss", "entropy", "policy_lag_p95", "steps_per_second")
OLD_ROWS = 20  # rows after which a value that no row has repeated is shown with its age
HIDDEN = ("row",)
UNENDED = ("running", "killed", "failed")  # states; any other is the reason for which a run ended


def state(name: str, run: RunFiles) -> Values:
    """Return everything that a page shows of a run, but for its curves, as JSON."""
    run.refresh()
    facts, report, status = run.config(), run.report(), run.state()
    last = run.performance.columns.last | run.metrics.columns.last
    recorded = metrics(run)
    names = {metric["name"] for metric in recorded}
    picture, evaluated, best = run.picture(), run.evaluations(), run.best()
    shares = shares_of(run.performance.columns)
    drawn, parts = moving.program(run, picture, shares, status == "running")
    return {
        "name": name, "path": str(run.path), "state": status, "running": status == "running",
        "age": run.age(), "error": told(report.get("error", "")),
        "title": f"{told(facts.get('system', '?'))} on {told(facts.get('config', {}).get('env', '?'))}, "
                 f"seed {told(facts.get('seed', '?'))}",
        "figures": figures(run, facts, report, status), "svg": drawn, "parts": parts,
        "text": printable(run.drawing()) if picture is None else "", "row": last.get("row", 0),
        "metrics": recorded, "first": [name for name in FIRST if name in names],
        "evaluations": [{name: cell(text) for name, text in row.items()} for row in evaluated],
        "best": best | {"row": best_row(evaluated, best)}, "videos": run.videos(),
        "events": [{"when": e.when, "level": e.level, "text": printable(e.text)} for e in reversed(run.events())],
        "checkpoints": [{"steps": steps, "when": clock_time(when)} for steps, when in run.checkpoints()],
        "facts": about(run, facts), "config": settings(facts), "logs": run.logs(), "problems": dict(run.problems),
    }  # fmt: skip


def told(value: Any) -> str:
    """A value of a file as text of one line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return one_line(text)[:2_000]


def clock_time(when: float) -> str:
    return datetime.datetime.fromtimestamp(when).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """3725 -> '1:02:05'."""
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def cell(text: str) -> str:
    """Return the cell of a table in few digits if it holds a number."""
    value = as_number(text)
    return short(value) if math.isfinite(value) else text


def best_row(rows: Sequence[Mapping[str, str]], best: Mapping[str, Any]) -> int | None:
    """Return the index of the evaluation whose parameters are kept as the best; None where no row is of its steps."""
    found = [i for i, row in enumerate(rows) if "steps" in best and as_number(row.get("steps")) == best["steps"]]
    return max(found, default=None)


def time_left(facts: Mapping[str, Any], last: Mapping[str, float]) -> tuple[float, float] | None:
    """(share that is done, seconds left) until the nearest limit at the average pace so far; None if unknown."""
    stop, seconds = facts.get("stop", {}), last.get("seconds", 0.0)
    found = []
    for name in ("steps", "updates", "seconds") if isinstance(stop, dict) else ():
        limit, done = number(stop.get(name)), last.get(name, 0.0)
        if limit and done > 0 and seconds > 0:
            found.append((min(1.0, done / limit), max(0.0, limit - done) * seconds / done))
    return min(found, key=lambda one: one[1]) if found else None


def shares_of(columns: Columns) -> dict[str, dict[str, float]]:
    """role -> phase -> share of its time, by the newest row in which the role reported any: one in the middle of a long
    step reports nothing."""
    found: dict[str, dict[str, str]] = {}
    for name in columns.known_at:
        if name.startswith("time/") and name.count("/") >= 2:
            role, _, phase = name.removeprefix("time/").rpartition("/")
            found.setdefault(role, {})[phase] = name
    out = {}
    for role, names in found.items():
        newest = max(columns.known_at[name] for name in names.values())
        out[role] = {p: columns.last[name] for p, name in names.items() if columns.known_at[name] == newest}
    return out


def figures(run: RunFiles, facts: Values, report: Values, status: str) -> list[list[str]]:
    """The most important numbers of a run: [name, value, age], the age in words where the value is old."""
    columns, clock = run.metrics.columns, run.performance.columns
    last = clock.last | columns.last
    out = [["state", status if status in UNENDED else f"ended: {status}", ""]]
    stop = facts.get("stop", {})
    goal = number(stop.get("steps")) if isinstance(stop, dict) else None
    done = f"{last.get('steps', 0):,.0f}" + (f" of {goal:,.0f}" if goal else "")
    out.append(["steps", f"{done} ({clock.rate('steps_per_second'):,.0f}/s)", ""])
    if "updates" in last:
        out.append(["updates", f"{last['updates']:,.0f} ({clock.rate('updates_per_second'):,.1f}/s)", ""])
    out.append(["return", short(last["episode_return"]) if "episode_return" in last else "none yet", ""])
    if best := run.best():
        out.append(
            ["best evaluation", f"{best.get('score', math.nan):.4g} at {counted(best.get('steps', 0), 'step')}", ""]
        )
    if (slow := bottleneck(shares_of(clock))) is not None:
        out.append(["bottleneck", str(slow), ""])
    for name, label in (("policy_lag_p95", "policy lag (95th percentile)"), ("loss", "loss"), ("entropy", "entropy"),
                        ("samples_per_insert", "samples per insert")):  # fmt: skip
        if name in columns.last:
            out.append([label, short(columns.last[name]), age(name, columns, clock)])
    if "memory" in last:
        out.append(["memory", human_bytes(last["memory"]), ""])
    if last.get("restarts"):
        out.append(["restarts", f"{last['restarts']:.0f}", ""])
    seconds = number(report.get("seconds")) or last.get("seconds", 0.0)
    left = time_left(facts, last) if status == "running" else None
    out.append(["time", duration(seconds) + (f", {duration(left[1])} left ({left[0]:.0%} done)" if left else ""), ""])
    return out


def age(name: str, columns: Columns, clock: Columns) -> str:
    """Return how old the last known value of a metric is, "" where it is not old. ``clock``: the seconds of each row; a
    value whose row it lacks has its age in rows."""
    known_at = columns.known_at[name]
    rows = columns.last_row["row"] - known_at
    if rows <= OLD_ROWS:
        return ""
    seconds = clock.last.get("seconds", math.nan) - float(clock.interpolated("seconds", "row", known_at))
    return f"{duration(seconds)} ago" if math.isfinite(seconds) else f"{rows:.0f} rows old"


def meaning(name: str) -> tuple[str, str]:
    """(unit, what it is) of a metric, by the glossary; ("", "") for one of the run's own."""
    key = name
    if name.startswith("fill/"):
        key = "fill/CHANNEL"
    elif name.startswith("time/"):
        key = "time/ROLE/PHASE"
    elif name.startswith("record/"):
        key = "record/NAME"
    elif name.startswith("evaluation_") and name not in GLOSSARY:
        key = "evaluation_NAME"
    entry = GLOSSARY.get(key)
    return (entry.unit, entry.meaning) if entry is not None else ("", "")


def metrics(run: RunFiles) -> list[Values]:
    """Every metric that has been recorded, with its unit and meaning."""
    names = {**run.metrics.columns.names, **run.performance.columns.names}
    out = []
    for name in names:
        if name not in HIDDEN:
            unit, is_ = meaning(name)
            out.append({"name": name, "unit": unit, "meaning": is_.replace("`", "")})
    return out


def about(run: RunFiles, facts: Values) -> list[list[str]]:
    """Command, machine, versions and seed, as rows of [name, value]."""
    machine, versions = as_dict(facts.get("hardware")), as_dict(facts.get("versions"))
    if (memory := number(machine.get("memory"))) is not None:
        machine = {**machine, "memory": human_bytes(int(memory))}
    rows = [
        ["command", run.command()], ["directory", str(run.path)], ["preset", facts.get("preset", "")],
        ["seed", facts.get("seed", "")], ["runtime", facts.get("runtime", "")],
        ["machine", ", ".join(f"{name} {value}" for name, value in machine.items())],
        ["versions", ", ".join(f"{name} {value}" for name, value in versions.items())], ["git", facts.get("git") or ""],
    ]  # fmt: skip
    return [[name, told(value)] for name, value in rows if value not in ("", None)]


def settings(facts: Values) -> list[Values]:
    """Every setting with its value and where that came from; ``own`` where it is neither the preset's nor the default,
    those first."""
    origins = as_dict(facts.get("origins"))
    rows = []
    for name, value in as_dict(facts.get("config")).items():
        origin = told(origins.get(name, ""))
        own = origin != "default" and not origin.startswith("preset")
        rows.append({"name": told(name), "value": told(value), "origin": origin, "own": own})
    return sorted(rows, key=lambda row: not row["own"])


def differing(runs: Mapping[str, RunFiles]) -> list[list[str]]:
    """Settings in which runs differ: rows of [name, value in each run]."""
    found = [run.config() for run in runs.values()]
    configs = [
        {"system": facts.get("system", ""), **as_dict(facts.get("config")), "seed": facts.get("seed", "")}
        for facts in found
    ]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [[told(name), *(told(c[name]) if name in c else "-" for c in configs)] for name in names]
    return [row for row in rows if len({*row[1:]}) > 1]


def seeds(runs: Mapping[str, RunFiles]) -> list[list[str]]:
    """The names of runs that differ by their seed alone, in groups of two and more."""
    groups: dict[str, list[str]] = {}
    for name, run in runs.items():
        facts = run.config()
        key = json.dumps([facts.get("system"), facts.get("config")], sort_keys=True, default=str)
        groups.setdefault(key, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def cells(rows: Sequence[Sequence[str]], tag: str = "td") -> str:
    """Rows of a table as HTML, their text escaped."""
    return "\n".join("<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>" for row in rows)
