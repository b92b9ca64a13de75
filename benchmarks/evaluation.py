"""What an evaluator that never pauses costs the training: stopped and let go on in turn, within one run.

    python benchmarks/evaluation.py

Training speed (environment steps per second) in windows with and without it, in pairs, so that a change of the
machine's speed meets both; the median of the pairs' ratios with its bootstrap interval, and the processor time that
it took.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from common import timed_rows

from shoal.analysis.stats import bootstrap
from shoal.local.pace import BACKGROUND_CPU_SHARE, NICE

CASES = {
    "recurrent-ppo CartPole-v1": ("recurrent-ppo", "CartPole-v1"),
    "impala CartPole-v1": ("impala", "CartPole-v1"),
    "dqn CartPole-v1": ("dqn", "CartPole-v1"),
    "impala ALE/Pong-v5": ("impala", "ALE/Pong-v5"),
}
RESULTS = Path(__file__).parent / "results" / "evaluation.json"


def measure(system: str, env: str, pairs: int, window: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        words = ["train", system, "--env", env, "--steps", str(10**9), "--quiet", "--run-dir", str(path)]
        words += ["--eval-every", "1"]
        run = subprocess.Popen([sys.executable, "-m", "shoal", *words])
        try:
            evaluator = find(run.pid, path)
            speeds: dict[bool, list[float]] = {True: [], False: []}
            spent, since = sum(evaluator.cpu_times()[:2]), 0.0
            for pair in range(pairs):
                for on in (True, False) if pair % 2 else (False, True):
                    evaluator.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
                    time.sleep(0.5)
                    begin = last(path)
                    time.sleep(window)
                    end = last(path)
                    speeds[on].append((end[0] - begin[0]) / (end[1] - begin[1]))
                    since += (window + 0.5) * on
            spent = sum(evaluator.cpu_times()[:2]) - spent
            evaluator.send_signal(signal.SIGCONT)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(60)
    ratios = np.array(speeds[True]) / np.array(speeds[False])
    low, high = bootstrap([ratios], np.median)
    return {
        "case": f"{system} {env}",
        "steps_per_second_without": round(float(np.median(speeds[False]))),
        "ratio": round(float(np.median(ratios)), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "processor_share": round(spent / since / len(os.sched_getaffinity(0)), 4),
        "pairs": pairs,
        "window_seconds": window,
    }


def find(pid: int, path: Path) -> psutil.Process:
    """The evaluator's process, once it has finished an evaluation and the training is under way."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        time.sleep(1)
        if (path / "evaluations.csv").exists():
            (found,) = [c for c in psutil.Process(pid).children(recursive=True) if c.nice() >= NICE + os.nice(0)]
            return found
    raise SystemExit("no evaluation within 180 s")


def last(path: Path) -> tuple[float, float]:
    """(steps, seconds) of the newest row."""
    row = timed_rows(path)[-1]
    return row["steps"], row["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name contains one of these")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--window", type=float, default=4.0, help="seconds")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    print(f"it may take {BACKGROUND_CPU_SHARE:.1%} of the processors")
    for name, (system, env) in CASES.items():
        if not options.only or any(word in name for word in options.only):
            found[name] = measure(system, env, options.pairs, options.window)
            print(json.dumps(found[name]), flush=True)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
