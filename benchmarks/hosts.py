"""Separate hosts on one machine: what a run does when its network is cut, heals, or is slow, and when a host dies.

    sudo env PATH=$PATH python benchmarks/hosts.py --only partition

Each host is a network namespace with an address of its own, joined by virtual Ethernet to a switch in one more; nothing
of the machine's own network is touched, and the namespaces are gone at the end. Needs root and iproute2. On the first
host are Ray's head, the driver and the learner; on the others actors (of dd-ppo: a rank on each). Where the head is
killed, the driver and the learner are on the second. The cases:

    cut        the cable of a host is out for five seconds, and in again
    partition  it is out until the host counts as lost; then it is in again, and Ray is started on the host anew
    killed     all processes of Ray on a host are killed, in the middle of dd-ppo; then the run is resumed without it
    actors     the same of a host of actors, in the middle of impala; then Ray is started on the host anew
    transitions    the same in the middle of apex-dqn
    head       the same of the head's host; the learner and the driver, which is the command, are on another one
    books      the head's raylet and the process that keeps its books are killed, beside the driver
    slow       100 Mbit/s and 20 ms each way between the hosts
    unseen     a host does not see the run's directory

These processes share their processors, so no steps/s of this file says anything of real hosts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import publish, table
from namespaces import Hosts, Run, hosts, until

SMALL = ["--preset", "none", "--device", "cpu", "--hidden", "8", "--envs", "4", "--unroll", "16"]
CARTPOLE = ["--env", "CartPole-v1", *SMALL]


def cut(folder: Path, seconds: float) -> list[str]:
    with hosts(2, (3, 2), folder) as made:
        run = Run(made, "cut", "impala", *CARTPOLE, "--batch", "2", "--actors", "4", "--steps", "1000000000")
        run.begin()
        made.cable(1, "down")
        time.sleep(5.0)
        made.cable(1, "up")
        time.sleep(seconds)
        lost = "was lost" in run.log()
        rate = run.rate(3.0)
        return ["5 s", "a host was given up" if lost else "no host was given up, no actor restarted",
                f"goes on at {rate:,.0f} steps/s; {run.stop()}"]  # fmt: skip


def returned(made: Hosts, run: Run, seconds: float) -> str:
    """Ray on the second host anew; the run goes on there for some seconds, and is stopped."""
    made.start_ray(1, 2)
    back = run.wait_for("goes on on node", 120)
    time.sleep(seconds)
    return f"its actors go on {back:.0f} s after it is back; {run.stop()}"


def partition(folder: Path, seconds: float) -> list[str]:
    with hosts(2, (3, 2), folder) as made:
        run = Run(made, "partition", "impala", *CARTPOLE, "--batch", "2", "--actors", "4", "--steps", "1000000000")
        run.begin()
        made.cable(1, "down")
        lost = run.wait_for("was lost", 120)
        alone = run.rate(3.0)
        time.sleep(max(0.0, 95.0 - lost))  # its agent and its raylet end themselves
        left = len(made.members(1))
        made.cable(1, "up")
        made.kill(1)
        return [f"counted as lost after {lost:.0f} s", f"{alone:,.0f} steps/s without it; {left} processes left on it",
                returned(made, run, seconds)]  # fmt: skip


def killed(folder: Path, seconds: float) -> list[str]:
    with hosts(2, (2, 2), folder) as made:
        words = ("--minibatches", "2", "--epochs", "2", "--actors", "3", "--min-fraction", "1.0")
        run = Run(made, "killed", "dd-ppo", *CARTPOLE, *words, "--steps", "1000000000")
        run.begin()
        made.kill(1)
        began = time.monotonic()
        code = run.process.wait()
        took = time.monotonic() - began
        said = "; ".join(
            line.strip() for line in run.told().splitlines() if "its node was lost" in line or "rank[" in line
        )
        made.start_ray(1, 2)
        time.sleep(5.0)
        saved = max(run.checkpoints())
        again = run.resume("--steps", str(saved + 2000))
        return [f"ends after {took:.0f} s, exit {code}", said, f"resumed from {saved:,} steps, exit {again}"]


def actors(folder: Path, seconds: float, *words: str) -> list[str]:
    words = words or ("impala", *CARTPOLE, "--batch", "2")
    with hosts(2, (3, 2), folder) as made:
        run = Run(made, "actors", *words, "--actors", "4", "--steps", "1000000000")
        run.begin()
        made.kill(1)
        lost = run.wait_for("was lost", 120)
        alone = run.rate(3.0)
        return [f"counted as lost after {lost:.0f} s", f"{alone:,.0f} steps/s without it", returned(made, run, seconds)]


def transitions(folder: Path, seconds: float) -> list[str]:
    replay = ("--batch", "16", "--min-replay", "200", "--replay", "5000", "--samples-per-insert", "2")
    return actors(folder, seconds, "apex-dqn", *CARTPOLE, *replay)


def head(folder: Path, seconds: float, *names: str) -> list[str]:
    """All of the first host is killed; or, of what is there beside the driver, what has one of these names."""
    driver = 0 if names else 1
    with hosts(2, (1, 4), folder) as made:
        words = (*CARTPOLE, "--batch", "2", "--actors", "4", "--steps", "1000000000")
        run = Run(made, "head", "impala", *words, host=driver)
        run.begin()
        before = len(run.told())
        made.kill(0, *names)
        began = time.monotonic()
        until(lambda: run.process.poll() is not None, 180, "the command does not end")
        took, code = time.monotonic() - began, run.process.returncode
        said = "; ".join(line for line in run.told()[before:].splitlines() if line.startswith("shoal:"))
        left = until(lambda: not any(made.members(h, "forkserver", "ray::Agent") for h in (0, 1)), 150, "some are left")
        made.kill(0)
        made.kill(1)
        made.start_ray(0, 1)
        made.start_ray(1, 4)
        time.sleep(5.0)
        saved = max(run.checkpoints())
        again = run.resume("--steps", str(saved + 2000))
        return [f"ends after {took:.0f} s, exit {code}; no process of the run is left {left:.0f} s later", said,
                f"resumed on a new head from {saved:,} steps, exit {again}"]  # fmt: skip


def books(folder: Path, seconds: float) -> list[str]:
    return head(folder, seconds, "gcs_server", "raylet/raylet")


def slow(folder: Path, seconds: float) -> list[str]:
    """Images, which fill the cable."""
    words = ("impala", *SMALL, "--env", "ALE/Pong-v5", "--torso", "nature", "--batch", "2", "--actors", "3")
    with hosts(2, (2, 2), folder) as made:
        run = Run(made, "slow", *words, "--steps", "1000000000")
        run.begin()
        before, first = run.rate(seconds), run.bottleneck()
        made.slow(1, rate=100e6, delay=0.02)
        time.sleep(2.0)
        answer = made.there_and_back(1)
        after, then = run.rate(seconds), run.bottleneck()
        ended = run.stop()
        crossed = [line.partition("between nodes: ")[2] for line in run.log().splitlines() if "between nodes" in line]
        return [f"an answer takes {1000 * answer:.0f} ms: {before:,.0f} steps/s ({first}), then {after:,.0f} ({then})",
                "; ".join(crossed), ended]  # fmt: skip


def unseen(folder: Path, seconds: float) -> list[str]:
    private = folder / "private"
    private.mkdir()
    with hosts(2, (2, 3), folder, private) as made:
        run = Run(made, "private/run", "impala", *CARTPOLE, "--batch", "2", "--actors", "4", "--steps", "1000000000")
        code = run.process.wait()
        said = [line for line in run.told().splitlines() if line.startswith("shoal:")]
        return [
            f"exit {code}",
            "; ".join(said),
            f"left in the run's directory: {len(list(run.folder.rglob('*')))} files",
        ]


CASES: dict[str, Callable[[Path, float], list[str]]] = {
    c.__name__: c for c in (cut, partition, killed, actors, transitions, head, books, slow, unseen)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--publish", action="store_true", help="write the table to benchmarks/results")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("hosts.py makes network namespaces, which needs root")
    rows = []
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="shoal-hosts-") as folder:
            try:
                rows.append([name, *CASES[name](Path(folder), args.seconds)])
            except (TimeoutError, RuntimeError) as error:
                told = "".join(path.read_text()[-1500:] for path in Path(folder).glob("*/logs/run.log"))
                rows.append([name, "failed", str(error), told or (Path(folder) / "host0.log").read_text()[-1500:]])
        print(rows[-1], flush=True)
    columns = ["case", "what happened", "meanwhile", "afterwards"]
    tables = {row[0]: table(columns, [row]) for row in rows}
    publish("hosts", __doc__ or "", tables, {row[0]: row for row in rows}, not args.publish)


if __name__ == "__main__":
    main()
