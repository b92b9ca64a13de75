"""Shoal's population-based training: what a turn costs beside the work; prints one JSON line.

    python benchmarks/ours_pbt.py objective --population 8
    python benchmarks/ours_pbt.py members --population 1 --system recurrent-ppo --fields '{"envs": 16}'

``objective``: ``shoal.pbt`` on members that sleep ``--work`` seconds a turn and hold ``--mb`` MiB, two workers.
``overhead_ms`` is the time of a turn that is not work, of each worker. ``members``: a population of a system's runs, as
by ``shoal train pbt``, a slot for each: environment steps per second of all members from the end of each one's first
slice, with everything that happens between slices; the plain run is that of ``ours.py --runtime serial``.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.run.population.hyperparameters import interval_of
from shoal.run.population.training import PopulationRun, Setup
from shoal.settings.config import resolve
from shoal.settings.schedule import plain

WORKERS = 2


def objective(args: argparse.Namespace) -> dict[str, Any]:
    work, size = args.work, int(args.mb * 2**18)

    def train(state: Any, values: dict[str, Any], steps: int) -> tuple[Any, float]:
        state = np.zeros(size, np.float32) if state is None else state
        time.sleep(work * steps)
        state += values["rate"]
        return state, float(state[0])

    def search(turns: int) -> tuple[float, int]:
        """Seconds of so many turns of each member, and copies made."""
        begin = time.perf_counter()
        found = shoal.pbt(
            train, {"rate": shoal.Interval(0.01, 1.0)}, steps=turns, interval=1, population=args.population,
            workers=WORKERS,
        )  # fmt: skip
        return time.perf_counter() - begin, len(found.lineage)

    few = 2  # what starting workers takes is in both, and cancels out
    more = max(2, round(args.seconds * WORKERS / (args.work * args.population)))
    search(few)  # the first one of a process also loads what workers start from
    (short, _), (long, copies) = search(few), search(few + more)
    turns = more * args.population
    return {"overhead_ms": 1e3 * (WORKERS * (long - short) / turns - work), "perturbations": copies, "turns": turns}


def members(args: argparse.Namespace) -> dict[str, Any]:
    from shoal import systems

    fields = {"env": args.env, "learning_rate": 1e-3, **args.fields}
    module = systems.load(args.system)
    resolved = resolve(module, "none", None, fields, source="argument", name=args.system)
    values = plain(resolved.values())
    stamps: list[tuple[float, int]] = []  # end of a slice: when, and the steps of all members
    made = [0] * args.population

    def tell(line: str) -> None:
        if found := re.match(r"member (\d+): .* steps, score ", line):
            index = int(found[1])
            made[index] = run.control.members[index].trained  # more than was asked: whole rollouts
            stamps.append((time.perf_counter(), sum(made)))

    space = {"learning_rate": interval_of("learning_rate", values["learning_rate"])}
    setup = Setup(
        args.system, values, resolved.origins, resolved.preset, space, args.population, {"interval": args.interval},
        steps=args.interval * (args.slices + 1), slots=args.population, seed=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = PopulationRun.begin(Path(folder) / "population", setup, tell)
        ended = run.go()
    (begin, before), (end, after) = stamps[args.population - 1], stamps[-1]  # each has ended its first slice by then
    return {"env_steps_per_s": (after - before) / (end - begin), "window_s": end - begin, "copies": ended.copies}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["objective", "members"])
    parser.add_argument("--population", type=int, default=8)
    parser.add_argument("--work", type=float, default=0.05)
    parser.add_argument("--mb", type=float, default=1.0)
    parser.add_argument("--system", default="recurrent-ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--fields", type=json.loads, default={}, help="of the configuration, as JSON")
    parser.add_argument("--interval", type=int, default=100_000, help="steps of a member between two turns")
    parser.add_argument("--slices", type=int, default=5, help="of each member, after its first")
    parser.add_argument("--seconds", type=float, default=10.0, help="objective: of the search")
    parser.add_argument("--warmup", type=float, default=0.0, help="ignored: the first slices are the warm-up")
    args = parser.parse_args()
    found = objective(args) if args.mode == "objective" else members(args)
    print(json.dumps({"peer": "shoal", "mode": args.mode, "population": args.population, **found}), flush=True)


if __name__ == "__main__":
    main()
