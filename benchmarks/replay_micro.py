"""Speed of the replay table in one thread: inserts, samples, priority updates. Prints one table.

python benchmarks/replay_micro.py [--capacity 1000000] [--atari-capacity 200000] [--seconds 1]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from shoal.api import Field
from shoal.data import TableSpec

STEPS, ENVS, BATCH = 64, 16, 512


def unroll_spec(obs: tuple[int, ...], dtype: str) -> dict[str, Field]:
    lead = (STEPS, ENVS)
    flags = {name: Field(lead, "bool") for name in ("terminated", "truncated", "valid", "first")}
    values = {name: Field(lead) for name in ("reward", "q_taken", "q_max")}
    return {"obs": Field((*lead, *obs), dtype), "action": Field(lead, "int64"), **values, **flags}


def make_unroll(spec: dict[str, Field], rng: np.random.Generator) -> dict[str, np.ndarray]:
    out = {name: np.zeros(f.shape, f.dtype) for name, f in spec.items()}
    out["obs"][:] = rng.integers(0, 255, out["obs"].shape)
    for name in ("reward", "q_taken", "q_max"):
        out[name][:] = rng.normal(size=out[name].shape)
    out["terminated"][STEPS - 2] = True  # one episode per unroll: its last row is the reset row
    out["first"][0] = True
    out["valid"][: STEPS - 1] = True
    return out


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units per second: the best of five rounds, since the machine may be shared."""
    work()
    best = 0.0
    for _ in range(5):
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds / 5:
            done += work()
        best = max(best, done / (time.perf_counter() - begin))
    return best


def measure(name: str, table_spec: TableSpec, obs: tuple[int, ...], dtype: str, seconds: float) -> None:
    rng = np.random.default_rng(0)
    spec = unroll_spec(obs, dtype)
    table = table_spec.build(spec, 1, 0)
    unroll = make_unroll(spec, rng)
    while table.evicted == 0:
        table.add(unroll)

    def add() -> int:
        table.add(unroll)
        return STEPS * ENVS

    def sample() -> int:
        table.sample(BATCH)
        return BATCH

    inserts, samples = rate(add, seconds), rate(sample, seconds)
    batches = []
    for _ in range(64):
        keys = table.sample(BATCH).keys
        assert keys is not None
        batches.append(keys.numpy().copy())
    deltas = rng.random((64, BATCH)).astype(np.float32)
    at = 0

    def update() -> int:
        nonlocal at
        at = (at + 1) % 64
        table.reprioritise(batches[at], deltas[at])
        return BATCH

    updates = rate(update, seconds) if table_spec.sampler != "uniform" else float("nan")
    ok, why = table.check_valid()
    assert ok, why
    size = table_spec.nbytes(spec) / 1e9
    rates = f"{inserts:>12,.0f} {samples:>12,.0f} {updates:>12,.0f}"
    print(f"{name:34s} {table.size:>9,d} {size:>7.3f} {rates}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--atari-capacity", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    print(f"unrolls of {STEPS} x {ENVS} steps, batches of {BATCH}, n_step 3")
    print(f"{'table':34s} {'items':>9s} {'GB':>7s} {'inserts/s':>12s} {'samples/s':>12s} {'updates/s':>12s}")
    small: list[TableSpec] = [
        TableSpec(args.capacity, n_step=3),
        TableSpec(args.capacity, n_step=3, sampler="proportional", initial="given"),
        TableSpec(args.capacity, n_step=3, sampler="rank"),
        TableSpec(args.capacity, n_step=3, sampler="greedy"),
        TableSpec(args.capacity, n_step=3, sampler="proportional", evict="proportional", evict_every=10_000),
    ]
    for spec in small:
        measure(f"4 floats, {spec.sampler}, {spec.evict}", spec, (4,), "float32", args.seconds)
    atari = TableSpec(args.atari_capacity, n_step=3, stack=4, sampler="proportional")
    measure("4 x 84 x 84 bytes, proportional", atari, (1, 84, 84), "uint8", args.seconds)
    full = TableSpec(1_000_000, n_step=3, stack=4, sampler="proportional")
    print(f"1,000,000 Atari transitions: {full.nbytes(unroll_spec((1, 84, 84), 'uint8')) / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
