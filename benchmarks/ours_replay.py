"""Shoal's side of benchmarks/replay.py: the replay table in one thread, or behind rings; prints one JSON line.

``local``: unrolls of one-step transitions in, batches of 512 out. ``sequences``: the same steps in sequences of 80 and
40 before them, batches of 64 out, to be compared in bytes. ``processes``: two writer processes and the reader that
owns the table, all as fast as they can. Atari items carry one new frame and come out as two stacks of four.

The table is filled first (``fill_per_s``: mostly the system's time to find memory), then everything is measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from common import wired

from shoal.api import Field
from shoal.local import processes
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.replay import Ratio, SequenceSpec, TableSpec
from shoal.replay.limiter import RateLimiter
from shoal.shm import layout
from shoal.shm.arena import Arena
from shoal.shm.ports import ReplayReader
from shoal.shm.ring import Consumer, Producer
from shoal.shm.session import Session

BATCH, SEQUENCES, WRITERS = 512, 64, 2
SHAPES: dict[str, tuple[tuple[int, ...], str, int, int]] = {  # observation, dtype, stack, steps of 16 environments
    "cartpole": ((4,), "float32", 1, 64),
    "atari": ((1, 84, 84), "uint8", 4, 16),
}
ENVS = 16


def unroll_spec(item: str) -> dict[str, Field]:
    obs, dtype, _, steps = SHAPES[item]
    lead = (steps, ENVS)
    flags = {name: Field(lead, "bool") for name in ("terminated", "truncated", "valid", "first")}
    return {"obs": Field((*lead, *obs), dtype), "action": Field(lead, "int64"), "reward": Field(lead), **flags}


def make_unroll(item: str) -> dict[str, np.ndarray]:
    """Unrolls that continue one another, without an episode's end."""
    rng = np.random.default_rng(0)
    out = {name: np.zeros(f.shape, f.dtype) for name, f in unroll_spec(item).items()}
    out["obs"][:] = rng.integers(0, 255, out["obs"].shape)
    out["reward"][:] = rng.normal(size=out["reward"].shape)
    out["valid"][:] = True
    return out


def table_spec(item: str, sampler: Any, capacity: int) -> TableSpec:
    return TableSpec(capacity, n_step=1, stack=SHAPES[item][2], sampler=sampler, alpha=0.6)


def sequence_spec(item: str, sampler: Any, capacity: int) -> SequenceSpec:
    """As many steps as a table of ``capacity`` transitions."""
    return SequenceSpec(capacity // 40, stack=SHAPES[item][2], sampler=sampler, alpha=0.6, initial="max")


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units per second, the median of three windows."""
    work()
    found = []
    for _ in range(3):
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            done += work()
        found.append(done / (time.perf_counter() - begin))
    return median(found)


def local(args: argparse.Namespace) -> dict[str, Any]:
    sequences = args.mode == "sequences"
    spec = (sequence_spec if sequences else table_spec)(args.item, args.sampler, args.capacity)
    table: Any = spec.build(unroll_spec(args.item), 1, 0)  # with checks of its own
    unroll = make_unroll(args.item)
    steps, batch = unroll["reward"].size, SEQUENCES if sequences else BATCH
    begin = time.perf_counter()
    while table.size < min(args.held, spec.capacity):
        table.add(unroll)
    fill = table.inserted / (time.perf_counter() - begin)

    def add() -> int:
        table.add(unroll)
        return steps

    def sample() -> int:
        table.sample(batch)
        return batch

    nbytes = sum(x.nbytes for x in table.sample(batch).items.values()) / batch
    found = {"held": table.size, "fill_per_s": fill, "samples_per_s": rate(sample, args.seconds)}
    found["sampled_mb_per_s"] = found["samples_per_s"] * nbytes / 1e6
    found["inserts_per_s"] = rate(add, args.seconds)
    if args.sampler != "uniform":
        keys = [np.array(table.sample(batch).keys) for _ in range(64)]
        priorities = np.random.default_rng(0).random((64, batch)).astype(np.float32)
        at = iter(range(10**9))

        def update() -> int:
            i = next(at) % 64
            table.reprioritise(keys[i], priorities[i])
            return batch

        found["updates_per_s"] = rate(update, args.seconds)
    valid, why = table.check_valid()
    assert valid, why
    return found


def write(arena: Arena, plan: layout.Plan, item: str, number: int) -> None:
    """A writer process: puts the same unroll until it is killed."""
    torch.set_num_threads(1)
    producer, unroll = Producer(Session(arena, Recorder()), plan.rings["c"], number), make_unroll(item)
    while True:
        producer.put(unroll)


def between_processes(args: argparse.Namespace) -> dict[str, Any]:
    processes.prepare()
    spec, unroll = table_spec(args.item, args.sampler, args.capacity), unroll_spec(args.item)
    ratio = Ratio(min_size=BATCH)
    plan = wired(Channel("c", "replay", unroll, 2, ratio, spec), WRITERS)
    arena = Arena(plan.total)
    table = spec.build(unroll, WRITERS, 0)
    steps = unroll["reward"].shape[0] * ENVS
    session = Session(arena, Recorder())
    reader = ReplayReader(Consumer(session, plan.rings["c"]), table, RateLimiter(ratio, steps), BATCH, session.metrics)
    writers = [processes.context().Process(target=write, args=(arena, plan, args.item, i)) for i in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        while table.size < min(args.held, args.capacity):
            reader.get()
        begin, inserted, sampled = time.perf_counter(), table.inserted, table.sampled
        while (span := time.perf_counter() - begin) < 3 * args.seconds:
            reader.get()
        rates = {"inserts_per_s": (table.inserted - inserted) / span, "samples_per_s": (table.sampled - sampled) / span}
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    return {"held": table.size, **rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("item", choices=list(SHAPES))
    parser.add_argument("mode", choices=["local", "sequences", "processes"])
    parser.add_argument("--sampler", default="proportional", choices=["uniform", "proportional", "rank", "greedy"])
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--held", type=int, default=10**9, help="transitions in the table from the start, if not full")
    parser.add_argument("--seconds", type=float, default=1.5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = between_processes(args) if args.mode == "processes" else local(args)
    spec = (sequence_spec if args.mode == "sequences" else table_spec)(args.item, args.sampler, args.capacity)
    nbytes = spec.nbytes(unroll_spec(args.item))
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # at its most: the table is gone by now
    facts = {"peer": "shoal", "capacity": args.capacity, "table_gb": nbytes / 1e9, "rss_mb": round(rss / 2**10)}
    print(json.dumps({**facts, **found}), flush=True)


if __name__ == "__main__":
    main()
