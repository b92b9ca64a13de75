"""IMPALA's corrections under exact lag: the ablation of Espeholt et al. 2018 (section 5.2.2, figure E.1) on CartPole.

    python benchmarks/lag.py                       # 4 corrections x 5 lags x 3 seeds, serial runtime
    python benchmarks/lag.py --lags 30             # these lags anew; results of other lags are kept

Writes benchmarks/results/lag/results.json (every return), results.md and lag.png.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

import shoal

RESULTS = Path(__file__).parent / "results" / "lag"
CORRECTIONS = ("v-trace", "one-step", "epsilon", "none")


def measure(correction: str, lag: int, seed: int, steps: int) -> dict[str, Any]:
    """The mean return of the last 100 training episodes of one run."""
    began = time.perf_counter()
    run = shoal.train(
        "impala", env="CartPole-v1", runtime="serial", seed=seed, quiet=True, steps=steps, preset="none",
        actors=1, envs=8, unroll=16, learning_rate=shoal.linear(2e-3, 0), reward_scale=0.1, value_cost=0.25,
        entropy_cost=0.005, gamma=0.98, max_grad_norm=1.0, correction=correction, lag=lag,
    )  # fmt: skip
    assert run.report is not None, "it has ended"
    return {
        "correction": correction, "lag": lag, "seed": seed, "steps": run.report.steps,
        "return": run.report.episode_return, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def table(rows: list[dict[str, Any]], lags: list[int]) -> str:
    """Mean return over seeds, by correction and lag."""
    lines = ["| correction | " + " | ".join(f"lag {lag}" for lag in lags) + " |", "| --- |" + " --- |" * len(lags)]
    for correction in CORRECTIONS:
        cells = []
        for lag in lags:
            found = [r["return"] for r in rows if (r["correction"], r["lag"]) == (correction, lag)]
            cells.append(f"{mean(found):.0f} ({min(found):.0f} to {max(found):.0f})" if found else "")
        lines.append(f"| {correction} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], lags: list[int], path: Path) -> None:
    """Return against lag, a line for each correction, every seed as a point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for correction in CORRECTIONS:
        mine = [r for r in rows if r["correction"] == correction]
        points = [(lags.index(r["lag"]), r["return"]) for r in mine]
        means = [mean([y for x, y in points if x == i]) for i in range(len(lags)) if any(x == i for x, _ in points)]
        (line,) = axes.plot(range(len(means)), means, label=correction)
        axes.scatter([x for x, _ in points], [y for _, y in points], s=12, color=line.get_color())
    axes.set_xticks(range(len(lags)), [str(lag) for lag in lags])
    axes.set_xlabel("lag of the actors' parameters (updates)")
    axes.set_ylabel("return, mean of the last 100 episodes")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 10, 30, 100])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120_000)
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    before = RESULTS / "results.json"
    kept = json.loads(before.read_text(encoding="utf-8")) if before.exists() else []
    rows: list[dict[str, Any]] = [r for r in kept if r["lag"] not in args.lags]
    for lag in args.lags:
        for correction in CORRECTIONS:
            for seed in range(args.seeds):
                rows.append(measure(correction, lag, seed, args.steps))
                print(json.dumps(rows[-1]), flush=True)
                (RESULTS / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    lags = sorted({r["lag"] for r in rows})
    (RESULTS / "results.md").write_text(table(rows, lags), encoding="utf-8")
    draw(rows, lags, RESULTS / "lag.png")
    print(table(rows, lags))


if __name__ == "__main__":
    main()
