"""Population-based training against as many independent random configurations, at equal total steps.

    python benchmarks/population.py                                   # PPO on CartPole
    python benchmarks/population.py --only lunarlander-evaluated      # the real one: an hour of a core
    python benchmarks/population.py --only cartpole --repetitions 3 --steps 20000

In each repetition both sides begin with the same members: hyperparameters drawn from the same intervals by the same
seed, none of them the preset's. One is a population that copies and perturbs (truncation); of the other nobody ever has
a turn, so that its members are independent runs, in the same slices. Each side then gives the member with the highest
score, and its score here is the mean return of that member's policy over fresh evaluation episodes: greedy where
members are compared by greedy episodes, else with actions sampled as in training. Reported are the mean over
repetitions, its 95 % bootstrap interval, that of the difference of the pairs (drawn with replacement), and the
probability that a population scores higher than a random search.
Writes results.json, results.md and TASK.png to benchmarks/results/population; repetitions of the same task that are
there are not made again.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from common import RESULTS, publish, table

from shoal import systems
from shoal.analysis import stats
from shoal.machine import cores
from shoal.run import Run
from shoal.run.population.hyperparameters import interval_of
from shoal.run.population.training import PopulationRun, Setup, member_path
from shoal.settings.config import resolve
from shoal.settings.schedule import plain

ARMS = ("population", "random search")
FOLDER = RESULTS / "population"


@dataclass(frozen=True)
class Task:
    """steps: of each member; interval: between two of its turns; warm_up: steps before its first; space: the interval
    of each hyperparameter; evaluate: greedy episodes after each slice, by which members are compared (0: by the
    slice's training episodes, of which the short ones are over-represented); episodes: of the last evaluation."""

    system: str
    env: str
    steps: int
    interval: int
    space: dict[str, tuple[float, float]]
    fields: dict[str, Any] = field(default_factory=dict)
    size: int = 8
    episodes: int = 50
    warm_up: int = 0
    evaluate: int = 0


SPACE = {"learning_rate": (1e-5, 1e-1), "entropy_cost": (1e-4, 1e-1), "clip": (0.02, 1.0)}
# Eight environments: a slice has room for whole episodes, long ones too.
LUNARLANDER: dict[str, Any] = dict(
    envs=8, unroll=128, epochs=4, minibatches=4, gamma=0.99, gae_lambda=0.97, reward_scale=0.05, hidden=(64, 64)
)
TASKS = {
    "cartpole": Task(
        "recurrent-ppo", "CartPole-v1", 48_000, 8_000, SPACE,
        dict(envs=8, unroll=64, epochs=3, minibatches=4, gamma=0.98, normalise_reward=True),
    ),
    "lunarlander": Task(  # few turns, and late: the first scores say little
        "recurrent-ppo", "LunarLander-v3", 400_000, 40_000, SPACE, LUNARLANDER, warm_up=100_000,
    ),
    "lunarlander-evaluated": Task(  # chosen with the seeds 100 to 103
        "recurrent-ppo", "LunarLander-v3", 300_000, 20_000, SPACE, LUNARLANDER,
        episodes=100, warm_up=100_000, evaluate=20,
    ),
}  # fmt: skip


def setup(task: Task, arm: str, seed: int) -> Setup:
    """One side of a repetition."""
    module = systems.load(task.system)
    given = {"env": task.env, "actors": 1, "device": "cpu", "steps": task.steps, **task.fields}
    resolved = resolve(module, "none", None, given, source="argument", name=task.system)
    values = plain(resolved.values())
    space = {name: interval_of(name, (low * high) ** 0.5, low, high) for name, (low, high) in task.space.items()}
    rules = {"interval": task.interval, "warm_up": task.warm_up if arm == ARMS[0] else task.steps + 1}
    made = Setup(
        task.system, values, resolved.origins, "none", space, task.size, rules, task.steps, cores(), seed,
        evaluate=task.evaluate,
    )  # fmt: skip
    rng = np.random.default_rng([seed, 1])  # member 0 too: else it would have the configured values
    first = {name: one.draw(rng) for name, one in made.interval_space().items()}
    return replace(made, values={**values, **first})


def run(task: Task, arm: str, seed: int, path: Path) -> dict[str, Any]:
    """Train one side, and evaluate the member that it gives."""
    began = time.monotonic()
    ended = PopulationRun.begin(path, setup(task, arm, seed)).go()
    if ended.reason != "steps":
        raise SystemExit(f"{arm}, seed {seed}, was {ended.reason}: nothing is kept of this repetition")
    trained = time.monotonic() - began
    policy = Run.open(member_path(path, ended.best.index)).policy()
    returns = policy.evaluate(task.episodes, seed=10_000 + seed, greedy=task.evaluate > 0)
    with open(path / "scores.csv", newline="", encoding="utf-8") as file:
        rows = [(int(r["member"]), int(r["step"]), float(r["score"])) for r in csv.DictReader(file) if r["score"]]
    return {
        "arm": arm, "seed": seed, "score": mean(returns), "training_score": ended.best.score, "copies": ended.copies,
        "values": ended.best.values, "seconds": round(trained, 1), "curve": best_so_far(rows, task),
    }  # fmt: skip


def best_so_far(rows: Sequence[tuple[int, int, float]], task: Task) -> list[list[float]]:
    """(steps of each member, the best member's score there) from rows (member, step, score)."""
    ends = range(task.interval, task.steps + 1, task.interval)
    found = [(end, [s for _, step, s in rows if end <= step < end + task.interval]) for end in ends]
    return [[float(end), max(scores)] for end, scores in found if scores]


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over repetitions, and intervals that say how sure they are."""
    of = {arm: np.array([r["score"] for r in runs if r["arm"] == arm]) for arm in ARMS}
    differences = of[ARMS[0]] - of[ARMS[1]]
    out: dict[str, Any] = {}
    for name, values in (*of.items(), ("difference", differences)):
        low, high = stats.bootstrap([values], np.mean)
        out[name] = {"mean": float(values.mean()), "low": float(low), "high": float(high)}
    out["probability"] = stats.probability_of_improvement([of[ARMS[0]]], [of[ARMS[1]]])
    return out


def shown(task: Task, runs: Sequence[dict[str, Any]]) -> str:
    """The table of a task."""
    found = summary(runs)
    rows: list[list[Any]] = []
    for arm in ARMS:
        mine = [r for r in runs if r["arm"] == arm]
        scores = ", ".join(f"{r['score']:.0f}" for r in mine)
        rows.append([arm, *_interval(found[arm]), scores, mean(float(r["copies"]) for r in mine)])
    rows.append(["difference", *_interval(found["difference"]), "", ""])
    count = len(runs) // 2
    words = (
        f"{task.system} on {task.env}: {task.size} members of {task.steps:,} steps, a turn every {task.interval:,}"
        f"{f' after the first {task.warm_up:,}' if task.warm_up else ''}"
        f"{f', compared by {task.evaluate} greedy episodes' if task.evaluate else ''}; "
        f"{count} repetitions. P(population > random search) = {found['probability']:.2f}."
    )
    return words + "\n\n" + table(["", "score", "95 % interval", "each repetition", "copies"], rows)


def _interval(found: dict[str, float]) -> tuple[str, str]:
    return f"{found['mean']:.1f}", f"{found['low']:.1f} to {found['high']:.1f}"


def draw(task: Task, runs: Sequence[dict[str, Any]], path: Path) -> None:
    """The best member's score against steps: each repetition, and the mean of both sides."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for i, arm in enumerate(ARMS):
        curves = [r["curve"] for r in runs if r["arm"] == arm]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=f"C{i}", alpha=0.25, linewidth=0.8)
        ends = sorted({end for curve in curves for end, _ in curve})
        means = [mean(dict(map(tuple, c))[e] for c in curves if e in dict(map(tuple, c))) for e in ends]
        axes.plot(ends, means, color=f"C{i}", linewidth=2, label=f"{arm} ({len(curves)})")
    axes.set(xlabel="environment steps of each member", ylabel="score of the best member", title=task.env)
    axes.legend()
    figure.savefig(path, dpi=110)


def kept(name: str, task: Task) -> list[dict[str, Any]]:
    """The runs of the same task that are recorded; a later start goes on from them."""
    path = FOLDER / "results.json"
    figures = json.loads(path.read_text()).get(name, {}).get("figures", {}) if path.exists() else {}
    if not figures or _as_recorded(Task(**figures["task"])) != _as_recorded(task):
        return []
    return list(figures["runs"])


def _as_recorded(task: Task) -> dict[str, Any]:
    """A task as JSON has it: a record from before a field of it was added has that field's default."""
    return dict(json.loads(json.dumps(asdict(task))))


def measure(name: str, task: Task, seeds: Sequence[int], smoke: bool) -> None:
    """Both sides in turn, repetition after repetition; what is there is written after each."""
    runs = [] if smoke else kept(name, task)
    there = {r["seed"] for r in runs}
    for seed in (s for s in seeds if s not in there):
        for arm in ARMS:
            with tempfile.TemporaryDirectory() as scratch:
                runs.append(run(task, arm, seed, Path(scratch) / "run"))
            told = {k: v for k, v in runs[-1].items() if k != "curve"}
            print(json.dumps(told), flush=True)
        if len(runs) > len(ARMS) or smoke:
            figures = {"task": asdict(task), "runs": runs}
            publish("population", __doc__ or "", {name: shown(task, runs)}, {name: figures}, smoke)
            if not smoke:
                draw(task, runs, FOLDER / f"{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TASKS), default="cartpole", help="the task")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first repetition")
    parser.add_argument("--steps", type=int, help="of each member, instead of the task's")
    parser.add_argument("--smoke", action="store_true", help="a few seconds: does it work? writes no results")
    args = parser.parse_args()
    task = TASKS[args.only]
    if args.steps:
        task = replace(task, steps=args.steps)
    if args.smoke:
        task = replace(task, steps=1_000, interval=500, size=2, episodes=2, warm_up=0)
    measure(args.only, task, range(args.first, args.first + (1 if args.smoke else args.repetitions)), args.smoke)


if __name__ == "__main__":
    main()
