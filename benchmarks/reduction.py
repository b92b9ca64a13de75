"""What a reduce channel costs between the ranks of one machine, beside Gloo's all-reduce, in turn in one run.

    python benchmarks/reduction.py

Each call puts a vector of float32 and gets the mean of all ranks' vectors; one torch thread per process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import parser, publish, ratio, table as markdown

from shoal import api
from shoal.local import processes
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Program
from shoal.shm import layout
from shoal.shm.arena import Arena
from shoal.shm.group_layout import ReduceLayout
from shoal.shm.reduce import ReduceEnd
from shoal.shm.session import Session

CASES = {"1.7 M floats (the Nature network)": 1_700_000, "4,610 floats (a small MLP)": 4_610}
WARM = 5  # calls that are not timed


def timed(call: Callable[[], object], calls: int) -> float:
    """Median milliseconds."""
    seconds = []
    for _ in range(WARM + calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM:]) * 1e3


def shoal_rank(rank: int, ranks: int, floats: int, calls: int, told: Any, arena: Arena, plan: layout.Plan) -> None:
    """One process: puts and gets."""
    torch.set_num_threads(1)
    group = plan.groups["c"]
    assert isinstance(group, ReduceLayout)
    end = ReduceEnd(Session(arena, Recorder()), group, rank)
    item = {"x": np.random.default_rng(rank).standard_normal(floats).astype(np.float32)}

    def call() -> None:
        end.put(item)
        end.get()

    told.put((rank, timed(call, calls)))


def gloo_rank(rank: int, ranks: int, floats: int, calls: int, told: Any, store: str) -> None:
    """One process: torch's all-reduce, and the division that makes it a mean."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    vector = torch.randn(floats)

    def call() -> None:
        dist.all_reduce(vector)
        vector.mul_(1 / ranks)

    told.put((rank, timed(call, calls)))
    dist.destroy_process_group()


def measure(work: Callable[..., None], ranks: int, floats: int, calls: int, *more: Any) -> float:
    """Milliseconds of a call, of the first rank."""
    context = processes.context()
    told = context.Queue()
    started = [context.Process(target=work, args=(r, ranks, floats, calls, told, *more)) for r in range(ranks)]
    for process in started:
        process.start()
    found = dict(told.get() for _ in started)
    for process in started:
        process.join()
    return float(found[0])


def shoal(ranks: int, floats: int, calls: int) -> float:
    program = Program("benchmark")
    channel = program.channel(Channel("c", "reduce", {"x": api.Field((floats,), axis=0)}, mean=True))
    program.role("rank", None, replicas=ranks, end=channel.member())
    plan = layout.plan(program)
    return measure(shoal_rank, ranks, floats, calls, Arena(plan.total), plan)


def gloo(ranks: int, floats: int, calls: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return measure(gloo_rank, ranks, floats, calls, str(Path(folder) / "store"))


def main() -> None:
    args = parser(__doc__, seconds=1.0).parse_args()
    if args.list:
        print("\n".join(CASES))
        return
    repeats = 1 if args.smoke else args.repeats
    processes.prepare()
    rows: list[list[Any]] = []
    for name, floats in CASES.items():
        calls = 5 if args.smoke else max(200, 2_000_000 // floats)
        ours, theirs = [], []
        for _ in range(repeats):
            ours.append(shoal(2, floats, calls))
            theirs.append(gloo(2, floats, calls))
        mine, other = statistics.median(ours), statistics.median(theirs)
        rows.append([name, mine, other, ratio(other, mine)])
    tables = {"between two ranks": markdown(["item", "reduce, ms", "Gloo, ms", "Shoal is x faster"], rows)}
    publish("reduction", __doc__ or "", tables, {"between two ranks": rows}, args.smoke)


if __name__ == "__main__":
    main()
