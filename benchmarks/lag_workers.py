"""Update lag and score of A3C against its number of workers: the policy-lag problem that IMPALA answers.

    python benchmarks/lag_workers.py                      # 1, 2, 4, 8, 16 workers, three seeds, 20,000 steps each
    python benchmarks/lag_workers.py --workers 1 4 --seeds 1 --steps 20000

Every run takes the same number of environment steps, over all its workers, with the same hyperparameters. The update
lag is the number of steps that other workers added between a worker's copy of the parameters and its own step: its
median, 95th percentile and maximum are means over the rows of the run. The score is the mean return of the last 100
training episodes, and that of 30 greedy evaluation episodes. Writes results.json, results.md and lag_workers.png to
benchmarks/results/lag_workers.

How long workers wait for a processor, and so the lag, depends on the machine: where there are more workers than cores,
a worker that is off its core holds an old copy while all others add.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from common import machine

import shoal
from shoal.records.metric_files import read_curve

RESULTS = Path(__file__).parent / "results" / "lag_workers"
LAGS = ("update_lag_p50", "update_lag_p95", "update_lag_max")
SETTINGS: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", envs=1, unroll=5, gamma=0.98, reward_scale=0.1, value_cost=0.25,
    learning_rate=2e-3, optimiser_eps=1e-2, entropy_cost=0.01, device="cpu",
)  # fmt: skip


def measure(workers: int, seed: int, steps: int) -> dict[str, Any]:
    """One run of so many workers."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        run = shoal.train("a3c", actors=workers, seed=seed, steps=steps, quiet=True, run_dir=path, **SETTINGS)
        report, rows = run.report, read_curve(path)
        greedy = mean(run.policy().evaluate(30, seed=10_000 + seed))
    assert report is not None
    lags = {name: mean(found) for name in LAGS if (found := [r[name] for r in rows if name in r])}
    return {
        "workers": workers, "seed": seed, "steps": report.steps, "updates": report.updates,
        **{name: round(value, 2) for name, value in lags.items()}, "return": report.episode_return,
        "greedy_return": greedy, "seconds": round(report.seconds, 1),
    }  # fmt: skip


def table(rows: list[dict[str, Any]], workers: list[int]) -> str:
    """Means over seeds."""
    lines = [
        "| workers | update lag, median | 95 % | maximum | return, training | return, greedy |",
        "| --- |" + " --- |" * 5,
    ]
    for count in workers:
        mine = [r for r in rows if r["workers"] == count]
        cells = [f"{mean(r[name] for r in mine):.1f}" for name in LAGS]
        for name in ("return", "greedy_return"):
            found = [r[name] for r in mine]
            cells.append(f"{mean(found):.0f} ({min(found):.0f} to {max(found):.0f})")
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], workers: list[int], path: Path) -> None:
    """Lag and score against workers: means as lines, every seed as a point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)

    def line(axes: Any, label: str, value: Callable[[dict[str, Any]], float]) -> None:
        of = {w: [value(r) for r in rows if r["workers"] == w] for w in workers}
        (drawn,) = axes.plot(workers, [mean(of[w]) for w in workers], label=label)
        points = [(w, y) for w in workers for y in of[w]]
        axes.scatter(*zip(*points, strict=True), s=12, color=drawn.get_color())

    for name in LAGS:
        line(left, name.removeprefix("update_lag_"), lambda r, name=name: r[name])  # type: ignore[misc]
    line(right, "training, last 100 episodes", lambda r: r["return"])
    line(right, "greedy, 30 episodes", lambda r: r["greedy_return"])
    left.set(ylabel="update lag (steps that others added)", yscale="symlog")
    right.set(ylabel="return")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [str(w) for w in workers])
        axes.set_xlabel("workers")
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        for workers in args.workers:
            rows.append(measure(workers, seed, args.steps))
            print(json.dumps(rows[-1]), flush=True)
            facts = {"machine": machine(), "settings": SETTINGS, "runs": rows}
            (args.output / "results.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (args.output / "results.md").write_text(table(rows, args.workers), encoding="utf-8")
    draw(rows, args.workers, args.output / "lag_workers.png")
    print(table(rows, args.workers))


if __name__ == "__main__":
    main()
