"""The table of the field, made anew: every system on one suite, after equal frames and after equal wall time.

    python benchmarks/table.py --slots 2                    every run of MinAtar's table that is missing, then the page
    python benchmarks/table.py --suite continuous           the second table
    python benchmarks/table.py --only DQN Breakout          those rows and tasks (parts of names will do)
    python benchmarks/table.py --frames 100000 --minutes 0 --seeds 0 --name minatar-100k --only Breakout
                                                            a shorter table, recorded under a name that says so
    python benchmarks/table.py --random                     measure random play, which counts as 0
    python benchmarks/table.py --check --only Breakout      a fresh seed against the committed interval
    python benchmarks/table.py --draw                       docs/table.md of what is recorded, run nothing

Rows, tasks and published figures are in ``table_suites.py``. A run is one seed of one row on one task with one budget,
in a process of its own that may be ended at any time: what is recorded in ``benchmarks/results/table/NAME`` (the
configuration, the raw learning curve, the returns of fresh episodes) is not run again. Runs of equal frames have one
core each, ``--slots`` of them at a time; those of equal wall time come after them, one at a time with all cores. Their
schedules end where the rate of the recorded run of equal frames says that the time will be over.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from common import HERE, RESULTS, Side, machine, refuse, run_side
from learning import thin
from recorded_runs import EPISODE_STEPS, Job, keep, kept, kept_seeds, returns_of, run_jobs
from table_scores import aggregate, fresh_interval, normalised
from table_suites import SUITES, Row, Suite, Task

KEPT = RESULTS / "table"
SEEDS = (0, 1, 2)
HOURS = 6.0  # after which a run is given up
HORIZON = 10  # times the frames, that schedules of a run by time end after where no rate is recorded
RANDOM_EPISODES = 1_000


def slug(name: str) -> str:
    return name.lower().replace("/", "-").replace(" ", "-")


@dataclass(frozen=True)
class Record:
    """A table's runs: the ``name`` of its folder, and what its two columns are equal in (0: no such column)."""

    name: str
    suite: str
    frames: int
    minutes: float

    @property
    def of(self) -> Suite:
        return SUITES[self.suite]

    @property
    def folder(self) -> Path:
        return KEPT / self.name

    def budgets(self) -> list[str]:
        """The columns of scores, by the names of their folders."""
        return [f"frames-{self.frames}"] * bool(self.frames) + [f"minutes-{self.minutes:g}"] * bool(self.minutes)

    def run(self, row: Row, task: Task, budget: str, seed: int) -> Path:
        """Where a run is recorded."""
        return self.folder / slug(row.name) / task.name / budget / str(seed)

    def results(self, row: Row, task: Task, budget: str) -> list[dict[str, Any]]:
        """What is recorded, seed by seed."""
        return kept_seeds(self.run(row, task, budget, 0).parent)

    def score(self, row: Row, result: dict[str, Any]) -> float:
        """The mean return of a run's evaluation, in the way of its row."""
        return mean(result["returns"]["greedy" if row.greedy else "sampled"])

    def normalised(self, row: Row, budget: str) -> dict[str, list[float]]:
        """Normalised scores of a row by task, of the tasks that have a published figure and random play measured."""
        out = {}
        for task in self.of.tasks:
            random = random_play(task)
            if task.best is not None and random is not None:
                scores = [self.score(row, result) for result in self.results(row, task, budget)]
                out[task.env] = [normalised(score, random["mean"], task.best) for score in scores]
        return out

    def write(self) -> None:
        """Say what this table is, for the page that is drawn of all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"suite": self.suite, "frames": self.frames, "minutes": self.minutes}
        (self.folder / "table.json").write_text(json.dumps(about) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, name: str) -> Record | None:
        path = KEPT / name / "table.json"
        return cls(name, **json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def chosen(suite: Suite, words: list[str]) -> Iterator[tuple[Row, Task]]:
    """The rows and tasks that ``words`` are parts of the names of (a row's whole name before parts of others); all
    without. Exits where a word names nothing."""
    rows, tasks = list(suite.rows), list(suite.tasks)
    named = {word: [r for r in rows if word.lower() in (r.name.lower(), slug(r.name), r.system)] for word in words}
    named = {w: f or [r for r in rows if w.lower() in r.name.lower() or w in slug(r.name)] for w, f in named.items()}
    found = {word: [t for t in tasks if word.lower() in t.env.lower()] for word in words}
    for word in words:
        if not named[word] and not found[word]:
            refuse(
                f"--only {word} names no row and no task; rows are {', '.join(r.name for r in rows)}, tasks "
                f"{', '.join(t.env for t in tasks)}"
            )
    some_rows = [row for row in rows if any(row in f for f in named.values())] or rows
    some_tasks = [task for task in tasks if any(task in f for f in found.values())] or tasks
    return ((row, task) for row in some_rows for task in some_tasks)


def missing(record: Record, words: list[str], seeds: list[int]) -> list[tuple[Row, Task, str, int]]:
    """The runs that are not recorded: equal frames before equal wall time, first seeds before second ones."""
    pairs = list(chosen(record.of, words))
    runs = [(row, task, budget, seed) for budget in record.budgets() for seed in seeds for row, task in pairs]
    return [run for run in runs if kept(record.run(*run)) is None]


# ------------------------------------------------------------------------------------------------ one run
def horizon(record: Record, row: Row, task: Task) -> int:
    """Agent steps after which schedules of a run by time end: those that its seconds make at the recorded rate."""
    rates = [r["steps"] / r["seconds"] for r in record.results(row, task, f"frames-{record.frames}")]
    return round(mean(rates) * 60 * record.minutes) if rates else HORIZON * (record.frames or record.of.frames)


def play(record: Record, row: Row, task: Task, budget: str, seed: int) -> None:
    """Train and evaluate one run, and record it. Called in a process of its own."""
    timed = budget.startswith("minutes")
    seconds = 60 * record.minutes if timed else None
    steps = horizon(record, row, task) if timed else record.frames
    how = (record, row, task, steps, seed, seconds)
    with tempfile.TemporaryDirectory() as scratch:
        result, files = (theirs if row.peer else ours)(*how, Path(scratch))
        about = {"row": row.name, "system": row.system, "env": task.env, "seed": seed, "budget": budget}
        cores = len(os.sched_getaffinity(0))
        keep(record.run(row, task, budget, seed), {**about, **result, "cores": cores, "machine": machine()}, files)


Left = tuple[dict[str, Any], dict[str, Path | str]]  # result, files


def ours(
    record: Record, row: Row, task: Task, steps: int, seed: int, seconds: float | None, scratch: Path
) -> Left:  # fmt: skip
    """A run of Shoal."""
    import shoal

    run = shoal.train(
        row.system, env=task.env, preset=record.of.preset, steps=steps, seed=seed, run_dir=scratch / "run",
        seconds=seconds, **row.fields,
    )  # fmt: skip
    report = run.report
    assert report is not None
    if report.reason not in ("steps", "seconds"):
        sys.exit(f"{row.name} on {task.env} ended by {report.reason}: nothing is recorded")
    played = returns_of(run.policy(), record.of.episodes, seed)
    returns = {way: [float(f"{x:.6g}") for x in found] for way, found in played.items()}
    thin(run.path, scratch / "curve.csv")
    config = (run.path / "config.json").read_text(encoding="utf-8")
    result = {"steps": report.steps, "updates": report.updates, "seconds": report.seconds, "returns": returns}
    return result, {"curve.csv": scratch / "curve.csv", "config.json": config}


def theirs(
    record: Record, row: Row, task: Task, steps: int, seed: int, seconds: float | None, scratch: Path
) -> Left:  # fmt: skip
    """A run of a peer, by its script, which evaluates in the way of the row alone."""
    words = (row.system, task.env, str(steps), str(seed), "inf", str(seconds or "inf"), str(record.of.episodes))
    way = "greedy" if row.greedy else "sampled"
    figures = run_side(Side(row.peer, "peers/train_sb3.py"), (*words, way), timeout=HOURS * 3600)
    if figures is None or "error" in figures:
        sys.exit(f"{row.name} on {task.env}: {figures['error'] if figures else 'not installed'}: nothing is recorded")
    rows = ["steps,seconds,episode_return", *(",".join(f"{x:.8g}" for x in point) for point in figures["curve"])]
    result = {"steps": figures["steps"], "seconds": figures["seconds"], "returns": {way: figures["evaluation"]}}
    return result, {"curve.csv": "\n".join(rows) + "\n"}


# ------------------------------------------------------------------------------------------------ random play
def random_play(task: Task) -> dict[str, float] | None:
    """What random play scores, as measured; None if it is not."""
    path = KEPT / "random" / f"{slug(task.env)}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def measure_random(task: Task, episodes: int) -> dict[str, float]:
    """Play ``episodes`` with actions drawn uniformly from the environment's own space."""
    import gymnasium

    from shoal.envs.options import EnvOptions
    from shoal.envs.registry import find

    find(task.env, EnvOptions())  # imports what registers it
    env, returns = gymnasium.make(task.env), []
    env.action_space.seed(0)
    for episode in range(episodes):
        env.reset(seed=episode)
        done, total, steps = False, 0.0, 0
        while not done and steps < EPISODE_STEPS:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            done, total, steps = terminated or truncated, total + float(reward), steps + 1
        returns.append(total)
    error = float(np.std(returns, ddof=1) / np.sqrt(episodes))
    return {"mean": float(np.mean(returns)), "standard_error": error, "episodes": episodes}


# ------------------------------------------------------------------------------------------------ the check
def seed_scores(record: Record, row: Row, budget: str, envs: list[str]) -> dict[int, float]:
    """The interquartile mean over ``envs`` of each seed that is recorded on all of them."""
    found: dict[int, list[float]] = {}
    for task in record.of.tasks:
        random = random_play(task)
        if task.env in envs and task.best is not None and random is not None:
            for result in record.results(row, task, budget):
                score = normalised(record.score(row, result), random["mean"], task.best)
                found.setdefault(result["seed"], []).append(score)
    whole = {seed: aggregate({"": scores}) for seed, scores in found.items() if len(scores) == len(envs)}
    return {seed: one.iqm for seed, one in whole.items() if one is not None}


def verdict(name: str, fresh: float | None, committed: list[float]) -> tuple[bool, str]:
    """Whether a fresh seed is no worse than those committed, and the sentence about it."""
    interval = fresh_interval(committed)
    if fresh is None:
        return False, f"{name}: the fresh seed was not run on every task"
    if interval is None:
        return True, f"{name}: {fresh:.3f}, nothing to compare with ({len(committed)} seeds committed, two are needed)"
    low, high = interval
    where = "within" if low <= fresh <= high else "below" if fresh < low else "above"
    return fresh >= low, f"{name}: {fresh:.3f} is {where} [{low:.3f}, {high:.3f}] of {len(committed)} committed seeds"


def check(record: Record, words: list[str], seed: int, slots: list[list[int]]) -> int:
    """Run a fresh seed of what is committed, apart from it, and compare; returns the exit code."""
    budget = f"frames-{record.frames}"
    pairs = [(row, task) for row, task in chosen(record.of, words) if record.results(row, task, budget)]
    if not pairs:
        refuse(f"nothing of that is recorded in {record.folder}: there is nothing to check against")
    apart = Record(f"{record.name}-check", record.suite, record.frames, 0)
    runs = [(row, task, budget, seed) for row, task in pairs if kept(apart.run(row, task, budget, seed)) is None]
    run_jobs([job(apart, *run) for run in runs], slots, HOURS)
    good = True
    for row in dict.fromkeys(row for row, _ in pairs):
        envs = [task.env for r, task in pairs if r is row and task.best is not None]
        committed = seed_scores(record, row, budget, envs)
        committed.pop(seed, None)
        fine, told = verdict(row.name, seed_scores(apart, row, budget, envs).get(seed), list(committed.values()))
        good = good and fine
        print(told, flush=True)
    return 0 if good else 1


def job(record: Record, row: Row, task: Task, budget: str, seed: int) -> Job:
    """The process that plays a run."""
    words = (record.name, record.suite, str(record.frames), str(record.minutes), row.name, task.env, budget, str(seed))
    return Job(
        f"{row.name} on {task.env}, {budget}, seed {seed}",
        (sys.executable, str(HERE / "table.py"), "--play", *words),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="minatar")
    parser.add_argument("--name", help="of the folder of results; default: the suite's, which is for its own budgets")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="rows, tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--slots", type=int, default=1, help="runs at a time, on one core each")
    parser.add_argument("--frames", type=int, help="agent steps of the first column; 0: none")
    parser.add_argument("--minutes", type=float, help="wall time of the second column; 0: none")
    parser.add_argument("--random", action="store_true", help="measure random play")
    parser.add_argument(
        "--check", action="store_true", help="a fresh seed (of --seeds, the first that is not recorded)"
    )
    parser.add_argument("--draw", action="store_true", help="draw the page, run nothing")
    parser.add_argument("--list", action="store_true", help="rows, tasks and what would be run")
    parser.add_argument("--play", nargs=8, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        name, suite, frames, minutes, row, env, budget, seed = args.play
        record = Record(name, suite, int(frames), float(minutes))
        return play(record, record.of.row(row), record.of.task(env), budget, int(seed))
    suite = SUITES[args.suite]
    frames = suite.frames if args.frames is None else args.frames
    minutes = suite.minutes if args.minutes is None else args.minutes
    record = Record(args.name or args.suite, args.suite, frames, minutes)
    if not re.fullmatch(r"\w[\w.-]*", record.name) or record.name == "random":
        parser.error(f"--name must be letters, digits, dots and dashes (and not random), found {record.name!r}")
    if min(args.seeds) < 0:
        parser.error(f"--seeds must not be negative, found {min(args.seeds)}")
    if frames < 0 or minutes < 0 or not (frames or minutes):
        parser.error("--frames and --minutes must not be negative, and not both 0: there would be no column")
    own = frames in (suite.frames, 0) and minutes in (suite.minutes, 0)
    if record.name in SUITES and (record.name != args.suite or not own):
        parser.error(f"--name {record.name} is for {record.name}'s own frames and minutes: give another --name")
    before = Record.read(record.name)
    if before is not None and record.name not in SUITES and before != record:
        parser.error(f"--name {record.name} is recorded as {before}: give another --name")
    cores = sorted(os.sched_getaffinity(0))
    if not 0 < args.slots <= len(cores):
        parser.error(f"--slots must be 1 to {len(cores)}, the cores that there are, not {args.slots}")
    slots = [[core] for core in cores[: args.slots]]
    runs = missing(record, args.only, args.seeds)
    if args.list:
        for task in suite.tasks:
            print(f"{task.env}: {task.best if task.best is not None else 'no figure'} ({task.source})")
        print("rows: " + ", ".join(row.name for row in suite.rows))
        print(f"{len(runs)} runs are missing")
    elif args.random:
        for task in dict.fromkeys(task for _, task in chosen(suite, args.only)):
            path = KEPT / "random" / f"{slug(task.env)}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(measure_random(task, RANDOM_EPISODES)) + "\n", encoding="utf-8")
            print(f"{task.env}: {path.read_text(encoding='utf-8').strip()}", flush=True)
    elif args.check:
        sys.exit(check(record, args.only, args.seeds[0] if args.seeds != list(SEEDS) else max(SEEDS) + 1, slots))
    else:
        if not args.draw:
            if record.name not in SUITES:
                record.write()
            run_jobs([job(record, *run) for run in runs if run[2].startswith("frames")], slots, HOURS)
            run_jobs([job(record, *run) for run in runs if run[2].startswith("minutes")], [cores], HOURS)
        from table_page import draw

        draw()


if __name__ == "__main__":
    main()
