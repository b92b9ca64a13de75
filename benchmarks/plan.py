"""What ``shoal plan`` predicts against what runs measure, on this machine.

    python benchmarks/plan.py --list
    python benchmarks/plan.py --only impala-cartpole
    python benchmarks/plan.py            # every case that has no result yet; --again measures them anew

Costs of each system are measured once, with one actor, and kept beside the results; every case is then a run of
``--seconds`` with more actors, of which the first ``--warmup`` seconds after the first update are left out. Each result
is written as soon as it is there, so a run that was stopped goes on where it was. Nothing is fitted: what is predicted
follows from costs, cores and wiring alone. The machine must have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from common import machine, refuse, table, timed_rows

RESULTS = Path(__file__).parent / "results" / "plan"
FOREVER = {"steps": 10**9}
ACTORS = (1, 2, 3, 4, 8)
PONG = "ALE/Pong-v5"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "impala-cartpole": ("impala", "CartPole-v1", {"total_envs": 48}),
    "recurrent-ppo-cartpole": ("recurrent-ppo", "CartPole-v1", {}),
    "apex-dqn-cartpole": ("apex-dqn", "CartPole-v1", {"total_envs": 0, "envs": 8}),
    "r2d2-cartpole": ("r2d2", "CartPole-v1", {"total_envs": 0, "envs": 8}),
    "a3c-cartpole": ("a3c", "CartPole-v1", {}),
    "dd-ppo-cartpole": ("dd-ppo", "CartPole-v1", {}),
    "gorila-cartpole": ("gorila", "CartPole-v1", {"learners": 1}),
    "es-cartpole": ("es", "CartPole-v1", {"envs": 8}),
    "impala-pong": ("impala", PONG, {"total_envs": 24}),
    "recurrent-ppo-pong": ("recurrent-ppo", PONG, {"total_envs": 0, "envs": 8}),
    "apex-dqn-pong": ("apex-dqn", PONG, {"total_envs": 0, "envs": 8, "replay": 100_000}),
}


def resolved(name: str) -> tuple[Any, Any]:
    """(system, configuration with one actor) of a case."""
    from shoal import systems
    from shoal.settings.config import resolve

    system, env, fields = CASES[name]
    module = systems.load(system)
    values = {"env": env, "actors": 1, **FOREVER, **fields}
    if hasattr(module.Config, "min_replay"):
        values["min_replay"] = 2_000  # so that learning begins within seconds
    return module, resolve(module, None, None, values, name=system).cfg


def costs(name: str, module: Any, cfg: Any, again: bool) -> Any:
    """Costs of a case's system: kept, or measured now."""
    from shoal.planning.command import envs_of
    from shoal.planning.costs_file import read
    from shoal.planning.measuring import measure
    from shoal.planning.scan import points

    path = RESULTS / "costs" / f"{name}.json"
    if path.exists() and not again:
        return read(path)
    found = measure(module, cfg, envs_of(module, cfg, points(ACTORS, [0], [1], [0])))
    path.parent.mkdir(parents=True, exist_ok=True)
    found.write(path)
    return found


def measured(name: str, actors: int, seconds: float, warmup: float) -> dict[str, float]:
    """Steps per second and policy lag of a run."""
    from shoal.run import RunOptions, start
    from shoal.settings.config import Resolved

    module, cfg = resolved(name)
    cfg = replace(cfg, actors=actors)
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(seconds=seconds, run_dir=Path(folder) / "run", quiet=True, checkpoint_every=0)
        origins = dict.fromkeys(vars(cfg), "benchmark")
        start(CASES[name][0], module, Resolved(cfg, origins, "none", "benchmark"), options)
        rows = [row for row in timed_rows(Path(folder) / "run") if row.get("updates", 0) > 0]
    if not rows:
        return {"error": 1.0}
    rows = [row for row in rows if row["seconds"] >= rows[0]["seconds"] + warmup] or rows
    first, last = rows[0], rows[-1]
    took = last["seconds"] - first["seconds"]
    lags = [v for row in rows if not math.isnan(v := row.get("policy_lag_p50", math.nan))]
    out = {"steps_per_second": (last["steps"] - first["steps"]) / took if took > 0 else math.nan, "seconds": took}
    out["updates_per_second"] = (last["updates"] - first["updates"]) / took if took > 0 else math.nan
    return out | ({"policy_lag_p50": statistics.median(lags)} if lags else {})


def predicted(module: Any, cfg: Any, known: Any, actors: int) -> dict[str, Any]:
    from shoal.machine import cores
    from shoal.planning.scan import Planner, Point
    from shoal.simulation import Machine

    row = Planner(module, cfg, known, Machine.here(cores(), known.busy)).row(Point(actors))
    if row.figures is None:
        return {"why": row.why}
    lag = row.figures.policy_lag()
    out = {"steps_per_second": row.steps, "updates_per_second": row.figures.updates}
    return {**out, "bottleneck": row.figures.bottleneck(), **({"policy_lag_p50": lag[0]} if lag else {})}


def error(result: dict[str, Any]) -> float:
    """Share by which a prediction is off; nan where one side has no figure."""
    real, told = (result[side].get("steps_per_second", math.nan) for side in ("measured", "predicted"))
    return float(told / real - 1.0) if real else math.nan


def off(result: dict[str, Any]) -> str:
    return "-" if math.isnan(error(result)) else f"{error(result):+.0%}"


def report(results: dict[str, dict[str, Any]]) -> str:
    rows = []
    for key, result in results.items():
        name, _, actors = key.rpartition("/")
        real, told = result["measured"], result["predicted"]
        lags = [side.get("policy_lag_p50", "") for side in (real, told)]
        rows.append([name, actors, real.get("steps_per_second", math.nan), told.get("steps_per_second", math.nan),
                     off(result), *lags, told.get("bottleneck", told.get("why", ""))])  # fmt: skip
    columns = ["case", "actors", "measured steps/s", "predicted", "error", "lag", "predicted lag", "bottleneck"]
    return f"# Predicted against measured\n\n{summary(results)}\n\n{table(columns, rows)}\n"


def summary(results: dict[str, dict[str, Any]]) -> str:
    """Return how far predictions are off in all cases, in a sentence; "" without any."""
    errors = [abs(e) for result in results.values() if not math.isnan(e := error(result))]
    if not errors:
        return ""
    return f"{len(errors)} cases: median error {statistics.median(errors):.0%}, largest {max(errors):.0%}."


def drawing(results: dict[str, dict[str, Any]]) -> str:
    """Predicted against measured steps per second, both logarithmic, with lines at 15 and 30 %."""
    pairs = [
        (key, result["measured"]["steps_per_second"], result["predicted"]["steps_per_second"])
        for key, result in results.items()
        if not math.isnan(error(result))
    ]
    if not pairs:
        return ""
    low = math.log10(0.7 * min(min(a, b) for _, a, b in pairs))
    high = math.log10(1.4 * max(max(a, b) for _, a, b in pairs))
    size, edge = 520, 60

    def at(value: float) -> float:
        return edge + (size - 2 * edge) * (math.log10(value) - low) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" width="{size}" height="{size}" '
        'font-family="system-ui, sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for factor, style in ((1.0, ""), (0.85, "4"), (1.15, "4"), (0.7, "1 4"), (1.3, "1 4")):
        a, b = 10**low, 10**high
        ends = at(a), size - at(min(b, max(a, a * factor))), at(b), size - at(b * factor)
        x1, y1, x2, y2 = (f"{v:.1f}" for v in ends)
        dash = f' stroke-dasharray="{style}"' if style else ""
        out.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#7d8590"{dash}/>')
    names = sorted({key.rpartition("/")[0] for key, _, _ in pairs})
    for key, real, told in pairs:
        hue = 360 * names.index(key.rpartition("/")[0]) // len(names)
        out.append(f'<circle cx="{at(real):.1f}" cy="{size - at(told):.1f}" r="4" fill="hsl({hue} 70% 45%)">'
                   f"<title>{escape(key)}: {real:,.0f} measured, {told:,.0f} predicted</title></circle>")  # fmt: skip
    for number, name in enumerate(names):
        hue = 360 * number // len(names)
        out.append(f'<text x="{edge}" y="{edge + 14 * number}" fill="hsl({hue} 70% 35%)">{escape(name)}</text>')
    out.append(f'<text x="{size / 2}" y="{size - 15}" text-anchor="middle">measured steps/s</text>')
    out.append(f'<text x="15" y="{size / 2}" transform="rotate(-90 15 {size / 2})" text-anchor="middle">'
               "predicted steps/s</text></svg>")  # fmt: skip
    return "\n".join(out) + "\n"


def chosen(words: list[str]) -> list[str]:
    """Return the cases whose names contain one of ``words``, all without words; exits if a word is in no name."""
    for word in words:
        if not any(word in name for name in CASES):
            refuse(f"--only {word} names no case; there are {', '.join(CASES)}")
    return [name for name in CASES if not words or any(word in name for word in words)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases whose name contains one")
    options.add_argument("--actors", nargs="+", type=int, default=list(ACTORS))
    options.add_argument("--seconds", type=float, default=40.0, help="of each run")
    options.add_argument("--warmup", type=float, default=8.0, help="after the first update")
    options.add_argument("--list", action="store_true", help="list the cases, run nothing")
    options.add_argument("--again", action="store_true", help="measure costs and runs that are there already")
    options.add_argument("--predict", action="store_true", help="only work the predictions out again")
    args = options.parse_args()
    path = RESULTS / "results.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"machine": machine(), "results": {}}
    results = known["results"]
    for name in chosen(args.only):
        if args.list:
            print(name, *CASES[name])
            continue
        todo = [n for n in args.actors if args.again or args.predict or f"{name}/{n}" not in results]
        if not todo:
            continue
        module, cfg = resolved(name)
        found = costs(name, module, cfg, args.again)
        for actors in todo:
            key = f"{name}/{actors}"
            told = predicted(module, cfg, found, actors)
            real = results.get(key, {}).get("measured") if args.predict else None
            if real is None:
                real = {} if "why" in told else measured(name, actors, args.seconds, args.warmup)
            results[key] = {"measured": real, "predicted": told}
            print(f"{key}: {off(results[key])}  {json.dumps(results[key])}", flush=True)
            RESULTS.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(known, indent=1) + "\n")
            (RESULTS / "results.md").write_text(report(results))
            (RESULTS / "plan.svg").write_text(drawing(results))


if __name__ == "__main__":
    main()
