"""Continuous control beside Stable-Baselines3, on Gymnasium's MuJoCo tasks and on EnvPool's of the DeepMind Control
Suite: equal steps, three seeds each.

    SHOAL_PEERS=DIR python benchmarks/continuous.py HalfCheetah-v5 d4pg sb3-td3 --steps 100000
    SHOAL_PEERS=DIR taskset -c 0 python benchmarks/continuous.py CartpoleSwingup-v1 d4pg sb3-td3 --steps 50000
    SHOAL_PEERS=DIR python benchmarks/continuous.py Hopper-v5 d4pg sb3-td3 --threads 2 --seconds 2000 --results DIR
    python benchmarks/continuous.py HalfCheetah-v5 --summary --reach 4000

``$SHOAL_PEERS/sb3`` is a virtual environment with stable-baselines3, gymnasium[mujoco] and envpool. A system of Shoal
plays the preset that ``--preset auto`` chooses. Under ``taskset`` each side has the cores that it gives, so that
seconds can be compared while something else runs; the result says how many there were.
recurrent-ppo and sb3-ppo have equal hyperparameters: one environment, 2,048 steps per update, 10 epochs, minibatches of
64, Adam 3e-4 falling linearly to 0, clip 0.2, lambda 0.95, separate tanh 64-64 networks with orthogonal initialisation,
observations and rewards normalised by running statistics. sb3-td3 and sb3-ddpg are the library's own defaults (networks
of 400-300, batches of 256, Adam 1e-3, one update per step) with Gaussian noise of 0.1 and 10,000 steps of random play,
as its zoo sets them for MuJoCo and Pendulum. Kept per seed: the configuration (of
Shoal), the machine, the learning curve (mean raw return of the last 100 training episodes against steps and seconds),
and 20 fresh episodes of the deterministic policy.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

from common import machine, table

RESULTS = Path(__file__).parent / "results" / "mujoco"
PEER = Path(__file__).parent / "peers" / "train_sb3.py"

SHOAL = """
import json, sys
from pathlib import Path
import shoal
from shoal.records.metric_files import read_curve

name, env_id, steps, seed, until, seconds, run_dir = sys.argv[1:]
limits = {"until_return": float(until), "seconds": float(seconds)}
run = shoal.train(name, env=env_id, steps=int(steps), seed=int(seed), run_dir=run_dir,
                  **{limit: value for limit, value in limits.items() if value < float("inf")})
evaluation = run.policy().evaluate(20, seed=10_000 + int(seed))
rows = [r for r in read_curve(Path(run_dir)) if "episode_return" in r]
print(json.dumps({"steps": run.report.steps, "seconds": run.report.seconds,
                  "training_return": run.report.episode_return, "evaluation": list(evaluation),
                  "config": run.config,
                  "curve": [(int(r["steps"]), r["seconds"], r["episode_return"]) for r in rows]}))
"""


def run(env: str, name: str, steps: int, seed: int, until: float, seconds: float, threads: int, home: Path) -> None:
    """Train and evaluate one side with one seed, and keep what it left."""
    peer = name.startswith("sb3-")
    python = str(Path(os.environ["SHOAL_PEERS"]) / "sb3" / "bin" / "python") if peer else sys.executable
    with tempfile.TemporaryDirectory() as scratch:
        words = [name.removeprefix("sb3-"), env, str(steps), str(seed), str(until), str(seconds)]
        how = [str(PEER)] if peer else ["-c", SHOAL]
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads if peer else 1)}
        command = [python, *how, *words, *([] if peer else [f"{scratch}/run"])]
        out = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
    result = json.loads(out.splitlines()[-1])
    curve = result.pop("curve")
    if peer:
        result["threads"] = threads
    result["cores"] = len(os.sched_getaffinity(0))
    result["machine"] = {k: v for k, v in machine().items() if k in ("date", "cpu", "isa", "torch")}
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{env}-{name}-{seed}.csv").open("w", newline="") as file:
        thin = [*curve[:: max(1, len(curve) // 200)], *curve[-1:]]
        csv.writer(file).writerows([("steps", "seconds", "episode_return"), *thin])
    (home / f"{env}-{name}-{seed}.json").write_text(json.dumps(result) + "\n")
    print(f"{name} seed {seed}: score {mean(result['evaluation']):.0f}, training {result['training_return']:.0f}, "
          f"{result['steps']} steps in {result['seconds']:.0f} s", flush=True)  # fmt: skip


def sides(home: Path, env: str) -> list[str]:
    """Whatever has results on this environment."""
    return sorted({path.stem.removeprefix(f"{env}-").rpartition("-")[0] for path in home.glob(f"{env}-*.json")})


def kept(home: Path, env: str, name: str, suffix: str) -> list[Path]:
    """The files of a side, seed by seed."""
    found = {path.stem.rpartition("-")[2]: path for path in home.glob(f"{env}-{name}-*{suffix}")}
    return [found[seed] for seed in sorted(filter(str.isdigit, found), key=int)]


def spread(values: list[float]) -> str:
    each = " / ".join(f"{x:.0f}" for x in values)
    return f"{each} (mean {mean(values):.0f} ± {stdev(values):.0f})" if len(values) > 1 else each


def equal_time(home: Path, env: str) -> float | None:
    """Mean seconds of the side that was done first, of those that were timed; None unless there are several."""
    spent = [
        mean(json.loads(path.read_text()).get("seconds", math.inf) for path in kept(home, env, name, ".json"))
        for name in sides(home, env)
    ]
    timed = [seconds for seconds in spent if seconds < math.inf]
    return min(timed) if len(timed) > 1 else None


def after(curve: list[dict[str, float]], seconds: float) -> float | None:
    """Mean return of the last 100 training episodes by then, or by the end if that came first; None before any."""
    return next((row["episode_return"] for row in reversed(curve) if row["seconds"] <= seconds), None)


def reached(curve: list[dict[str, float]], mark: float) -> str:
    """Seconds (and steps) until the mean return of the last 100 training episodes reached ``mark``."""
    row = next((row for row in curve if row["episode_return"] >= mark), None)
    return "never" if row is None else f"{row['seconds']:.0f} ({row['steps'] / 1000:.0f}K)"


def read(path: Path) -> list[dict[str, float]]:
    """A learning curve that was kept, row by row."""
    with path.open() as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def summary(home: Path, env: str, mark: float | None = None, equal: float | None = None) -> None:
    """Table and plot of what is recorded; with a ``mark``, when each run's training episodes reached it. equal: seconds
    by which all sides are compared; None: when the first is done."""
    from matplotlib.figure import Figure

    equal = equal or equal_time(home, env)
    header: tuple[str, ...] = ("side", "steps", "last 100 training episodes", "evaluation (20 episodes)", "seconds")
    if equal is not None:
        header += (f"training episodes up to {equal:.0f} s",)
    if mark is not None:
        header += (f"seconds (steps) to {mark:,.0f}",)
    rows: list[list[str]] = []
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for i, name in enumerate(sides(home, env)):
        results = [json.loads(path.read_text()) for path in kept(home, env, name, ".json")]
        curves = {path: read(path) for path in kept(home, env, name, ".csv")}
        cells = [
            name, f"{results[0]['steps']:,}", spread([r["training_return"] for r in results]),
            spread([mean(r["evaluation"]) for r in results]),
            " / ".join(f"{r['seconds']:.0f}" if "seconds" in r else "-" for r in results),
        ]  # fmt: skip
        if equal is not None:
            timed = [curve for curve in curves.values() if "seconds" in curve[0]]
            cells.append(spread([now for curve in timed if (now := after(curve, equal)) is not None]) or "-")
        if mark is not None:
            cells.append(" / ".join(reached(c, mark) if "seconds" in c[0] else "-" for c in curves.values()))
        rows.append(cells)
        for path, curve in curves.items():
            for axis, x in zip(axes, ("steps", "seconds"), strict=True):
                if x in curve[0]:
                    label = name if path.stem.endswith("-0") else None
                    axis.plot([r[x] for r in curve], [r["episode_return"] for r in curve], f"C{i}", label=label)
    told = table(header, rows)
    (home / f"{env}.md").write_text(told + "\n")
    print(told)
    axes[0].set(xlabel="environment steps", ylabel="mean return of the last 100 episodes", title=env)
    axes[1].set(xlabel="seconds", title="each line one seed")
    axes[0].legend()
    figure.savefig(home / f"{env}.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("sides", nargs="*", help="systems of Shoal, sb3-ppo, sb3-td3, sb3-ddpg")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--until", type=float, default=float("inf"), help="end at this mean of 100 training episodes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many seconds of training")
    parser.add_argument("--threads", type=int, default=1, help="of a peer; Shoal has processes instead")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for what is recorded")
    parser.add_argument("--summary", action="store_true", help="table and plot of what is recorded")
    parser.add_argument("--reach", type=float, help="also tell when training episodes reached this mean")
    parser.add_argument("--equal-time", type=float, help="compare at so many seconds, not when the first side is done")
    args = parser.parse_args()
    if any(name.startswith("sb3-") for name in args.sides) and "SHOAL_PEERS" not in os.environ:
        raise SystemExit("set $SHOAL_PEERS to the directory with the virtual environment 'sb3'")
    for seed in args.seeds:
        for name in args.sides:
            run(args.env, name, args.steps, seed, args.until, args.seconds, args.threads, args.results)
    if args.summary:
        summary(args.results, args.env, args.reach, args.equal_time)


if __name__ == "__main__":
    main()
