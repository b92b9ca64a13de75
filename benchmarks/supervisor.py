"""What the supervisor takes of a core, and its descriptors, by the number of replicas. Most of them sleep.

    python benchmarks/supervisor.py --only 256

Each replica makes 20 steps a second, each of which counts an environment step, and reports as any replica does; the
supervisor writes metric files as for any run. Memory is the proportional size of all processes.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from common import parser, publish, table as markdown

from shoal import api
from shoal.local.runtime import LocalRuntime
from shoal.metering.aggregator import Snapshot
from shoal.program import Program
from shoal.records.run_dir import RunDirectory
from shoal.runtime.launch import Launch, Stop

CASES = (9, 33, 97, 256)
SETTLE = 0.4  # share of the time in which processes start, and the memory is read for the first time


class Sleeper:
    """Does next to nothing."""

    def __init__(self, ctx: api.Context) -> None:
        self.ctx = ctx

    def step(self) -> None:
        time.sleep(0.05)
        self.ctx.metrics.count("env_steps")


class Clock:
    """An observer: the time on the wall and that of this process's processor, at every look."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float, int, int]] = []

    def update(self, snapshot: Snapshot) -> None:
        now, spent = time.monotonic(), time.process_time()
        self.seen.append((now, spent, snapshot.memory, len(os.listdir("/proc/self/fd"))))

    def share(self, steady: float) -> float:
        """Of a core, from the time ``steady`` on."""
        late = [(now, spent) for now, spent, *_ in self.seen if now >= steady]
        return (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])


def measure(replicas: int, seconds: float) -> dict[str, float]:
    """The figures of one program; ``seconds`` begin when its processes are asked to start."""
    program = Program("sleepers")
    program.role("sleeper", Sleeper, replicas=replicas)
    clock, began = Clock(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "r")
        try:
            launch = Launch(stop=Stop(seconds=seconds), observers=[directory, clock], run_dir=directory.path)
            LocalRuntime().launch(program, launch)
        finally:
            directory.close()
    *_, (_, _, memory, descriptors) = clock.seen
    steady = began + SETTLE * seconds
    return {"share": clock.share(steady), "memory": memory / 1e6, "descriptors": descriptors}


def main() -> int:
    options = parser(__doc__, 60.0)
    args = options.parse_args()
    cases = [n for n in CASES if not args.only or str(n) in args.only]
    if args.list:
        print("\n".join(map(str, cases)))
        return 0
    found = {n: measure(n, 5.0 if args.smoke else args.seconds) for n in ([3] if args.smoke else cases)}
    rows = [[n, f"{f['share']:.1%}", round(f["memory"]), f["descriptors"]] for n, f in found.items()]
    shown = markdown(("replicas", "of a core", "memory of all, MB", "descriptors"), rows)
    publish("supervisor", __doc__ or "", {"supervisor": shown}, {str(n): f for n, f in found.items()}, args.smoke)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
