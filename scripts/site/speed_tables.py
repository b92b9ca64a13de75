"""Tables and pictures of docs/performance.md, from the raw files in ``benchmarks/results``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from statistics import median
from typing import Any

import mark_cases  # of benchmarks/, which figures.py puts on the path
import marks
import replay
import solve
from charts import Panel, chart
from common import middle, ratio, table
from recorded import RESULTS, read
from throughput import shares

PEERS = {
    "sb3": "Stable-Baselines3", "rllib": "RLlib", "sf": "Sample Factory", "tianshou": "Tianshou", "rlox": "rlox",
    "recurrent-ppo": "recurrent PPO", "impala": "IMPALA", "d4pg": "D4PG",
}  # fmt: skip
THROUGHPUT = (  # (what, recorded case, side of Shoal, peers that count)
    ("CartPole, IMPALA, one epoch", "cartpole-impala, EPYC", "shoal", ("sf", "rllib")),
    ("the same, two learners", "cartpole-impala, EPYC", "shoal, two learners", ("sf", "rllib")),
    ("CartPole, PPO, four epochs", "cartpole-ppo, EPYC", "shoal", ("sb3", "rllib", "rlox")),
    ("CartPole, DQN", "cartpole-dqn, EPYC", "shoal", ("sb3", "tianshou")),
    ("CartPole, Ape-X DQN", "cartpole-apex-dqn, EPYC", "shoal", ("sb3", "tianshou")),
    ("Pong, IMPALA, one epoch, fp32", "pong-impala, avx512", "shoal fp32", ("sf", "rllib")),
    ("Pong, IMPALA, one epoch, bf16", "pong-impala", "shoal bf16", ("sf", "rllib")),
    ("Pong, PPO, four epochs, fp32", "pong-ppo, avx512", "shoal fp32", ("sb3", "rllib")),
    ("Pong, PPO, four epochs, bf16", "pong-ppo", "shoal bf16", ("sb3", "rllib")),
    ("Pong, DQN, fp32", "pong-dqn, avx512", "shoal fp32", ("tianshou",)),  # its sb3 had one thread: again below
    ("Pong, DQN, fp32", "pong-dqn, B", "shoal fp32", ("sb3",)),
    ("Pong, DQN, bf16", "pong-dqn", "shoal bf16", ("tianshou",)),
    ("Pong, DQN, bf16", "pong-dqn, B", "shoal bf16", ("sb3",)),
    ("Pong, Ape-X DQN, fp32", "pong-apex-dqn, avx512", "shoal fp32", ("tianshou",)),
    ("Pong, Ape-X DQN, fp32", "pong-apex-dqn, B", "shoal fp32", ("sb3",)),
    ("Pong, Ape-X DQN, bf16", "pong-apex-dqn", "shoal bf16", ("tianshou",)),
    ("Pong, Ape-X DQN, bf16", "pong-apex-dqn, B", "shoal bf16", ("sb3",)),
)
SOLVED = {"cartpole": "CartPole", "lunarlander": "LunarLander", "pong": "Pong", "halfcheetah": "HalfCheetah"}
PEERS_OF = {"halfcheetah": {"sb3": "Stable-Baselines3's TD3"}}  # where a peer is not its PPO
REPLAYS = {
    "cartpole-local": "CartPole, one process", "cartpole-processes": "CartPole, writers and a reader",
    "atari-local": "stacked Atari, one process", "atari-processes": "stacked Atari, writers and a reader",
}  # fmt: skip
SCALED = {
    "impala-cartpole": "IMPALA, CartPole", "ppo-cartpole": "recurrent PPO, CartPole",
    "apex-dqn-cartpole": "Ape-X DQN, CartPole", "impala-pong": "IMPALA, Pong", "ppo-pong": "recurrent PPO, Pong",
    "apex-dqn-pong": "Ape-X DQN, Pong",
}  # fmt: skip
PREEMPTION = {
    "preempted": "one rank slow, preempted", "synchronous": "one rank slow, all wait for it (`sync_frac` 2)",
    "nobody slow": "no rank slow",
}  # fmt: skip


def tables() -> dict[str, str]:
    """Return the text of each marked place of the page, by its name."""
    return {
        "throughput": throughput(),
        "solve": times_to_solve(),
        "replay": replays(),
        "transport": transport(),
        "scaling": scaling(),
        "marks": all_marks(),
        "reduction": reduction(),
    }


def pictures() -> dict[str, str]:
    """Return each picture of the page by the name of its file."""
    panels = [
        Panel(title, [("steps per second", [(float(n), speed) for n, speed in actors(case).items()])])
        for case, title in SCALED.items()
    ]
    return {"performance-scaling.svg": chart(panels, "Steps per second by number of actors")}


def raw(name: str) -> dict[str, Any]:
    """Return the recorded cases of a benchmark."""
    found: dict[str, Any] = read(RESULTS / name / "results.json")
    return found


def machine(case: Mapping[str, Any]) -> str:
    """Return the processor and the day of a recorded case."""
    facts = case["machine"]
    cpu = facts["cpu"].replace("Intel(R) ", "").replace("(R)", "").replace(" Processor", "").split(" @")[0]
    return f"{cpu}, {facts['isa']}, {facts['date']}"


def quick(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def throughput() -> str:
    cases, rows = raw("throughput"), []
    peers = [name for name in PEERS if any(name in row[3] for row in THROUGHPUT)]
    for what, name, side, beside in THROUGHPUT:
        figures = cases[name]["figures"]
        found = figures["sides"]
        speed = middle(found[side], "env_steps_per_s")
        if "limits" in figures:  # measured once for the case
            share = speed / figures["limits"][side]["env_steps_per_s"]
        else:
            share = middle(shares(found[side], found[f"limit of {side}"]), "share")
        ratios = [f"x {ratio(speed, middle(found[p], 'env_steps_per_s')):.3g}" if p in beside else "" for p in peers]
        rows.append([what, machine(cases[name]), f"{speed:,.0f}", f"{share:.2f}", *ratios])
    columns = ["case", "machine", "Shoal, steps/s", "share of the limit"]
    return table([*columns, *(PEERS[p] for p in peers)], rows)


def times_to_solve() -> str:
    cases, rows = raw("solve"), []
    for name, title in SOLVED.items():
        task = solve.TASKS[name]
        sides = cases[name]["figures"]
        cap = float(re.findall(r"given up after (\d+) s", cases[name]["table"])[0])  # it may have another one now
        first = wall(sides[task.systems[0]], cap)
        for side, runs in sides.items():
            solved = [r for r in runs if r.get("solved")]
            seconds = wall(runs, cap)
            steps = median(r["env_steps"] for r in runs)
            told = f"{quick(seconds)} s" if len(solved) * 2 > len(runs) else f"not within {cap:,.0f} s"
            label = {**PEERS, **PEERS_OF.get(name, {})}[side]
            times = "" if side in task.systems else f"{'more than ' if not solved else ''}{seconds / first:.3g}"
            row = [f"{title}, {task.mark:g}", label, f"{len(solved)} of {len(runs)}", told, times]
            rows.append([*row, f"{steps / 1000:,.0f}K", machine(cases[name])])
    columns = ["task, mean return", "side", "seeds solved", "median wall time", "times Shoal's first", "steps"]
    return table([*columns, "machine"], rows)


def wall(runs: list[dict[str, Any]], cap: float) -> float:
    """Return the median wall time; a run that is not solved counts with its cap."""
    return median(float(r["wall_s"]) if r.get("solved") else cap for r in runs)


def replays() -> str:
    cases, rows = raw("replay"), []
    for name, title in REPLAYS.items():
        found = cases[name]["figures"]
        cells = []
        for key in replay.KEYS:
            rate = middle(found["shoal"], key)
            peers = {side: middle(of, key) for side, of in found.items() if not side.startswith("shoal")}
            best = max((value for value in peers.values() if not math.isnan(value)), default=math.nan)
            cells.append("" if math.isnan(rate) else f"{rate:,.0f} (x {ratio(rate, best):.3g})")
        rows.append([title, *cells, machine(cases[name])])
    return table(["items", "inserts/s", "samples/s", "priority updates/s", "machine"], rows)


def transport() -> str:
    rings, rest = (raw("transport")[name]["figures"] for name in ("between two processes", "the rest"))
    rows: list[list[str]] = []
    for what, rounds in rings["rings"].items():
        speed = median(items for items, _ in rounds)
        others = {kind: rates for kind, rates in rings["others"].items() if kind.split(", ")[0] == what}
        told = ", ".join(f"{kind.split(', ')[1]} x {speed / median(rates):.3g}" for kind, rates in others.items())
        rows.append([what, quick(speed), told])
    told = table(["items between two processes", "items/s", "Shoal is faster than"], rows)
    return f"{told}\n\n{table(['what it costs', 'figure'], [[what, quick(value)] for what, value in rest])}"


def actors(case: str) -> dict[int, float]:
    """Return steps per second by the number of actors."""
    found = raw("scaling")[case]["figures"]
    return {int(name.split()[0]): middle(runs, "env_steps_per_s") for name, runs in found.items()}


def scaling() -> str:
    speeds = {case: actors(case) for case in SCALED}
    counts = sorted({count for found in speeds.values() for count in found})
    cases = raw("scaling")
    rows = [[SCALED[case], *(quick(of[n]) for n in counts), machine(cases[case])] for case, of in speeds.items()]
    return table(["system, task", *(f"{n} actors" if n > 1 else "1 actor" for n in counts), "machine"], rows)


def all_marks() -> str:
    cases, rows = raw("marks"), []
    for name, recorded in cases.items():
        case = mark_cases.CASES[name]
        speeds = {label: marks.figure(case, found) for label, found in recorded["figures"]["sides"].items()}
        for mark in case.marks:
            value, beside = marks.measured(mark, speeds)
            limit = f"at {'most' if mark.most else 'least'} {mark.factor:.3g}"
            told = f"{value:.3g}" if marks.reached(mark, value) else f"**{value:.3g}**"
            told = "not measured" if math.isnan(value) else told
            what = f"{mark.side} / {beside}" if beside else f"{mark.side}, {case.unit}"
            rows.append([f"`{name}`", what, told, limit, machine(recorded)])
    return table(["case", "what is compared", "found", "mark", "machine"], rows)


def reduction() -> str:
    (case,) = raw("reduction").values()
    rows = [[what, f"{ours:.3g} ms", f"{gloo:.3g} ms", f"x {times:.3g}"] for what, ours, gloo, times in case["figures"]]
    return table(["mean of a vector over two processes", "Shoal", "Gloo", "Shoal is faster"], rows)


def stragglers() -> str:
    """Return the table of docs/systems/dd-ppo.md: what preemption wins where one rank is slow."""
    (case,) = raw("stragglers").values()
    keys = ("steps_per_s", "updates_per_s", "rollout_fraction", "return")
    rows = [
        [PREEMPTION[name], *(middle(runs, key) for key in keys), ", ".join(f"{run['return']:.0f}" for run in runs)]
        for name, runs in case["figures"].items()
    ]
    columns = ["case", "steps/s", "updates/s", "share of a rollout", "return", "return of each seed"]
    return f"{table(columns, rows)}\n\nMeasured on: {machine(case)}."
