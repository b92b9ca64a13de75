"""Separate hosts on one machine: what a run does when its network is cut, heals, or is slow, and when a host dies.

    sudo env PATH=$PATH python benchmarks/hosts.py --only partition

Each host is a network namespace with an address of its own, joined by virtual Ethernet to a switch in one more; nothing
of the machine's own network is touched, and the namespaces are gone at the end. Needs root and iproute2. On the first
host are Ray's head, the driver and the learner; on the others actors (of dd-ppo: a rank on each). The cases:

    cut        the cable of a host is out for five seconds, and in again
    partition  it is out until the host counts as lost; then it is in again, and Ray is started on the host anew
    killed     all processes of Ray on a host are killed, in the middle of dd-ppo; then the run is resumed without it
    slow       100 Mbit/s and 20 ms between the hosts (20 ms only where the kernel has netem)

These processes share their processors, so no steps/s of this file says anything of real hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import publish, table

ROOT = Path(__file__).parents[1]
SWITCH, PORT = "shoal-switch", 6379
SMALL = [
    "--env",
    "CartPole-v1",
    "--preset",
    "none",
    "--device",
    "cpu",
    "--hidden",
    "8",
    "--envs",
    "4",
    "--unroll",
    "16",
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """``count`` namespaces on one switch; ``run`` starts a command on one of them. All of it ends with ``close``."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.folder = count, folder
        self._token = secrets.token_hex(32)
        self._processes: list[subprocess.Popen[str]] = []
        self.ray: dict[int, subprocess.Popen[str]] = {}
        ip("netns", "add", SWITCH)
        ip("-n", SWITCH, "link", "add", "switch", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "switch", "up")
        for i in range(count):
            ip("netns", "add", self.name(i))
            ip("-n", SWITCH, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", self.name(i))
            ip("-n", SWITCH, "link", "set", f"port{i}", "master", "switch", "up")
            ip("-n", self.name(i), "address", "add", f"{self.address(i)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", self.name(i), "link", "set", device, "up")

    @staticmethod
    def name(host: int) -> str:
        return f"shoal-host{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def run(self, host: int, *command: str) -> subprocess.Popen[str]:
        environ = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0",
            "RAY_enable_worker_prestart": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
        }  # fmt: skip
        with open(self.folder / f"host{host}.log", "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name(host), *command], env=environ, stdout=log, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def start_ray(self, host: int, cpus: int) -> None:
        """Ray on a host: the head on the first."""
        where = ("--head", f"--port={PORT}", "--include-dashboard=false") if host == 0 else (
            f"--address={self.address(0)}:{PORT}",
        )  # fmt: skip
        self.ray[host] = self.run(
            host, sys.executable, "-m", "ray.scripts.scripts", "start", *where, "--block", f"--num-cpus={cpus}",
            f"--node-ip-address={self.address(host)}", f"--object-store-memory={80 << 20}",
            *((f"--temp-dir={self.folder / 'ray'}",) if host == 0 else ()),
        )  # fmt: skip
        if host == 0:
            until(lambda: self.answers(), 60, "Ray's head does not answer")

    def answers(self) -> bool:
        code = f"import socket; socket.create_connection(('{self.address(0)}', {PORT}), 1)"
        return self.run(0, sys.executable, "-c", code).wait() == 0

    def cable(self, host: int, state: str) -> None:
        """``up`` or ``down``."""
        ip("-n", SWITCH, "link", "set", f"port{host}", state)

    def slow(self, host: int) -> str:
        """100 Mbit/s and 20 ms, each way, between a host and the switch; what of it the kernel can do."""
        netem = subprocess.run(
            ["tc", "-n", SWITCH, "qdisc", "add", "dev", f"port{host}", "root", "netem", "rate", "100mbit", "delay",
             "20ms"], capture_output=True, check=False,
        ).returncode == 0  # fmt: skip
        shape = ["netem", "rate", "100mbit", "delay", "20ms"] if netem else [
            "tbf", "rate", "100mbit", "burst", "64kb", "latency", "400ms"
        ]  # fmt: skip
        for where, device in ((SWITCH, f"port{host}"), (self.name(host), "eth0")):
            subprocess.run(["tc", "-n", where, "qdisc", "replace", "dev", device, "root", *shape], check=True)
        return "100 Mbit/s, 20 ms each way" if netem else "100 Mbit/s (this kernel has no netem: no delay)"

    def kill(self, host: int) -> None:
        """Every process that was started on a host, at once."""
        for process in self.members(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def members(self, host: int) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.name(host)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def close(self) -> None:
        for host in range(self.count):
            self.kill(host)
        for process in self._processes:
            process.wait()
        for name in (*map(self.name, range(self.count)), SWITCH):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@contextlib.contextmanager
def hosts(count: int, cpus: tuple[int, ...], folder: Path) -> Iterator[Hosts]:
    """So many hosts, with Ray on each."""
    made = Hosts(count, folder)
    try:
        for host in range(count):
            made.start_ray(host, cpus[host])
        yield made
    finally:
        made.close()


def until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for something; how long it took. TimeoutError that says what never happened."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what} ({seconds:.0f} s)")
        time.sleep(0.2)
    return time.monotonic() - began


class Run:
    """A run that is started on the first host."""

    def __init__(self, where: Hosts, name: str, *words: str) -> None:
        self.where, self.folder = where, where.folder / name
        self.words = (*words, "--run-dir", str(self.folder), "--checkpoint-every", "3")
        self.process = self._start("train", *self.words)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        address = f"{self.where.address(0)}:{PORT}"
        return self.where.run(
            0, sys.executable, "-m", "shoal", *words, "--runtime", "ray", "--address", address, "--quiet"
        )  # fmt: skip

    def resume(self, *words: str) -> int:
        return self._start("resume", str(self.folder), *words).wait()

    def log(self, name: str = "run.log") -> str:
        path = self.folder / "logs" / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def wait_for(self, text: str, seconds: float, log: str = "run.log") -> float:
        return until(lambda: text in self.log(log) or self.ended(), seconds, f"'{text}' was never said in {log}")

    def ended(self) -> bool:
        if self.process.poll() not in (None, 143):
            raise RuntimeError(f"the run ended: {(self.where.folder / 'host0.log').read_text()[-2000:]}")
        return False

    def checkpoints(self) -> int:
        return len(list((self.folder / "checkpoints").glob("*/manifest.json")))

    def begin(self) -> None:
        """Until its first checkpoint is there."""
        until(lambda: not self.ended() and self.checkpoints() > 0, 300, "there is no first checkpoint")

    def rate(self, seconds: float) -> float:
        """Environment steps per second from now on."""
        first = self.rows()[-1]
        until(
            lambda: self.ended() or self.rows()[-1]["seconds"] - first["seconds"] > seconds,
            10 * seconds + 60,
            "no rows of metrics",
        )
        last = self.rows()[-1]
        return float((last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"]))

    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "performance.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def stop(self) -> str:
        """End it in order; whether each step was counted once: what each replica counted, against the whole."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait()
        sys.path.insert(0, str(ROOT))
        from shoal.records import checkpoint

        saved = checkpoint.newest(self.folder / "checkpoints")
        counted = sum(line[0] for lines in saved.read("run")["counts"].values() for line in lines)
        return f"exit {code}, {counted:,} steps counted by replicas, {saved.steps:,} by the run"


def cut(folder: Path, seconds: float) -> list[str]:
    with hosts(2, (3, 2), folder) as made:
        run = Run(made, "cut", "impala", *SMALL, "--batch", "2", "--actors", "4", "--steps", "1000000000")
        run.begin()
        made.cable(1, "down")
        time.sleep(5.0)
        made.cable(1, "up")
        time.sleep(seconds)
        lost = "was lost" in run.log()
        rate = run.rate(3.0)
        return ["5 s", "a host was given up" if lost else "no host was given up, no actor restarted",
                f"goes on at {rate:,.0f} steps/s; {run.stop()}"]  # fmt: skip


def partition(folder: Path, seconds: float) -> list[str]:
    with hosts(2, (3, 2), folder) as made:
        run = Run(made, "partition", "impala", *SMALL, "--batch", "2", "--actors", "4", "--steps", "1000000000")
        run.begin()
        made.cable(1, "down")
        lost = run.wait_for("was lost", 120)
        alone = run.rate(3.0)
        time.sleep(max(0.0, 95.0 - lost))  # its agent and its raylet end themselves
        left = len(made.members(1))
        made.cable(1, "up")
        made.kill(1)
        made.start_ray(1, 2)
        back = run.wait_for("goes on on node", 120)
        time.sleep(seconds)
        return [f"counted as lost after {lost:.0f} s", f"{alone:,.0f} steps/s without it; {left} processes left on it",
                f"its actors go on {back:.0f} s after it is back; {run.stop()}"]  # fmt: skip


def killed(folder: Path, seconds: float) -> list[str]:
    with hosts(2, (2, 2), folder) as made:
        words = ("--minibatches", "2", "--epochs", "2", "--actors", "3", "--min-fraction", "1.0")
        run = Run(made, "killed", "dd-ppo", *SMALL, *words, "--steps", "1000000000")
        run.begin()
        made.kill(1)
        began = time.monotonic()
        code = run.process.wait()
        took = time.monotonic() - began
        told = (folder / "host0.log").read_text(encoding="utf-8")
        said = "; ".join(line.strip() for line in told.splitlines() if "its node was lost" in line or "rank[" in line)
        made.start_ray(1, 2)
        time.sleep(5.0)
        saved = max(
            int(json.loads(p.read_text())["steps"]) for p in (run.folder / "checkpoints").glob("*/manifest.json")
        )
        again = run.resume("--steps", str(saved + 2000))
        return [f"ends after {took:.0f} s, exit {code}", said, f"resumed from {saved:,} steps, exit {again}"]


def slow(folder: Path, seconds: float) -> list[str]:
    with hosts(2, (2, 2), folder) as made:
        run = Run(made, "slow", "impala", *SMALL, "--batch", "2", "--actors", "3", "--steps", "1000000000")
        run.begin()
        before = run.rate(seconds)
        shape = made.slow(1)
        time.sleep(2.0)
        after = run.rate(seconds)
        ended = run.stop()
        crossed = [line.partition("between nodes: ")[2] for line in run.log().splitlines() if "between nodes" in line]
        return [f"{shape}: {before:,.0f}, then {after:,.0f} steps/s", "; ".join(crossed), ended]


CASES: dict[str, Callable[[Path, float], list[str]]] = {c.__name__: c for c in (cut, partition, killed, slow)}


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
    text = table(["case", "what happened", "meanwhile", "afterwards"], rows)
    publish("hosts", __doc__ or "", {"hosts": text}, {"hosts": rows}, not args.publish)


if __name__ == "__main__":
    main()
