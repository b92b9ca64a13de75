"""Tables and pictures of docs/results.md, from the raw files in ``benchmarks/results``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import ablation  # of benchmarks/, which figures.py puts on the path
import continuous
import lag
import lag_workers
import learning
import numpy as np
import population
import precision
import suite
from charts import Panel, chart
from common import table
from recorded import RESULTS, Line, curve, read

LABELS = {
    "d4pg": "D4PG", "apex-dpg": "Ape-X DPG", "recurrent-ppo": "recurrent PPO", "sb3-td3": "SB3's TD3",
    "sb3-ddpg": "SB3's DDPG", "sb3-ppo": "SB3's PPO",
}  # fmt: skip
TIMED = {  # sides that ran on machines of one kind, so that their seconds compare
    "HalfCheetah-v5": ("d4pg", "sb3-td3"),
    "Hopper-v5": ("d4pg", "recurrent-ppo", "sb3-td3"),
}
CONTROL_SUITE = ("CartpoleSwingup-v1", "FingerSpin-v1", "CheetahRun-v1")
CONTINUOUS = (*TIMED, "Pendulum-v1", *CONTROL_SUITE)
UNREAL = {
    "A3C (none of the three)": "a3c", "UNREAL": "unreal", "without pixel control": "unreal-no-pixel-control",
    "without reward prediction": "unreal-no-reward-prediction", "without value replay": "unreal-no-value-replay",
}  # fmt: skip
GOAL = 0.8  # mean return of 100 training episodes at which a MiniGrid task counts as learned


def tables() -> dict[str, str]:
    """Return the text of each marked place of the page, by its name."""
    mujoco = continuous.RESULTS
    return {
        "learning": learning.table(),
        "suite": suite_counts(),
        "precision": precision.report(),
        "halfcheetah": beside(mujoco, "HalfCheetah-v5", 4_000),
        "hopper": beside(mujoco, "Hopper-v5", 1_000),
        "hopper-two-cores": beside(mujoco / "two-cores", "Hopper-v5", 1_000, ("d4pg", "sb3-td3")),
        "pendulum": beside(mujoco, "Pendulum-v1"),
        "control-suite": evaluations(CONTROL_SUITE, ("d4pg", "sb3-td3", "sb3-ddpg")),
        "apex-dpg": evaluations(CONTINUOUS, ("apex-dpg", "d4pg")),
        "unreal": unreal(),
        **{name: parts(name) for name in ("rainbow", "d4pg", "r2d3", "r2d2")},
        "lag": lag.table(rows := read(lag.RESULTS / "results.json"), lags(rows)),
        "lag-workers": lag_workers.table(runs := read(lag_workers.RESULTS / "results.json")["runs"], workers(runs)),
    }


def pictures() -> dict[str, str]:
    """Return each picture of the page by the name of its file."""
    return {
        "results-mujoco.svg": chart([sides(env) for env in CONTINUOUS], "Continuous control, side by side"),
        "results-unreal.svg": chart([minigrid("doorkey", "DoorKey-5x5"), minigrid("empty", "Empty-8x8")], "MiniGrid"),
        "results-rainbow.svg": chart(variants("rainbow"), "Rainbow without each of its parts"),
        "results-d4pg.svg": chart(variants("d4pg"), "D4PG without each of its parts"),
        "results-r2d3.svg": chart([*variants("r2d3"), *variants("r2d2")], "R2D3's demonstrations, R2D2's first states"),
        "results-lag.svg": chart([corrections(), lagging_workers()], "Return against lag and workers"),
        "results-precision.svg": chart([precisions()], "PPO on Pong in bfloat16 and in float32"),
    }


# -------------------------------------------------------------------------------------- continuous control
def results(home: Path, env: str, side: str) -> list[dict[str, Any]]:
    """The result of each recorded seed of a side."""
    return [read(path) for path in continuous.kept(home, env, side, ".json")]


def beside(home: Path, env: str, mark: float | None = None, timed: Sequence[str] = ()) -> str:
    """Return the table of one task: return in training and in evaluation; with a ``mark``, when it was reached."""
    columns = ["side", "steps", "last 100 training episodes", "evaluation, 20 episodes"]
    timed = timed or TIMED.get(env, continuous.sides(home, env))
    columns += ["seconds", *([f"seconds (steps) to {mark:,.0f}"] if mark else [])]
    rows = []
    for side in continuous.sides(home, env):
        found = results(home, env, side)
        steps = sorted({r["steps"] for r in found})
        cells = [LABELS[side], " to ".join(f"{s:,}" for s in (steps if len(steps) < 3 else (steps[0], steps[-1])))]
        cells += [continuous.spread([r["training_return"] for r in found])]
        cells += [continuous.spread([mean(r["evaluation"]) for r in found])]
        of_time = side in timed and all("seconds" in r for r in found)
        cells.append(" / ".join(f"{r['seconds']:.0f}" for r in found) if of_time else "-")
        if mark:
            curves = [continuous.read(path) for path in continuous.kept(home, env, side, ".csv")]
            cells.append(" / ".join(continuous.reached(c, mark) for c in curves) if of_time else "-")
        rows.append(cells)
    return table(columns, rows)


def evaluations(tasks: Iterable[str], of: Sequence[str]) -> str:
    """Return a table of the mean evaluation of each seed, the best mean of a task in bold."""
    rows = []
    for env in tasks:
        scores = {s: [mean(r["evaluation"]) for r in results(continuous.RESULTS, env, s)] for s in of}
        best = max((mean(found) for found in scores.values() if found), default=0.0)
        cells = []
        for found in scores.values():
            middle = f"{mean(found):,.0f}" if found else ""
            bold = f"**{middle}**" if found and mean(found) == best else middle
            cells.append(f"{' / '.join(f'{x:.0f}' for x in found)}, mean {bold}" if found else "not run")
        rows.append([env, *cells])
    return table(["task", *(LABELS[side] for side in of)], rows)


def sides(env: str) -> Panel:
    """The learning curves of every side, all seeds of a side in one colour."""
    home = continuous.RESULTS
    shown = [side for side in LABELS if side in continuous.sides(home, env)]
    lines = [(LABELS[side], curve(path)) for side in shown for path in continuous.kept(home, env, side, ".csv")]
    return Panel(env, lines, legend=list(LABELS.values()))


# -------------------------------------------------------------------------------------- systems part by part
def parts(name: str) -> str:
    """Return the two tables of an ablation."""
    return ablation.report(name, ablation.ABLATIONS[name])


def variants(name: str) -> list[Panel]:
    """A panel per task of an ablation: of each variant the mean of its seeds' curves."""
    one, home = ablation.ABLATIONS[name], ablation.RESULTS / name
    panels = []
    for task in one.tasks:
        found = {v: [curve(path) for path in sorted((home / task / v).glob("seed-*.csv"))] for v in one.variants}
        panels.append(
            Panel(task, [(v, middle(lines)) for v, lines in found.items() if lines], legend=list(one.variants))
        )
    return panels


def middle(lines: list[Line]) -> Line:
    """Return the mean of curves at the steps that all of them have."""
    first, last = max(line[0][0] for line in lines), min(line[-1][0] for line in lines)
    at = np.linspace(first, last, 60)
    values = np.mean([np.interp(at, *zip(*line, strict=True)) for line in lines], 0)
    return list(zip(at.tolist(), values.tolist(), strict=True))


def unreal() -> str:
    """Return the table of steps until a MiniGrid task is learned, seed by seed."""
    rows = []
    for label, suffix in UNREAL.items():
        cells = []
        for task in ("doorkey", "empty"):
            paths = sorted((RESULTS / "learning" / f"{task}-{suffix}").glob("seed-?.csv"))
            cells.append(" / ".join(steps_to(path, GOAL) for path in paths) or "not run")
        rows.append([label, *cells])
    return table(["", "DoorKey-5x5", "Empty-8x8"], rows)


def steps_to(path: Path, mark: float) -> str:
    """Return the steps after which 100 training episodes had that mean return, in thousands."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["episode_return"]]
    full = (row for row in rows if int(row["episodes"]) >= 100 and float(row["episode_return"]) >= mark)
    first = next(full, None)
    if first is None:
        return f"not within {int(rows[-1]['steps']) / 1000:.0f}K ({float(rows[-1]['episode_return']):.2f})"
    return f"{int(first['steps']) / 1000:.0f}K"


def minigrid(task: str, title: str) -> Panel:
    home = RESULTS / "learning"
    paths = {name: sorted((home / f"{task}-{name.lower()}").glob("seed-?.csv")) for name in ("UNREAL", "A3C")}
    return Panel(title, [(name, curve(path)) for name, found in paths.items() for path in found], GOAL)


# -------------------------------------------------------------------------------------- lag, precision, the suite
def lags(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["lag"] for row in rows})


def workers(runs: list[dict[str, Any]]) -> list[int]:
    return sorted({run["workers"] for run in runs})


def corrections() -> Panel:
    rows = read(lag.RESULTS / "results.json")
    lines = []
    for name in lag.CORRECTIONS:
        own = [r for r in rows if r["correction"] == name]
        lines.append((name, [(float(x), mean(r["return"] for r in own if r["lag"] == x)) for x in lags(rows)]))
    return Panel("IMPALA: return by lag, in updates", lines)


def lagging_workers() -> Panel:
    runs = read(lag_workers.RESULTS / "results.json")["runs"]
    names = {"training": "return", "greedy": "greedy_return"}
    lines = [
        (label, [(float(x), mean(r[key] for r in runs if r["workers"] == x)) for x in workers(runs)])
        for label, key in names.items()
    ]
    return Panel("A3C: return by number of workers", lines)


def precisions() -> Panel:
    home = RESULTS / "learning" / "precision"
    lines = [(side, curve(path)) for side in precision.SIDES for path in sorted((home / side).glob("*.csv"))]
    return Panel("Pong", lines, 18)


def suite_counts() -> str:
    """Return a table of the suite by kind of task (pairs that have been run, pairs that reach their mark), and the
    pairs that miss their mark by name."""
    kinds: dict[str, list[list[bool]]] = {}
    missed = []
    for kind, task, system in suite.pairs([]):
        every = kinds.setdefault(kind, [[], [], []])
        every[0].append(True)
        if found := suite.results(task, system):
            good = all(mean(r["returns"][r["default"]]) >= task.mark for r in found)
            every[2 if system in task.chosen else 1].append(good)
            if not good:
                scores = ", ".join(f"{mean(r['returns'][r['default']]):.4g}" for r in found)
                preset = found[0]["preset"]
                missed.append(f"- `{system}` on {task.env}, preset `{preset}`: {scores}; mark {task.mark:g}")
    columns = ["kind of task", "pairs of system and task", "run where it chose no preset", "of these reach the mark"]
    counts = table(columns, [[kind, len(a), len(shown), sum(shown)] for kind, (a, shown, _) in kinds.items()])
    return "\n".join([counts, "", "Below their mark, with the score of each seed:", "", *missed])


# -------------------------------------------------------------------------------------- docs/population.md
def populations() -> str:
    """Return a table of population-based training beside as many independent random configurations."""
    rows = []
    for recorded in read(RESULTS / "population" / "results.json").values():
        task, runs = recorded["figures"]["task"], recorded["figures"]["runs"]
        found = population.summary(runs)["difference"]
        judged = f"{task['evaluate']} greedy episodes" if task.get("evaluate") else "training episodes"
        scores = (", ".join(f"{r['score']:.0f}" for r in runs if r["arm"] == arm) for arm in population.ARMS)
        told = f"{found['mean']:+.0f} ({found['low']:+.0f} to {found['high']:+.0f})"
        rows.append([task["env"], f"{task['steps']:,}", f"{task['interval']:,}", judged, *scores, told])
    columns = ["task", "steps of a member", "interval", "members scored by", "best member of the population"]
    return table([*columns, "best random configuration", "difference (95 % interval)"], rows)


# -------------------------------------------------------------------------------------- docs/pointgoal.md
def pointgoal() -> str:
    """Return a table of success and SPL of point-goal navigation, seed by seed."""
    rows = []
    for sensor in ("depth", "blind"):
        for path in sorted((RESULTS / "learning" / f"pointgoal-{sensor}").glob("seed-?.json")):
            found = read(path)
            told = [f"{found[f'{how}_success']:.2f}, {found[f'{how}_spl']:.2f}" for how in ("sampled", "greedy")]
            minutes = f"{found['seconds'] / 60:.0f} min"
            rows.append([f"`pointgoal:{sensor}`", found["seed"], f"{found['steps']:,}", minutes, *told])
    return table(["environment", "seed", "steps", "wall time", "sampled: success, SPL", "greedy: success, SPL"], rows)
