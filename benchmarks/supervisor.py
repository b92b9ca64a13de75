"""What the supervisor takes of a core, and its descriptors, by the number of replicas. Most of them sleep.

    python benchmarks/supervisor.py --only 256

Each replica makes 20 steps a second, each of which counts an environment step, and reports as any replica does; the
supervisor writes metric files as for any run. Memory is the proportional size of all processes.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from common import parser, publish, table as markdown

from shoal import api
from shoal.local.runtime import LocalRuntime
from shoal.metering.aggregator import Snapshot
from shoal.program import Program
from shoal.records.run_dir import RunDirectory
from shoal.runtime.launch import Launch

CASES = (9, 33, 97, 256)
SETTLE = 0.4  # share of the time that is not counted: replicas get ready, and memory is read for the first time


class Sleeper:
    """Does next to nothing."""

    def __init__(self, ctx: api.Context) -> None:
        self.ctx = ctx

    def step(self) -> None:
        time.sleep(0.05)
        self.ctx.metrics.count("env_steps")


class Clock:
    """An observer: the time on the wall and that of this process's processor, at every look. It interrupts the run
    ``seconds`` after its first look, when all processes have been started."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.seen: list[tuple[float, float, int, int]] = []

    def update(self, snapshot: Snapshot) -> None:
        now, spent = time.monotonic(), time.process_time()
        if not self.seen or now < self.seen[0][0] + self.seconds:
            self.seen.append((now, spent, snapshot.memory, len(os.listdir("/proc/self/fd"))))
        elif self.seconds:
            self.seconds = 0.0
            os.kill(os.getpid(), signal.SIGINT)

    def share(self) -> float:
        """Of a core, after ``SETTLE`` of the time since all processes were started."""
        times = [(now, spent) for now, spent, *_ in self.seen]
        steady = times[0][0] + SETTLE * (times[-1][0] - times[0][0])
        first = next(each for each in times if each[0] >= steady)
        return (times[-1][1] - first[1]) / max(times[-1][0] - first[0], 1e-9)


def measure(replicas: int, seconds: float) -> dict[str, float]:
    """The figures of one program over so many ``seconds``, after the start of its processes."""
    program = Program("sleepers")
    program.role("sleeper", Sleeper, replicas=replicas)
    clock = Clock(seconds)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "r")
        try:
            launch = Launch(observers=[directory, clock], run_dir=directory.path)
            LocalRuntime().launch(program, launch)
        finally:
            directory.close()
    *_, (_, _, memory, descriptors) = clock.seen
    return {"share": clock.share(), "memory": memory / 1e6, "descriptors": descriptors}


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
