"""Shoal's side of the benchmarks: one run, measured; prints one JSON line.

    python benchmarks/ours.py impala --env CartPole-v1 --seconds 20 --fields '{"envs": 256, "unroll": 32}'
    python benchmarks/ours.py recurrent-ppo --env CartPole-v1 --until 475 --cap 120 --seed 0

Throughput counts environment steps and updates between the first and the last that were seen inside the window, with
the learner on. ``wall_s`` of a solved task counts from the first environment step, ``total_s`` from the start of this
process.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from typing import Any  # noqa: E402


class Watch:
    """An observer of the run: what was seen when, the roles' time shares, and the memory once. With ``seconds`` it
    ends the run (as Ctrl-C would) when it has seen updates over so many seconds after ``warmup``."""

    def __init__(self, warmup: float, seconds: float | None) -> None:
        self.warmup, self.seconds = warmup, seconds
        self.seen: list[tuple[float, int, int]] = []  # seconds since BEGIN, environment steps, updates
        self.steps: list[tuple[float, int]] = []  # after the warm-up: when there were more, and how many
        self.updates: list[tuple[float, int]] = []  # the same; roles do not report at the same moment
        self.booked: list[dict[str, dict[str, float]]] = []  # role -> phase -> seconds: after the warm-up, now
        self.pss_mb = 0.0

    def update(self, snapshot: Any) -> None:
        now = time.perf_counter() - BEGIN
        before = self.seen[-1] if self.seen else (0.0, 0, 0)
        self.seen.append((now, snapshot.steps, snapshot.updates))
        if not snapshot.updates or now < (self.first(2) or 0.0) + self.warmup:
            return
        if snapshot.steps > before[1]:
            self.steps.append((now, snapshot.steps))
        if snapshot.updates > before[2]:
            self.updates.append((now, snapshot.updates))
        self.booked = [*self.booked[:1], snapshot.phase_seconds]
        span = self.updates[-1][0] - self.updates[0][0] if self.updates else 0.0
        if not self.pss_mb and (self.seconds is None or span >= self.seconds / 2):
            from shoal.runtime.memory import tree_bytes

            self.pss_mb = tree_bytes() / 2**20
        if self.seconds is not None and span >= self.seconds:
            signal.raise_signal(signal.SIGINT)

    def first(self, column: int) -> float | None:
        """Seconds until the first step (1) or update (2)."""
        return next((row[0] for row in self.seen if row[column]), None)

    def shares(self) -> dict[str, dict[str, float]]:
        """Role -> phase -> share of its time, those of half a per cent and more."""
        out = {}
        for role, phases in self.booked[-1].items():
            before = self.booked[0].get(role, {})
            spent = {name: seconds - before.get(name, 0.0) for name, seconds in phases.items()}
            total = sum(spent.values()) or 1.0
            out[role] = {name: round(s / total, 3) for name, s in spent.items() if s >= 0.005 * total}
        return out


def configuration(args: argparse.Namespace) -> tuple[Any, Any]:
    """The system's module and the run's configuration, as the command line would resolve them."""
    from shoal import systems
    from shoal.settings.config import resolve

    module = systems.load(args.system)
    fields = {"env": args.env, **args.fields}
    return module, resolve(module, args.preset, None, fields, source="argument", name=args.system).cfg


def measure(args: argparse.Namespace) -> dict[str, Any]:
    from shoal.runtime.launch import Launch, Stop

    module, cfg = configuration(args)
    solving = args.until is not None
    watch = Watch(args.warmup, None if solving else args.seconds)
    stop = Stop(
        steps=cfg.steps if solving else None,
        seconds=args.cap if solving else args.warmup + 3 * args.seconds + 60.0,
        episode_return=args.until,
    )
    program = module.program(cfg)
    with runtime(args.runtime, program) as launcher:
        interval = 0.05 if solving else 0.2
        told: dict[str, Any] = {"display": watch} if args.runtime == "serial" else {"observers": [watch]}
        report = launcher.launch(program, Launch(seed=args.seed, stop=stop, interval=interval, **told))
    out: dict[str, Any] = {
        "peer": "shoal", "system": args.system, "env": args.env, "fields": args.fields,
        "precision": getattr(module.network(cfg), "precision", "fp32"),
        "first_update_s": watch.first(2), "pss_mb": round(watch.pss_mb),
        "return": report.episode_return, "restarts": report.restarts, **between(program, cfg, launcher, report),
    }  # fmt: skip
    if solving:
        wall = watch.seen[-1][0] - (watch.first(1) or 0.0)
        solved = report.reason == "episode_return"
        return {**out, "solved": solved, "wall_s": wall, "total_s": watch.seen[-1][0], "env_steps": report.steps}
    if len(watch.updates) < 2:
        return {**out, "error": f"fewer than two updates were seen in {report.seconds:.0f} s"}
    steps = {"env_steps_per_s": rate(watch.steps)} if len(watch.steps) > 1 else {}  # a replay may need few
    return {
        **out, **steps, "updates_per_s": rate(watch.updates),
        "window_s": watch.updates[-1][0] - watch.updates[0][0], "shares": watch.shares(),
    }  # fmt: skip


@contextlib.contextmanager
def runtime(name: str, program: Any) -> Iterator[Any]:
    """``local``; ``serial``; ``ray``: on an instance of its own; ``nodes``: on a cluster of as many nodes of one
    processor each as the program has replicas, so that every channel crosses."""
    if name == "local":
        from shoal.local import processes
        from shoal.local.runtime import LocalRuntime

        processes.prepare()
        yield LocalRuntime()
        return
    if name == "serial":
        import torch

        from shoal.serial.runtime import SerialRuntime

        torch.set_num_threads(1)
        yield SerialRuntime()
        return
    from shoal.ray_runtime.runtime import RayRuntime

    if name == "ray":
        yield RayRuntime()
        return
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_worker_niceness": "0", "RAY_enable_worker_prestart": "0"}
    node = {"num_cpus": 1, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(sum(role.replicas for role in program.roles) - 1):
            cluster.add_node(**node)
        yield RayRuntime(cluster.address)
    finally:
        cluster.shutdown()


def between(program: Any, cfg: Any, launcher: Any, report: Any) -> dict[str, Any]:
    """Bytes per environment step that crossed between nodes, by channel, and those that its spec says must, where all
    replicas are on nodes of their own."""
    crossed, steps = getattr(launcher, "traffic", {}), report.steps
    if not crossed or not steps:
        return {}
    found = {name: nbytes / steps for name, (_, nbytes) in crossed.items()}
    must = {
        name: required(program, program.channels[name], cfg, messages, report) / steps
        for name, (messages, _) in crossed.items()
    }
    return {"between": found, "must": must}


def required(program: Any, channel: Any, cfg: Any, messages: int, report: Any) -> float:
    """Bytes of a channel's items without headers and padding: of every step, where it carries steps; of one batch for
    each update, where its writers send the parts of batches; of a reduce, what goes round in a ring; else of
    each message: a version, a row, or a part of an item of a divided channel."""
    from shoal.api import spec_nbytes, spec_size
    from shoal.program import divided

    item = float(spec_nbytes(channel.spec))
    if channel.used:
        return item * report.updates
    if channel.kind in ("queue", "replay") and "reward" in channel.spec:
        return item * report.steps / (cfg.envs * cfg.unroll)
    if channel.kind == "reduce":
        members = program.writers(channel)
        return 2 * (members - 1) / members * item * messages
    if channel.divided:
        whole = 4.0 * spec_size(channel.spec) if channel.kind == "params" else item
        return whole * messages / divided.owners(program, channel)
    return item * messages


def rate(counts: list[tuple[float, int]]) -> float:
    """Per second, from the moment of one count to that of another: whole rounds, as those of the peers."""
    (t0, first), (t1, last) = counts[0], counts[-1]
    return (last - first) / (t1 - t0)


def options(text: str | None) -> argparse.ArgumentParser:
    """What names a configuration of Shoal."""
    out = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("system")
    out.add_argument("--env", default="CartPole-v1")
    out.add_argument("--preset", default="auto")
    out.add_argument("--fields", type=json.loads, default={}, help="of the configuration, as JSON")
    out.add_argument("--seconds", type=float, default=20.0)
    out.add_argument("--warmup", type=float, default=5.0, help="seconds before them (of a run: after the first update)")
    return out


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runtime", choices=["local", "serial", "ray", "nodes"], default="local")
    parser.add_argument("--until", type=float, help="solve: stop at this mean return of the last 100 episodes")
    parser.add_argument("--cap", type=float, default=120.0, help="solve: give up after this many seconds")
    print(json.dumps(measure(parser.parse_args())), flush=True)


if __name__ == "__main__":
    main()
