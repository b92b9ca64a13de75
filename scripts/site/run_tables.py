"""Tables of docs/cluster.md, docs/faults.md and docs/evaluation.md, from the raw files in ``benchmarks/results``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from common import middle, table  # of benchmarks/, which figures.py puts on the path
from recorded import RESULTS, read
from speed_tables import machine, raw

CASES = {
    "impala-cartpole": "IMPALA, CartPole", "apex-dqn-cartpole": "Ape-X DQN, CartPole", "impala-pong": "IMPALA, Pong",
    "apex-dqn-pong": "Ape-X DQN, Pong",
}  # fmt: skip
WHOLE = 10.0  # seconds after which throughput should be back


def cluster() -> str:
    """Return the table of the speed and the memory of runs by the runtimes ``local`` and ``ray`` on one node."""
    rows = []
    for name, title in CASES.items():
        sides = raw("cluster")[name]["figures"]
        local, ray = (middle(sides[side], "env_steps_per_s") for side in ("local", "ray"))
        later = middle(sides["ray"], "first_update_s") - middle(sides["local"], "first_update_s")
        memory = middle(sides["ray"], "pss_mb") - middle(sides["local"], "pss_mb")
        rllib = f"{middle(sides['rllib'], 'env_steps_per_s'):,.0f}" if "rllib" in sides else ""
        row = [title, f"{local:,.0f}", f"{ray:,.0f}", f"{ray / local:.2f}", rllib, f"{later:.0f} s", f"{memory:.0f} MB"]
        rows.append([*row, machine(raw("cluster")[name])])
    columns = [
        "case",
        "`local`, steps/s",
        "`ray`, steps/s",
        "ratio",
        "RLlib's IMPALA, steps/s",
        "first update later by",
    ]
    return table([*columns, "more memory", "machine"], rows)


def between_nodes() -> str:
    """Return the table of bytes that cross nodes for each environment step."""
    rows = []
    for name in ("impala-cartpole", "apex-dqn-cartpole"):
        (found,) = raw("cluster")[name]["figures"]["nodes"]
        rows += [
            [CASES[name], of, f"{sent:,.1f}", f"{found['must'][of]:,.1f}"] for of, sent in found["between"].items()
        ]
    return table(["case", "channel", "bytes sent per step", "bytes needed per step"], rows)


def kills() -> str:
    """Return the table of seconds until a run has 95 % of its throughput again."""
    (case,) = raw("faults").values()
    figures = case["figures"]
    rows = [row(f"after `kill -9` of an actor ({figures['restarts']:.0f} restarts)", figures["seconds_to_95_percent"])]
    rows.append(row("at a moment without a kill", figures["control"]))
    columns = ["moments", "number", "median", "worst", f"longer than {WHOLE:.0f} s"]
    return f"{table(columns, rows)}\n\nMeasured on: {machine(case)}."


def row(what: str, seconds: Sequence[float]) -> list[str]:
    late = sum(value > WHOLE for value in seconds)
    return [what, str(len(seconds)), f"{median(seconds):.3g} s", f"{max(seconds):.3g} s", str(late)]


def soak() -> str:
    """Return the table of growth of the resources of a long run, after its warm-up."""
    (case,) = raw("soak").values()
    keys = ("memory_per_minute", "shared_per_minute", "descriptors_growth", "threads_growth")
    rows = [
        [name, f"{found['minutes']:.0f}", f"{found['memory']:,.0f} MB", *(f"{found[key]:+.1f}" for key in keys)]
        for name, found in case["figures"].items()
    ]
    columns = ["run", "minutes", "memory", "memory, MB/min", "shared memory, MB/min", "descriptors", "threads"]
    return f"{table(columns, rows)}\n\nMeasured on: {machine(case)}."


def evaluations() -> str:
    """Return the table of what an evaluator costs the training."""
    rows = []
    for name, found in read(RESULTS / "evaluation.json").items():
        low, high = found["interval"]
        told = f"{found['ratio']:.2f} ({low:.2f} to {high:.2f})"
        rows.append([name, f"{found['processor_share']:.1%}", told, str(found["pairs"])])
    return table(["run", "evaluator's share of the processors", "speed with / without (95 % interval)", "pairs"], rows)
