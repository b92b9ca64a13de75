"""The findings as a table in Markdown, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Line = dict[str, Any]
SB3 = "Stable-Baselines3"


def table(lines: Sequence[Line]) -> str:
    """One row for each case that anything was found of; a cell of what was not measured is empty."""
    machine = next(line for line in lines if line["stage"] == "machine")
    where = machine["gpu"] or f"{machine['device']} alone, no GPU"
    out = [f"{where}, {machine['cores']} cores, PyTorch {machine['torch']}, {machine['time'][:10]}.", ""]
    out += [
        "| case | steps/s | updates/s | bare updates/s | share | GPU's time | Stable-Baselines3 |",
        "| --- " * 7 + "|",
    ]
    cases = dict.fromkeys(line["case"] for line in lines if line.get("case"))
    for case in cases:
        mine = [line for line in lines if line.get("case") == case]
        run, bare, peer = (_found(mine, end) for end in (": run", ": bare update", f": {SB3}"))
        used = next((line["gpu_used"] for line in mine if line["stage"].endswith(": run") and "gpu_used" in line), None)
        ours, limit = run.get("updates_per_s"), bare.get("updates_per_s")
        share = f"{ours / limit:.2f}" if ours and limit else ""
        steps, theirs = run.get("env_steps_per_s"), peer.get("env_steps_per_s")
        times = f"x {steps / theirs:.2f}" if steps and theirs else ""
        if run or bare:
            cells = [case, _number(steps), _number(ours), _number(limit), share, _share(used), times]
            out.append(f"| {' | '.join(cells)} |")
        for line in mine:
            if ": bare update, " in line["stage"] and "updates_per_s" in line:
                name = f"{case},{line['stage'].rpartition(',')[2]}"
                cells = [name, "", "", _number(line["updates_per_s"]), "", "", ""]
                out.append(f"| {' | '.join(cells)} |")
            if "env_steps_per_s" in line and "way" in line:
                name = f"{case}, {line['way']}"
                figures = _number(line["env_steps_per_s"]), _number(line.get("updates_per_s"))
                cells = [name, *figures, _number(line.get("update_alone_per_s")), _share(line.get("share")), "", ""]
                out.append(f"| {' | '.join(cells)} |")
    problems = [f"- {_whose(line)}: {line.get('error') or line['left_out']}" for line in lines if _lacks(line)]
    return "\n".join([*out, *(["", "Not measured:", "", *problems] if problems else []), ""])


def _found(lines: Sequence[Line], end: str) -> Line:
    return next((line for line in lines if line["stage"].endswith(end) and "updates_per_s" in line), None) or next(
        (line for line in lines if line["stage"].endswith(end) and "env_steps_per_s" in line), {}
    )


def _lacks(line: Line) -> bool:
    return "left_out" in line or line.get("ok") is False or ("way" in line and "error" in line)


def _whose(line: Line) -> str:
    return f"{line['stage']}, {line['way']}" if "way" in line else str(line["stage"])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
