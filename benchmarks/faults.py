"""Throughput of a run whose first actor is killed again and again: IMPALA on CartPole, two actors.

    python benchmarks/faults.py --kills 20 --every 15

After each ``kill -9`` the seconds until the run is back to 95 % of its throughput: the first moment from which on the
mean rate of three seconds reaches 95 % of the median rate in the eight seconds before the kill. Half-way between two
kills the same is asked of a moment at which nothing happened: that is what the machine's own unrest looks like. That no
item is lost, torn or repeated is tests/faults/test_kills.py's matter.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import HERE, end, parser, publish, table, timed_rows

SHARE, MEAN_OVER, BEFORE = 0.95, 3.0, 8.0


def main() -> int:
    options = parser(__doc__, 15.0)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--every", type=float, default=15.0, help="seconds to a control moment, and to the next kill")
    args = options.parse_args()
    kills, every = (1, 4.0) if args.smoke else (args.kills, args.every)
    if args.list:
        print(f"impala on CartPole-v1, {kills} kills of actor[0], one every {2 * every:g} s")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        killed_at, told, found = run(Path(folder) / "r", kills, every)
    back, control = ([recovery(found, at + shift, every) for at in killed_at] for shift in (0.0, every))
    last = found[-1]
    steps = last["steps"] / last["seconds"]
    data = {"seconds_to_95_percent": back, "control": control, "restarts": last["restarts"], "steps_per_second": steps,
            "told": told}  # fmt: skip
    columns = ("moments", "restarts", "median s to 95 %", "worst s", "beyond 10 s", "steps/s of the run")
    late = [sum(seconds > 10 for seconds in side) for side in (back, control)]
    table_rows = [
        [f"{kills} kills", int(last["restarts"]), median(back), max(back), late[0], steps],
        [f"{kills} without a kill", 0, median(control), max(control), late[1], steps],
    ]
    publish("faults", __doc__ or "", {"killed actors": table(columns, table_rows)}, {"killed actors": data}, args.smoke)
    return 0 if args.smoke or max(back) <= 10 else 1


def run(folder: Path, kills: int, every: float) -> tuple[list[float], str, list[dict[str, Any]]]:
    """(seconds of the run at which its actor was killed, how it ended, rows of its metrics)."""
    train = ["-m", "shoal", "train", "impala", "--env", "CartPole-v1", "--actors", "2", "--steps", "1000000000"]
    process = subprocess.Popen(
        [sys.executable, *train, "--quiet", "--run-dir", str(folder)],
        cwd=HERE.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed_at: list[float] = []
    try:
        while len(timed_rows(folder)) < 4:
            time.sleep(0.2)
            if process.poll() is not None:
                raise SystemExit(process.communicate()[1])
        time.sleep(every)
        for _ in range(kills):
            pid = int(re.findall(r"pid (\d+)", (folder / "logs" / "actor-0.log").read_text())[-1])
            killed_at.append(timed_rows(folder)[-1]["seconds"])
            os.kill(pid, signal.SIGKILL)
            time.sleep(2 * every)
        process.send_signal(signal.SIGINT)
        process.communicate()
    finally:
        end(process)
    return killed_at, f"exit code {process.returncode}", timed_rows(folder)


def recovery(found: list[dict[str, Any]], at: float, limit: float) -> float:
    """Seconds after ``at`` until the rate is back; ``limit`` if it is not before the next kill."""
    usual = median(r["steps_per_second"] for r in found if at - BEFORE <= r["seconds"] <= at)
    after = [r for r in found if at < r["seconds"] <= at + limit]
    for first in after:
        rates = [
            r["steps_per_second"] for r in after if first["seconds"] <= r["seconds"] <= first["seconds"] + MEAN_OVER
        ]
        if sum(rates) / len(rates) >= SHARE * usual:
            return float(first["seconds"]) - at
    return limit


if __name__ == "__main__":
    sys.exit(main())
