"""Every task by the preset that Shoal chooses by itself: which (system, task) pairs reach their mark, and which do not.

    python benchmarks/suite.py                       every run that is missing, cheap kinds first
    python benchmarks/suite.py --only toy_text dqn   those of a kind, a system or a task
    python benchmarks/suite.py --cores 0 1           two slots of one core each
    python benchmarks/suite.py --early               end each run when its training is at the mark for long
    python benchmarks/suite.py --table               write the table of what is recorded, run nothing
    python benchmarks/suite.py --list                the tasks, their marks and where these come from

Tasks and marks are in ``suite_tasks.py``. A run is one seed of one pair, in a process of its own that may be ended at
any time: what is recorded in ``benchmarks/results/suite/SYSTEM/ENV/SEED`` (configuration, raw learning curve, result)
is not run again, unless with ``--again`` or where its preset has other values since. The score is the mean return of
fresh episodes of the policy that the system evaluates by default; the other one, greedy or sampled, stands beside it.

With ``--early`` a run ends where its training is at the mark, twice as many steps in as when it first was: a quick
look at many pairs. It is evaluated in the same way, and the table says after how many steps it ended. It does not show
what the rest of the preset's steps would have made of it.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from common import RESULTS, machine, refuse, table
from learning import thin
from recorded_runs import Job, changed, keep, kept, kept_seeds, parser, returns_of, run_jobs
from suite_tasks import TASKS, Task

KEPT = RESULTS / "suite"
SEEDS = (100, 101, 102)
HOURS = 3.0  # after which a run is given up
Pair = tuple[str, Task, str]  # kind, task, system


def pairs(words: list[str]) -> Iterator[Pair]:
    """The (kind, task, system) that each of ``words`` is a part of the name of; all without."""
    for kind, tasks in TASKS.items():
        for task in tasks:
            for system in task.systems:
                names = (kind, task.env, system)
                if all(any(word == name or (word in name and name == task.env) for name in names) for word in words):
                    yield kind, task, system


def folder(task: Task, system: str, seed: int) -> Path:
    """Where a run is recorded."""
    return KEPT / system / task.env.replace("/", "-") / str(seed)


def missing(words: list[str], seeds: list[int], again: bool) -> list[tuple[Task, str, int]]:
    """The runs that are not recorded by today's values of their preset, the first seed of every pair before the second
    of any. Exits if ``words`` name no pair."""
    if not any(pairs(words)):
        refuse(f"--only {' '.join(words)} names no kind, system and task together; --list shows what there is")
    found = [(task, system, seed) for seed in seeds for _, task, system in pairs(words)]
    return found if again else [run for run in found if kept(folder(*run)) is None or older(folder(*run))]


def older(path: Path) -> list[str]:
    """Settings of the run recorded in ``path`` that its preset has other values of today."""
    config = path / "config.json"
    return changed(json.loads(config.read_text(encoding="utf-8"))) if config.exists() else []


class Held:
    """Observer of a run, true where the mean return of 100 training episodes is at ``mark``, twice as many steps into
    the run as when it first was. (A policy that has only just got there may be worth little when it is greedy.)"""

    def __init__(self, mark: float) -> None:
        self.mark, self.first = mark, math.inf

    def __call__(self, metrics: dict[str, float]) -> bool:
        reached = metrics.get("episode_return", math.nan) >= self.mark  # not before the first episode's end
        if reached:
            self.first = min(self.first, metrics["steps"])
        return reached and metrics["steps"] >= 2 * self.first


def play(task: Task, system: str, seed: int, early: bool) -> None:
    """Train one seed of a pair, evaluate it both ways and record it. ``early``: until the mark is held, at most to the
    preset's last step. Called in a process of its own."""
    import shoal

    with tempfile.TemporaryDirectory() as scratch:
        observers = [Held(task.mark)] if early else []
        run = shoal.train(system, env=task.env, seed=seed, run_dir=Path(scratch) / "run", observers=observers)
        report = run.report
        assert report is not None
        if report.reason not in ("steps", "observer"):
            sys.exit(f"{system} on {task.env} ended by {report.reason}: nothing is recorded")
        scores = returns_of(run.policy(), task.episodes, seed)
        curve = Path(scratch) / "curve.csv"
        thin(run.path, curve)
        config = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
        result = {
            "env": task.env, "system": system, "seed": seed, "preset": config["preset"], "steps": report.steps,
            "reason": report.reason, "updates": report.updates, "seconds": report.seconds,
            "training_return": report.episode_return, "default": "greedy", "returns": scores, "machine": machine(),
        }  # fmt: skip
        files: dict[str, Path | str] = {"curve.csv": curve, "config.json": json.dumps(config, indent=1) + "\n"}
        keep(folder(task, system, seed), result, files)


def run(runs: list[tuple[Task, str, int]], cores: list[int], early: bool) -> None:
    """Each run in a process of its own, one at a time on each core."""
    how = ("--early",) if early else ()
    jobs = [
        Job(f"{system} on {t.env}, seed {seed}", (sys.executable, __file__, *how, "--play", t.env, system, str(seed)))
        for t, system, seed in runs
    ]
    run_jobs(jobs, [[core] for core in cores], HOURS)


# ------------------------------------------------------------------------------------------------ the table
def results(task: Task, system: str) -> list[dict[str, Any]]:
    """What is recorded of a pair, seed by seed; ``changed``: see ``older``."""
    found = kept_seeds(folder(task, system, 0).parent)
    return [{**one, "changed": older(folder(task, system, one["seed"]))} for one in found]


def row(kind: str, task: Task, system: str, found: list[dict[str, Any]]) -> list[Any]:
    """A pair in the table: a score below its mark is bold."""
    scores = {way: [mean(r["returns"][way]) for r in found] for way in ("greedy", "sampled")}
    default = found[0]["default"]
    other = "sampled" if default == "greedy" else "greedy"
    told = " / ".join(f"{s:.4g}" if s >= task.mark else f"**{s:.4g}**" for s in scores[default])
    beside = " / ".join(f"{s:.4g}" for s in scores[other])
    where = "chosen here" if system in task.chosen else "shown"
    seeds = ", ".join(str(r["seed"]) + remark(r) for r in found)
    preset = ", ".join(dict.fromkeys(r["preset"] for r in found))
    return [kind, task.env, system, preset, where, f"{task.mark:g}", told, default, beside, seeds]


def remark(result: dict[str, Any]) -> str:
    """What the table says behind a seed."""
    told = ["older"] if result["changed"] else []
    if result.get("reason", "steps") != "steps":
        told.append(f"ended after {result['steps']:,} steps")
    return f" ({', '.join(told)})" if told else ""


def summary() -> str:
    """The table in Markdown, and how many pairs reach their mark with every seed that is recorded. Runs by older values
    of a preset are shown, and not counted."""
    rows, reached, shown = [], 0, 0
    for kind, task, system in pairs([]):
        if not (found := results(task, system)):
            continue
        rows.append(row(kind, task, system, found))
        today = [r for r in found if not r["changed"]]
        good = all(mean(r["returns"][r["default"]]) >= task.mark for r in today)
        if today and system not in task.chosen:
            shown, reached = shown + 1, reached + good
    columns = ["kind", "task", "system", "preset", "preset was", "mark", "score", "policy", "the other policy", "seeds"]
    total = sum(1 for _ in pairs([]))
    return (
        f"{reached} of {shown} pairs whose preset was not chosen on their task reach its mark with every seed "
        f"recorded; {len(rows)} of {total} pairs have been run. Runs marked as older were made by other values of the "
        f"preset than today's and are not counted. Runs that ended before their preset's last step were at the mark "
        f"in training (the mean of 100 episodes), twice as many steps in as when they first were.\n\n"
        f"{table(columns, rows)}\n"
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="WORD", help="kinds, systems, parts of tasks' names")
    options.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    options.add_argument("--early", action="store_true", help="end a run when its training is at the mark for long")
    options.add_argument("--list", action="store_true", help="the tasks and what would be run")
    args = options.parse_args()
    if args.play:
        env, system, seed = args.play
        play(next(t for tasks in TASKS.values() for t in tasks if t.env == env), system, int(seed), args.early)
    elif args.list:
        for kind, tasks in TASKS.items():
            for task in tasks:
                print(f"{kind}: {task.env}, {task.mark:g} ({task.source}): {' '.join(task.systems)}")
        print(f"{len(missing(args.only, args.seeds, args.again))} runs are missing")
    else:
        if not args.table:
            run(missing(args.only, args.seeds, args.again), args.cores, args.early)
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / "README.md").write_text(f"# Suite of tasks\n\n{summary()}", encoding="utf-8")
        print(summary())


if __name__ == "__main__":
    main()
