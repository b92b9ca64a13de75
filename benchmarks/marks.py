"""How fast each system is, with the mark it is to reach: Shoal and its peers, in turn, in one run.

    python benchmarks/marks.py --list
    SHOAL_PEERS=~/.cache/shoal-peers python benchmarks/marks.py --only a3c dd-ppo

Both sides of a case have the same environment, network, batch and ratio of updates to steps, except for what its text
says. Under a case's table stand its marks: what one side does in units of the best of others, and what it should do.
``benchmarks/throughput.py`` has the cases that are compared with the machine's limit, ``benchmarks/reduction.py`` what
a reduction costs.
"""

from __future__ import annotations

import math
from typing import Any

from common import Figures, alternate, chosen, listed, middle, parser, publish, ratio, shorten, table
from mark_cases import CASES, Case, Mark

SMOKE = ("server-small",)


def figure(case: Case, found: list[Figures]) -> float:
    """Median of what the case compares."""
    value = middle(found, case.key)
    return case.per_update * middle(found, "updates_per_s") if math.isnan(value) and case.per_update else value


def measured(mark: Mark, speeds: dict[str, float]) -> tuple[float, str]:
    """Return what a side does in units of the fastest of others, NaN without a figure, and the name of that one."""
    value = speeds.get(mark.side, math.nan)
    if not mark.of:
        return value, ""
    known = {name: speeds[name] for name in mark.of if not math.isnan(speeds.get(name, math.nan))}
    best = max(known, key=lambda name: known[name], default="")
    return ratio(value, known.get(best, math.nan)), best or " or ".join(mark.of)


def reached(mark: Mark, value: float) -> bool:
    return value <= mark.factor if mark.most else value >= mark.factor


def judged(mark: Mark, speeds: dict[str, float]) -> str:
    """The mark and whether it is reached, in words."""
    value, best = measured(mark, speeds)
    sign, beside = "at most" if mark.most else "at least", f" x {best}" if best else ""
    if math.isnan(value):
        return f"{mark.side}: no figure of {sign} {mark.factor:g}{beside}"
    told = "reached" if reached(mark, value) else "NOT REACHED"
    return f"{mark.side}: {value:.3g}{beside}, {sign} {mark.factor:g}: {told}"


def run(name: str, case: Case, args: Any) -> tuple[str, dict[str, Any]]:
    """Measure one case: its table with its marks, and all figures."""
    print(f"{name}: {case.what}", flush=True)
    extra: tuple[str, ...] = ("--seconds", str(args.seconds * case.longer))
    if case.warmup:
        extra += ("--warmup", str(0.5 if args.smoke else args.warmup))
    figures = alternate(case.sides, args.repeats, extra, timeout=300)
    speeds = {label: figure(case, found) for label, found in figures.items()}
    first = case.sides[0].label
    rows = [
        [label, speed, ratio(speeds.get(first, math.nan), speed), middle(figures[label], "updates_per_s")]
        for label, speed in speeds.items()
    ]
    text = [case.what + ".", "", table(["side", case.unit, f"{first} is x as fast", "updates/s"], rows), ""]
    if case.less:  # then the first column is no speed
        text[2] = table(["side", case.unit], [row[:2] for row in rows])
    text += [f"- {judged(mark, speeds)}" for mark in case.marks]
    text += [f"- {side.label}: `{side.script} {' '.join(side.args)}`" for side in case.sides]
    return "\n".join(text), {"sides": figures}


def main() -> None:
    options = parser(__doc__, seconds=4.0, repeats=1)
    options.add_argument(
        "--warmup", type=float, default=2.0, help="seconds between a side's first update and its window"
    )
    args = options.parse_args()
    cases = chosen(CASES, args, SMOKE)
    if args.list:
        sides = {name: case.sides for name, case in cases.items()}
        listed(sides, {name: case.what for name, case in cases.items()})
        return
    shorten(args, 0.5)
    for name, case in cases.items():
        told, figures = run(name, case, args)
        publish("marks", __doc__ or "", {name: told}, {name: figures}, args.smoke)


if __name__ == "__main__":
    main()
