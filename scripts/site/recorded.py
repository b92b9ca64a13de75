"""Recorded runs of every system, read from the raw files in ``benchmarks/results``."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))
from suite_tasks import POLICIES, TASKS  # noqa: E402 (benchmarks are scripts beside each other)

from shoal.policy.policy import differ  # noqa: E402

SUITE_MARKS = {task.env: task.mark for tasks in TASKS.values() for task in tasks}
WHOLE = {  # of an ablation, the variants that are the whole system
    "d4pg": ["d4pg"], "rainbow": ["rainbow"], "r2d2": ["stored-burn-in"], "r2d3": ["rho-1-4", "rho-1-16"],
}  # fmt: skip
UNMARKED = ("minatar-breakout-gorila",)  # recipes without a mark that are no variant made to compare with
TITLES = {  # the beginning of a recipe's name -> its task, where the environment's name does not say it
    "doorkey": "MiniGrid DoorKey", "empty": "MiniGrid Empty", "pointgoal": "Point-goal navigation",
    "minatar-breakout": "MinAtar Breakout", "memory": "CartPole without velocities",
}  # fmt: skip
TRIAL_SEEDS = 100  # seeds from here on chose a preset, and show nothing of it
CONTINUOUS_PRESETS = {  # what ``auto`` chose: these files do not record it
    "HalfCheetah-v5": "mujoco", "Hopper-v5": "mujoco_upright", "Pendulum-v1": "classic",
}  # fmt: skip


@dataclass
class Recorded:
    """The runs of one system on one task: for each seed its score, its steps and its learning curve."""

    system: str
    task: str
    folder: Path
    command: str
    preset: str = ""
    mark: float | None = None
    seeds: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    curves: list[Path] = field(default_factory=list)
    others: dict[int, float] = field(default_factory=dict)  # seed -> score of the other actions, where it differs
    other: str = ""  # which those are: greedy or sampled
    early: set[int] = field(
        default_factory=set
    )  # seeds whose runs ended at their mark, before their preset's last step

    def add(self, seed: int, score: float, curve: Path) -> None:
        self.seeds.append(seed)
        self.scores.append(score)
        self.curves.append(curve)


Line = list[tuple[float, float]]  # (environment steps, mean training return) of a curve


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def curve(path: Path) -> Line:
    """Return the points of a raw curve."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(row["steps"], row["episode_return"]) for row in csv.DictReader(file)]
    return [(float(steps), float(told)) for steps, told in rows if told]  # empty before the first episode has ended


def learning() -> list[Recorded]:
    """Recipes of ``benchmarks/learning.py``; variants that were recorded without a mark are left out."""
    found = []
    for folder in sorted((RESULTS / "learning").iterdir()):
        runs = sorted(p for p in folder.glob("seed-*.json") if p.stem.count(".") == 0) if folder.is_dir() else []
        if not runs or not (folder / "seed-0.config.json").exists():
            continue
        config, first = read(folder / "seed-0.config.json"), read(runs[0])
        if not first.get("required") and folder.name not in UNMARKED:
            continue
        command = f"python benchmarks/learning.py {folder.name}"
        kind = next((kind for kind in TITLES if folder.name.startswith(kind)), "")
        task = TITLES[kind] if kind else re.sub(r"^.*[:/]", "", config["environment"]["id"])
        if folder.name.endswith(("-lstm", "-fp32", "-mixture")):
            task += f" ({folder.name.rsplit('-', 1)[1]})"
        one = Recorded(config["system"], task, folder, command, config["preset"] or "none", first["required"] or None)
        for record, path in sorted(((read(path), path) for path in runs), key=lambda pair: pair[0]["seed"]):
            if record["seed"] < TRIAL_SEEDS:
                one.add(record["seed"], record["score"], path.with_suffix(".csv"))
        found.append(one)
    return found


def suite() -> list[Recorded]:
    """Tasks of ``benchmarks/suite.py``."""
    found = []
    for folder in sorted(p for p in (RESULTS / "suite").glob("*/*") if p.is_dir()):
        runs = [read(path) for path in sorted(folder.glob("*/result.json"))]
        if not runs:
            continue
        system, task = folder.parts[-2:]
        seeds = sorted(record["seed"] for record in runs)
        early = {record["seed"] for record in runs if record.get("reason", "steps") != "steps"}
        how = " --early" if early == {*seeds} else ""
        command = f"python benchmarks/suite.py{how} --only {system} {task} --seeds {' '.join(map(str, seeds))}"
        one = Recorded(system, task, folder, command, runs[0]["preset"], SUITE_MARKS.get(task), early=early)
        for record in runs:
            at = folder / str(record["seed"]) / "curve.csv"
            taken = record["default"]
            one.other = "sampled" if taken == "greedy" else "greedy"
            one.add(record["seed"], mean(record["returns"][taken]), at)
            if system in POLICIES and differ(record["returns"][taken], record["returns"][one.other]):
                one.others[record["seed"]] = mean(record["returns"][one.other])
        found.append(one)
    return found


def continuous() -> list[Recorded]:
    """Runs of ``benchmarks/continuous.py``, which do not record their preset."""
    found: dict[tuple[str, str], Recorded] = {}
    for path in sorted((RESULTS / "mujoco").glob("*.json")):
        parts = re.fullmatch(r"(\w+-v\d)-(.*)-(\d+)", path.stem)
        record = read(path)
        if not parts or parts[2].startswith("sb3") or "evaluation" not in record:
            continue
        task, system, seed = parts.groups()
        command = f"python benchmarks/continuous.py {task} {system}"
        one = found.setdefault((task, system), Recorded(system, task, path.parent, command, preset(system, task)))
        one.add(int(seed), mean(record["evaluation"]), path.with_suffix(".csv"))
    return list(found.values())


def preset(system: str, task: str) -> str:
    return CONTINUOUS_PRESETS.get(task, "dm_control") if system in ("d4pg", "apex-dpg") else ""


def ablations() -> list[Recorded]:
    """Of ``benchmarks/ablation.py`` the variants that leave nothing out."""
    found = []
    for system, variants in WHOLE.items():
        for folder in sorted(p for v in variants for p in (RESULTS / "ablation" / system).glob(f"*/{v}")):
            task = folder.parent.name + (f", {folder.name}" if len(variants) > 1 else "")
            one = Recorded(system, task, folder, f"python benchmarks/ablation.py {system}")
            for path in sorted(folder.glob("seed-*.json")):
                one.add(int(path.stem.split("-")[1]), read(path)["score"], path.with_suffix(".csv"))
            found.append(one)
    return found


def all_runs() -> list[Recorded]:
    return [*learning(), *continuous(), *suite(), *ablations()]
