"""Hosts of their own on one machine, for hosts.py: network namespaces with Ray on each, and runs that start there."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SWITCH, PORT = "shoal-switch", 6379


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Hosts:
    """``count`` namespaces on one switch; ``run`` starts a command on one of them. All of it ends with ``close``."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.folder = count, folder
        self._token = secrets.token_hex(32)
        self._processes: list[subprocess.Popen[str]] = []
        self.ray: dict[int, subprocess.Popen[str]] = {}
        self._started: Counter[int] = Counter()  # how often Ray has
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
        return self._start(self.name(host), f"host{host}.log", *command)

    def _start(self, namespace: str, log: str, *command: str) -> subprocess.Popen[str]:
        environ = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0",
            "RAY_enable_worker_prestart": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
        }  # fmt: skip
        with open(self.folder / log, "a", encoding="utf-8") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, *command], env=environ, stdout=out, stderr=out, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def start_ray(self, host: int, cpus: int, hidden: Path | None = None) -> None:
        """Ray on a host: the head on the first. hidden: a folder in whose place it has an empty one of its own."""
        alone = () if hidden is None else (
            "unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{hidden}" && exec "$@"', "sh"
        )  # fmt: skip
        where = ("--head", f"--port={PORT}", "--include-dashboard=false") if host == 0 else (
            f"--address={self.address(0)}:{PORT}",
        )  # fmt: skip
        self.ray[host] = self.run(
            host, *alone, sys.executable, "-m", "ray.scripts.scripts", "start", *where, "--block", f"--num-cpus={cpus}",
            f"--node-ip-address={self.address(host)}", f"--object-store-memory={80 << 20}",
            *((f"--temp-dir={self.folder / 'ray'}",) if host == 0 else ()),
        )  # fmt: skip
        log, begun = self.folder / f"host{host}.log", self._started[host]
        until(lambda: log.read_text().count("Ray runtime started") > begun, 60, f"there is no Ray on host {host}")
        self._started[host] += 1

    def cable(self, host: int, state: str) -> None:
        """``up`` or ``down``."""
        ip("-n", SWITCH, "link", "set", f"port{host}", state)

    def slow(self, host: int, rate: float, delay: float) -> None:
        """So many bits per second, and seconds of delay, each way between a host and the switch."""
        near, far = f"near{host}", f"far{host}"
        script = str(ROOT / "benchmarks" / "cable.py")
        self._start(SWITCH, "cable.log", sys.executable, script, near, far, f"--rate={rate}", f"--delay={delay}")
        until(lambda: far in ip("-n", SWITCH, "link"), 10, "there is no cable")
        ip("-n", SWITCH, "link", "add", f"end{host}", "type", "bridge")
        for device, bridge in ((near, "switch"), (far, f"end{host}"), (f"port{host}", f"end{host}")):
            ip("-n", SWITCH, "link", "set", device, "master", bridge)
        for device in (near, far, f"end{host}"):
            ip("-n", SWITCH, "link", "set", device, "up")

    def there_and_back(self, host: int) -> float:
        """Seconds until another host has refused a connection from the first: the middle of five."""
        code = (
            "import socket, time\n"
            "times = []\n"
            "for _ in range(5):\n"
            "    began = time.monotonic()\n"
            f"    socket.socket().connect_ex(('{self.address(host)}', 9))\n"
            "    times.append(time.monotonic() - began)\n"
            "print(sorted(times)[2])\n"
        )
        return float(ip("netns", "exec", self.name(0), sys.executable, "-c", code))

    def kill(self, host: int, *names: str) -> None:
        """Every process on a host at once, or those whose command has one of these names in it."""
        kill(self.members(host, *names))

    def members(self, host: int, *names: str) -> list[int]:
        return [pid for pid in inside(self.name(host)) if not names or any(name in command(pid) for name in names)]

    def close(self) -> None:
        namespaces = (*map(self.name, range(self.count)), SWITCH)
        for name in namespaces:
            kill(inside(name))
        for process in self._processes:
            process.wait()
        for name in namespaces:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def inside(namespace: str) -> list[int]:
    """The processes of a namespace."""
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def kill(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    except OSError:
        return ""


@contextlib.contextmanager
def hosts(count: int, cpus: tuple[int, ...], folder: Path, hidden: Path | None = None) -> Iterator[Hosts]:
    """So many hosts, with Ray on each. hidden: a folder that only the first of them sees."""
    made = Hosts(count, folder)
    try:
        for host in range(count):
            made.start_ray(host, cpus[host], hidden if host else None)
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
    """A run that is started on the first host, or on another one."""

    def __init__(self, where: Hosts, name: str, *words: str, host: int = 0) -> None:
        self.where, self.folder, self.host = where, where.folder / name, host
        self.words = (*words, "--run-dir", str(self.folder), "--checkpoint-every", "3")
        self.process = self._start("train", *self.words)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        address = f"{self.where.address(0)}:{PORT}"
        return self.where.run(
            self.host, sys.executable, "-m", "shoal", *words, "--runtime", "ray", "--address", address, "--quiet"
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
            raise RuntimeError(f"the run ended: {self.told()[-2000:]}")
        return False

    def told(self) -> str:
        """What the command has said."""
        return (self.where.folder / f"host{self.host}.log").read_text(encoding="utf-8")

    def checkpoints(self) -> list[int]:
        """Steps of those that are there."""
        found = (self.folder / "checkpoints").glob("*/manifest.json")
        return [int(json.loads(path.read_text(encoding="utf-8"))["steps"]) for path in found]

    def begin(self) -> None:
        """Until its first checkpoint is there."""
        until(lambda: not self.ended() and bool(self.checkpoints()), 300, "there is no first checkpoint")

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

    def bottleneck(self) -> str:
        """What the run says is slow, by its latest row."""
        from shoal.metering.bottleneck import bottleneck

        shares: dict[str, dict[str, float]] = {}
        for name, share in self.rows()[-1].items():
            if name.startswith("time/"):
                _, role, phase = name.split("/")
                shares.setdefault(role, {})[phase] = share
        return str(bottleneck(shares) or "no bottleneck")

    def stop(self) -> str:
        """End it in order; whether each step was counted once: what each replica counted, against the whole."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait()
        from shoal.records import checkpoint

        saved = checkpoint.newest(self.folder / "checkpoints")
        counted = sum(line[0] for lines in saved.read("run")["counts"].values() for line in lines)
        return f"exit {code}, {counted:,} steps counted by replicas, {saved.steps:,} by the run"
