"""What the local runtime's channels cost between two processes: rings, parameters, polling, waiting.

    python benchmarks/transport.py

Beside them, what a user would write instead: ``multiprocessing.Queue`` (it pickles), ``torch.multiprocessing`` (it
sends handles of shared tensors), and calls from one Ray actor to another.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import threading
import time
from typing import Any

import numpy as np
import torch
from common import Side, parser, publish, ratio, run_side, table as markdown, wired

from shoal import api
from shoal.local import processes
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.shm import layout
from shoal.shm.arena import Arena
from shoal.shm.ports import QueueReader
from shoal.shm.ring import Consumer, Producer
from shoal.shm.session import Session
from shoal.shm.store import StoreReader, StoreWriter

SIZES = {"28 KB": 28 * 1024, "1 MB": 2**20}


def write(arena: Arena, plan: layout.Plan, nbytes: int, in_place: bool) -> None:
    """The other process: puts items until it is killed."""
    torch.set_num_threads(1)
    producer = Producer(Session(arena, Recorder()), plan.rings["c"], 0)
    data = {"x": np.ones(nbytes // 4, np.float32)}
    while True:
        if in_place:
            with producer.slot() as slot:
                slot["x"][0] = 1.0
        else:
            producer.put(data)


def ring(
    nbytes: int, seconds: float, count: int = 1, capacity: int = 16, in_place: bool = False
) -> tuple[float, float]:
    """Items per second from one process to another, and CPU microseconds of the reader per item."""
    channel = Channel("c", "queue", {"x": api.Field((nbytes // 4,), "float32", 0)}, capacity)
    plan = wired(channel)
    arena = Arena(plan.total)
    reader = QueueReader(Consumer(Session(arena, Recorder()), plan.rings["c"]), count)
    process = processes.context().Process(target=write, args=(arena, plan, nbytes, in_place))
    process.start()
    try:
        for _ in range(2 * capacity // count):
            reader.get()
        gets, start, cpu = 0, time.perf_counter(), time.process_time()
        while (span := time.perf_counter() - start) < seconds:
            for _ in range(16):
                reader.get()
            gets += 16
        return gets * count / span, (time.process_time() - cpu) / (gets * count) * 1e6
    finally:
        process.kill()
        process.join()


def feed(queue: Any, enough: Any, nbytes: int, tensors: bool) -> None:
    """The other process of a queue of the standard library's, or of torch's: items until it is enough, then None."""
    array = np.ones(nbytes // 4, np.float32)
    while not enough.is_set():
        for _ in range(16):
            queue.put(torch.from_numpy(array.copy()) if tensors else array)
    queue.put(None)
    signal.pause()  # who reads a tensor gets its memory from this process


def baseline(nbytes: int, seconds: float, tensors: bool) -> float:
    """Items per second through ``multiprocessing.Queue``, or ``torch.multiprocessing``'s."""
    context: Any = (torch.multiprocessing if tensors else multiprocessing).get_context("spawn")
    queue, enough = context.Queue(16), context.Event()
    process = context.Process(target=feed, args=(queue, enough, nbytes, tensors), daemon=True)
    process.start()
    try:
        for _ in range(32):
            queue.get()
        done, start = 0, time.perf_counter()
        while (span := time.perf_counter() - start) < seconds:
            float(queue.get()[0])
            done += 1
        enough.set()
        while queue.get() is not None:  # killed with an item half made, it would leave that one's memory behind
            pass
        return done / span
    finally:
        process.kill()
        process.join()


def waiting(seconds: float) -> tuple[float, float]:
    """CPU share of a reader that waits for an item, and of a writer that waits for room."""
    channel = Channel("c", "queue", {"x": api.Field((16,), "float32", 0)}, 1)
    plan = wired(channel)
    item: dict[str, Any] = {"x": np.zeros(16, np.float32)}
    shares = []
    for end in ("reader", "writer"):
        arena = Arena(plan.total)
        producer = Producer(Session(arena, Recorder()), plan.rings["c"], 0)
        reader = QueueReader(Consumer(Session(arena, Recorder()), plan.rings["c"]))
        if end == "writer":
            producer.put(item)
        blocked = threading.Thread(
            target=reader.get if end == "reader" else producer.put, args=() if end == "reader" else (item,)
        )
        blocked.start()
        cpu = time.process_time()
        time.sleep(seconds)
        shares.append((time.process_time() - cpu) / seconds)
        if end == "reader":
            producer.put(item)
        else:
            reader.get()
            reader.get()
        blocked.join()
    return shares[0], shares[1]


def params(count: int) -> tuple[float, float]:
    """Milliseconds of a publish and of a read of ``count`` float32 parameters in 14 tensors."""
    spec = {f"w{i}": api.Field((count // 14,)) for i in range(14)}
    plan = wired(Channel("c", "params", spec))
    session = Session(Arena(plan.total), Recorder())
    writer, reader = StoreWriter(session, plan.stores["c"]), StoreReader(session, plan.stores["c"])
    values = {name: torch.rand(f.shape) for name, f in spec.items()}
    publish, read = [], []
    for _ in range(50):
        start = time.perf_counter()
        writer.publish(values)
        middle = time.perf_counter()
        reader.latest()
        publish.append(middle - start)
        read.append(time.perf_counter() - middle)
    return statistics.median(publish) * 1e3, statistics.median(read) * 1e3


def alone() -> tuple[float, float]:
    """Microseconds of a put, and of put and get, of 28 KB in one process: no second core, no waiting."""
    channel = Channel("c", "queue", {"x": api.Field((7168,), "float32", 0)}, 16)
    plan = wired(channel)
    session = Session(Arena(plan.total), Recorder())
    producer, reader = Producer(session, plan.rings["c"], 0), QueueReader(Consumer(session, plan.rings["c"]))
    item: dict[str, Any] = {"x": np.ones(7168, np.float32)}
    puts, pairs = [], []
    for _ in range(5000):
        start = time.perf_counter()
        producer.put(item)
        puts.append(time.perf_counter() - start)
        reader.get()
        pairs.append(time.perf_counter() - start)
    return statistics.median(puts) * 1e6, statistics.median(pairs) * 1e6


def poll(writers: int) -> tuple[float, float]:
    """Microseconds to look at every ring, and of one get of a tiny item, with ``writers`` writers in turn."""
    channel = Channel("c", "queue", {"x": api.Field((16,), "float32", 0)}, 2)
    plan = wired(channel, writers)
    session = Session(Arena(plan.total), Recorder())
    consumer = Consumer(session, plan.rings["c"])
    reader = QueueReader(consumer)
    producers = [Producer(session, plan.rings["c"], i) for i in range(writers)]
    item: dict[str, Any] = {"x": np.zeros(16, np.float32)}
    start = time.perf_counter()
    for _ in range(10000):
        consumer.ready()
    looks = (time.perf_counter() - start) / 10000
    total = 0.0
    for _ in range(100):
        for producer in producers:
            producer.put(item)
        start = time.perf_counter()
        for _ in range(writers):
            reader.get()
        total += time.perf_counter() - start
    return looks * 1e6, total / (100 * writers) * 1e6


CASES = {  # name -> bytes of an item, items joined by one get, capacity, written in place
    "64 B": (64, 1, 16, False),
    "28 KB": (28 * 1024, 1, 16, False),
    "28 KB, capacity 4": (28 * 1024, 1, 4, False),
    "28 KB, slot()": (28 * 1024, 1, 16, True),
    "28 KB, joined by 8": (28 * 1024, 8, 16, False),
    "1 MB": (2**20, 1, 4, False),
    "1 MB, slot()": (2**20, 1, 4, True),
}


def main() -> None:
    args = parser(__doc__, seconds=1.0).parse_args()
    if args.list:
        print("\n".join(CASES))
        return
    seconds, repeats = (0.05, 1) if args.smoke else (args.seconds, args.repeats)
    torch.set_num_threads(1)
    processes.prepare()
    rings: dict[str, list[tuple[float, float]]] = {}
    others: dict[str, list[float]] = {}
    ray = Side("rllib", "peers/bench_ray.py", ("--seconds", str(seconds)))
    for _ in range(repeats):
        for name, (nbytes, count, capacity, in_place) in CASES.items():
            if any(word in name for word in args.only or [""]):
                rings.setdefault(name, []).append(ring(nbytes, seconds, count, capacity, in_place))
        for name, nbytes in SIZES.items():
            others.setdefault(f"{name}, multiprocessing.Queue", []).append(baseline(nbytes, seconds, False))
            others.setdefault(f"{name}, torch.multiprocessing.Queue", []).append(baseline(nbytes, seconds, True))
        for name, rate in (run_side(ray) or {}).items():
            if name in SIZES:
                others.setdefault(f"{name}, Ray actor to actor", []).append(rate)
    rows: list[list[Any]] = []
    for name, found in rings.items():
        rate, busy = (statistics.median(column) for column in zip(*found, strict=True))
        rows.append([name, rate / 1e3, rate * CASES[name][0] / 1e9, busy, ""])
    for name, rates in others.items():
        rate, size = statistics.median(rates), name.partition(",")[0]
        ours = statistics.median(r for r, _ in rings[size]) if size in rings else float("nan")
        rows.append([name, rate / 1e3, rate * SIZES[size] / 1e9, "", ratio(ours, rate)])
    published, read = params(1_700_000)
    put, both = alone()
    looks, get = poll(256)
    reader, writer = waiting(0.2 if args.smoke else 2.0)
    facts: list[list[Any]] = [
        ["publish 1.7 M parameters in 14 tensors, ms", published], ["read them, ms", read],
        ["put of 28 KB in one process, us", put], ["put and get of it, us", both],
        ["256 writers: one look at all rings, us", looks], ["256 writers: get of a tiny item, us", get],
        ["CPU share of a reader that waits", reader], ["CPU share of a writer that waits", writer],
    ]  # fmt: skip
    tables = {
        "between two processes": markdown(["items", "K items/s", "GB/s", "reader's CPU, us each", "Shoal is x"], rows),
        "the rest": markdown(["what", "figure"], facts),
    }
    figures = {"between two processes": {"rings": rings, "others": others}, "the rest": facts}
    publish("transport", __doc__ or "", tables, figures, args.smoke)


if __name__ == "__main__":
    main()
