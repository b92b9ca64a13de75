"""Prints what the local runtime's channels cost between two processes: rings, parameters, polling."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from shoal import api
from shoal.runtime import layout, processes
from shoal.runtime.memory import Arena
from shoal.runtime.metrics import Recorder
from shoal.runtime.ports import QueueReader
from shoal.runtime.ring import Consumer, Producer
from shoal.runtime.session import Session
from shoal.runtime.store import StoreReader, StoreWriter

REPEATS = 3


def _nothing(ctx: api.Context, **ports: Any) -> api.Role:
    raise NotImplementedError


class Wired:
    """A program of one channel."""

    def __init__(self, channel: api.Channel, writers: int, readers: int = 1) -> None:
        self.name, self.channels = "benchmark", {channel.name: channel}
        self.roles: list[api.RoleSpec] = [
            api.RoleSpec("writer", _nothing, {"out": channel.writer()}, writers),
            api.RoleSpec("reader", _nothing, {"inp": channel.reader()}, readers),
        ]

    def validate(self) -> None:
        """Nothing to check."""


def write(arena: Arena, plan: layout.Plan, nbytes: int, items: int, in_place: bool) -> None:
    """The other process: puts ``items`` items."""
    torch.set_num_threads(1)
    producer = Producer(Session(arena, Recorder()), plan.rings["c"], 0)
    data = {"x": np.ones(nbytes // 4, np.float32)}
    for _ in range(items):
        if in_place:
            with producer.slot() as slot:
                slot["x"][0] = 1.0
        else:
            producer.put(data)


def ring(nbytes: int, items: int, count: int = 1, capacity: int = 16, in_place: bool = False) -> tuple[float, float]:
    """Items per second, and CPU microseconds of the reader per item."""
    channel = api.Channel("c", "queue", {"x": api.Field((nbytes // 4,), "float32", 0)}, capacity)
    plan = layout.plan(Wired(channel, 1))
    rates, busy = [], []
    for _ in range(REPEATS):
        arena = Arena(plan.total)
        reader = QueueReader(Consumer(Session(arena, Recorder()), plan.rings["c"]), count)
        args = (arena, plan, nbytes, items + capacity, in_place)
        process = processes.context().Process(target=write, args=args)
        process.start()
        gets = items // count
        for _ in range(capacity // count):
            reader.get()
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(gets):
            reader.get()
        rates.append(gets * count / (time.perf_counter() - start))
        busy.append((time.process_time() - cpu) / (gets * count) * 1e6)
        process.kill()
        process.join()
    return statistics.median(rates), statistics.median(busy)


def params(count: int) -> tuple[float, float]:
    """Milliseconds of a publish and of a read of ``count`` float32 parameters in 14 tensors."""
    spec = {f"w{i}": api.Field((count // 14,)) for i in range(14)}
    plan = layout.plan(Wired(api.Channel("c", "params", spec), 1))
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
    channel = api.Channel("c", "queue", {"x": api.Field((7168,), "float32", 0)}, 16)
    plan = layout.plan(Wired(channel, 1))
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
    channel = api.Channel("c", "queue", {"x": api.Field((16,), "float32", 0)}, 2)
    plan = layout.plan(Wired(channel, writers))
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


def main() -> None:
    torch.set_num_threads(1)
    processes.prepare()
    for name, nbytes, items, count, capacity, in_place in (
        ("64 B", 64, 100000, 1, 16, False),
        ("28 KB, capacity 4", 28 * 1024, 30000, 1, 4, False),
        ("28 KB", 28 * 1024, 50000, 1, 16, False),
        ("28 KB, slot()", 28 * 1024, 50000, 1, 16, True),
        ("28 KB, joined by 8", 28 * 1024, 40000, 8, 16, False),
        ("1 MB", 2**20, 3000, 1, 4, False),
        ("1 MB, slot()", 2**20, 20000, 1, 4, True),
    ):
        rate, busy = ring(nbytes, items, count, capacity, in_place)
        speed = f"{rate / 1e3:6.0f} K items/s {rate * nbytes / 1e9:7.2f} GB/s"
        print(f"ring, {name:20s} {speed}, reader {busy:.2f} us CPU each")
    publish, read = params(1_700_000)
    print(f"1.7M parameters: publish {publish:.2f} ms, read {read:.2f} ms")
    put, both = alone()
    print(f"one process: put of 28 KB {put:.2f} us, put and get {both:.2f} us")
    looks, get = poll(256)
    print(f"256 writers: one look {looks:.2f} us, get {get:.2f} us")


if __name__ == "__main__":
    main()
