"""The picture of a population: who copied whom, and the hyperparameters over time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.analysis.plot import check_path, plain_text, require_matplotlib, save
from shoal.api import UsageError
from shoal.records.damage import reading
from shoal.untrusted import one_line, read_text, require_plain, table_rows
from shoal.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, str]
MAX_MEMBERS = 200  # that are drawn
MAX_HYPERPARAMETERS = 30


def read(path: Path, trust: bool = False) -> tuple[list[Row], list[Row]]:
    """The rows of ``scores.csv`` and ``lineage.csv``, in the order in which they were written. ``trust``: as in
    ``Run.open``."""
    require_plain(path, trust)
    out = []
    for name in ("scores.csv", "lineage.csv"):
        file = path / name
        rows: list[Row] = []
        if file.is_file():
            with reading(file):
                rows = table_rows(read_text(file))
        out.append(rows)
    if not out[0]:
        raise UsageError(f"no member of the population in '{path}' has made a step yet")
    return out[0], out[1]


def draw(path: Path, out: Path, trust: bool = False) -> None:
    """Write a picture (PNG, SVG or PDF) of the population in ``path``: the tree of scores, in which a copy is a branch,
    then each hyperparameter over time, one colour a member."""
    check_path(out)
    require_matplotlib()
    scores, copies = read(path, trust)
    with plain_text():
        with reading(path / "scores.csv"):
            drawn = _figure(path, scores, copies)
        save(drawn, out, 120)


def _figure(path: Path, scores: list[Row], copies: list[Row]) -> Figure:
    from matplotlib import figure  # without pyplot: no window, no global state

    names = [c for c in scores[0] if c not in ("member", "step", "score", "seconds")]
    panels = ["score", *names[:MAX_HYPERPARAMETERS]]
    drawn = figure.Figure(figsize=(9, 2.6 * len(panels)), layout="constrained")
    axes = drawn.subplots(len(panels), 1, sharex=True, squeeze=False)
    members: dict[int, list[Row]] = defaultdict(list)
    for row in scores:
        members[int(row["member"])].append(row)
    copies_of: dict[int, list[Row]] = defaultdict(list)
    for copy in copies:
        copies_of[int(copy["child"])].append(copy)
    for axis, name in zip(axes[:, 0], panels, strict=True):
        for index, rows in sorted(members.items())[:MAX_MEMBERS]:
            steps, values = line(rows, copies_of[index], name)
            axis.plot(steps, values, marker=".", color=f"C{index % 10}", label=str(index), linewidth=1)
        axis.set_ylabel(one_line(name))
        if name != "score" and all(float(row[name]) > 0 for row in scores if row[name]):
            axis.set_yscale("log")
        ends = [(float(c["step"]), float(c[_before(name)])) for c in copies if c[_before(name)]]
        if ends:
            axis.plot(*zip(*ends, strict=True), "x", color="grey", label="given up")
    title = f"{path.name}: {counted(len(members), 'member')}, {counted(len(copies), 'copy')}"
    for what, most, found in (("members", MAX_MEMBERS, members), ("hyperparameters", MAX_HYPERPARAMETERS, names)):
        title += f"\n(the first {most} of {len(found):,} {what})" if len(found) > most else ""
    axes[0, 0].set_title(title)
    axes[0, 0].legend(title="member", fontsize="small", ncols=2)
    axes[-1, 0].set_xlabel("environment steps of a member")
    return drawn


def line(rows: list[Row], copies: list[Row], name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one member. Where it copied another its line ends, and the next begins where the other was:
    a branch of the tree."""
    steps: list[float] = []
    values: list[float] = []
    waiting = list(copies)
    for row in rows:
        steps.append(float(row["step"]))
        values.append(_number(row[name]))
        if waiting and row["step"] == waiting[0]["step"]:
            copy = waiting.pop(0)
            started = copy["parent_score"] if name == "score" else copy[f"after/{name}"]
            steps += [float("nan"), float(copy["parent_step"])]
            values += [float("nan"), _number(started)]
    return steps, values


def _before(name: str) -> str:
    return "score" if name == "score" else f"before/{name}"


def _number(cell: str) -> float:
    return float(cell) if cell else float("nan")
