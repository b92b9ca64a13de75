"""Tables of architecture.md, cluster.md, faults.md and evaluation.md, from the raw files in ``benchmarks/results``."""

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
HOSTS = {  # of benchmarks/hosts.py
    "cut": "a host of actors is disconnected for some seconds",
    "partition": "a host of actors is disconnected until it counts as lost, and Ray is started on it again",
    "actors": "all processes of a host of actors are killed (IMPALA), and Ray is started on it again",
    "transitions": "the same with Ape-X DQN",
    "head": "all processes of the head's host are killed (IMPALA; driver and learner are on the other)",
    "books": "the head's raylet and its control store (GCS) are killed, on the driver's host",
    "killed": "all processes of a rank's host are killed (DD-PPO)",
    "unseen": "a host does not see the run's directory",
    "slow": "the link has 100 Mbit/s and 20 ms each way (IMPALA on Pong)",
}
CHANNELS = {  # of benchmarks/transport.py; the unit is the last word of a name
    "put of 28 KB in one process, us": "`put` of one frame of 28 KB, in one process",
    "put and get of it, us": "`put` and `get` of it, in one process",
    "256 writers: one look at all rings, us": "reading the counters of 256 writers",
    "256 writers: get of a tiny item, us": "`get` of a tiny item from one of them",
    "CPU share of a reader that waits": "a reader that waits",
    "CPU share of a writer that waits": "a writer that waits",
}
WHOLE = 10.0  # seconds after which throughput should be back


def cluster_tables() -> dict[str, str]:
    """Return the text of each marked place of docs/cluster.md, by its name."""
    return {"speed": cluster(), "bytes": between_nodes(), "hosts": hosts()}


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


def hosts() -> str:
    """Return the table of what runs on several hosts did when a host died, was cut off, or was far away."""
    cases = raw("hosts")
    rows = [[title, *(cases[name]["figures"][at] for at in (1, 3))] for name, title in HOSTS.items() if name in cases]
    days = sorted({machine(case) for case in cases.values()})
    return f"{table(['case', 'what happened', 'afterwards'], rows)}\n\nMeasured on: {'; '.join(days)}."


def channels() -> str:
    """Return the table of what an item of a channel costs, and a replica that waits."""
    case = raw("transport")["the rest"]
    found = dict(case["figures"])
    rows = [
        [title, f"{found[name]:.2g} µs" if name.endswith(" us") else f"{found[name]:.1%} of a core"]
        for name, title in CHANNELS.items()
    ]
    return f"{table(['what', 'costs'], rows)}\n\nMeasured on: {machine(case)}."


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
