"""Does a long run leak? Memory, shared memory, file descriptors and threads of all its processes, sampled.

    python benchmarks/soak.py --minutes 30
    python benchmarks/soak.py --minutes 30 --watch PID NAME     a run that goes on already

After a warm-up (a third of the time: replay full, first evaluation done) memory may grow by less than 1 MB per minute,
and descriptors and threads not at all; otherwise the exit code is 1. Runs write checkpoints, metrics and evaluations
meanwhile, as they do for users. Memory is the sum of the proportional sizes (pages that processes share count once) of
anonymous and shared memory; pages of files (libraries) are left out: other programs that map them change the share.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from common import HERE, RESULTS, end, parser, publish, table

CASES = {
    "impala-pong": ("impala", "--env", "ALE/Pong-v5", "--steps", "1000000000"),
    "apex-dqn-cartpole": (
        "apex-dqn", "--env", "CartPole-v1", "--replay", "50000", "--steps", "1000000000", "--eval-every", "10000",
    ),
}  # fmt: skip
COLUMNS = ("seconds", "memory", "shared", "descriptors", "threads", "processes")
LIMIT = 1.0  # MB per minute
Sample = tuple[float, ...]


def main() -> int:
    options = parser(__doc__, 1800.0)
    options.add_argument("--minutes", type=float, help="of each case (default 30)")
    options.add_argument("--watch", nargs=2, metavar=("PID", "NAME"), help="sample this run instead")
    args = options.parse_args()
    seconds = 12.0 if args.smoke else 60 * args.minutes if args.minutes is not None else args.seconds
    cases = {n: c for n, c in CASES.items() if not args.only or any(word in n for word in args.only)}
    if args.list:
        for name, command in cases.items():
            print(f"{name}: shoal train {' '.join(command)}")
        return 0
    if args.smoke:
        cases = {"apex-dqn-cartpole": CASES["apex-dqn-cartpole"]}
    if args.watch:
        cases = {args.watch[1]: ()}
    sampled, every = {}, 0.5 if args.smoke else 2.0
    for name, command in cases.items():
        sampled[name] = watch(int(args.watch[0]), seconds, every) if args.watch else soak(command, seconds, every)
        if not args.smoke:
            write(name, sampled[name])
    figures = {name: judge(samples) for name, samples in (sampled if args.smoke else recorded()).items()}
    rows = [[*f.values(), "constant" if passed(f) else "GROWS"] for f in figures.values()]
    columns = ("case", "minutes", "memory MB", "MB/min", "shared MB", "MB/min", "descriptors", "growth", "threads",
               "growth", "verdict")  # fmt: skip
    body = table(columns, [[name, *row] for name, row in zip(figures, rows, strict=True)])
    publish("soak", __doc__ or "", {"after the warm-up": body}, {"after the warm-up": figures}, args.smoke)
    return 0 if args.smoke or all(passed(figures[name]) for name in sampled) else 1


def soak(command: tuple[str, ...], seconds: float, every: float) -> list[Sample]:
    """Samples of one run, one ``every`` so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        train = [sys.executable, "-m", "shoal", "train", *command, "--quiet", "--run-dir", f"{folder}/r"]
        run = subprocess.Popen([*train, "--checkpoint-every", "60"], cwd=HERE.parent, text=True)
        try:
            samples = watch(run.pid, seconds, every)
            if run.poll() is not None:
                raise SystemExit(f"{' '.join(train)} ended by itself, exit code {run.returncode}")
        finally:
            end(run)
    return samples


def watch(pid: int, seconds: float, every: float) -> list[Sample]:
    """Samples of a run for so many seconds, or until it ends."""
    samples: list[Sample] = []
    start = time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        try:
            running = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            samples.append((now, *sample(pid)))
        except psutil.NoSuchProcess:
            running = False
        if not running:
            break
        time.sleep(every)
    return samples


def sample(pid: int) -> tuple[float, float, int, int, int]:
    """(MB, MB of shared memory, descriptors, threads, processes) of a process and its descendants."""
    memory = shared = 0.0
    descriptors = threads = processes = 0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            found = {key: int(kb) / 1024 for key, kb in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}
            counts = process.num_fds(), process.num_threads()
        except (OSError, psutil.Error):  # it has just ended
            continue
        own = found.get("Pss_Shmem", 0.0)
        memory, shared = memory + found["Pss_Anon"] + own, shared + own
        descriptors, threads, processes = descriptors + counts[0], threads + counts[1], processes + 1
    return memory, shared, descriptors, threads, processes


def judge(samples: list[Sample]) -> dict[str, float]:
    """Level and growth of each figure after the warm-up. Memory: the slope through the medians of half minutes, so
    that a checkpoint (a process that lives for a moment) is no leak; counts: last third against first, by medians."""
    kept = np.array([s for s in samples if s[0] >= samples[-1][0] / 3])
    out = {"minutes": samples[-1][0] / 60}
    bins = (kept[:, 0] // min(30.0, kept[-1, 0] / 6)).astype(int)
    for name, column in (("memory", 1), ("shared", 2)):
        points = np.array([(median(kept[bins == b, 0]) / 60, median(kept[bins == b, column])) for b in np.unique(bins)])
        out[name] = float(median(kept[:, column]))
        out[f"{name}_per_minute"] = float(np.polyfit(points[:, 0], points[:, 1], 1)[0])
    third = max(1, len(kept) // 3)
    for name, column in (("descriptors", 3), ("threads", 4)):
        out[name] = float(median(kept[:, column]))
        out[f"{name}_growth"] = float(median(kept[-third:, column]) - median(kept[:third, column]))
    return out


def passed(figures: dict[str, float]) -> bool:
    slopes = figures["memory_per_minute"], figures["shared_per_minute"]
    return max(slopes) < LIMIT and figures["descriptors_growth"] <= 0 and figures["threads_growth"] <= 0


def write(name: str, samples: list[Sample]) -> None:
    folder = RESULTS / "soak"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([round(value, 1) for value in row] for row in samples)


def recorded() -> dict[str, list[Sample]]:
    """Every case that was ever written."""
    out = {}
    for path in sorted((RESULTS / "soak").glob("*.csv")):
        with path.open() as file:
            out[path.stem] = [tuple(map(float, row)) for row in list(csv.reader(file))[1:]]
    return out


if __name__ == "__main__":
    sys.exit(main())
