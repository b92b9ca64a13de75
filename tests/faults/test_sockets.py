"""Whatever every open port of a whole command is sent, and however many connections are silent: it goes on, takes no
memory for it, and says little. The ports are looked for among all processes of the command, not named."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from trainings import ENVIRON, SMALL
from watch.runs import write_run

from shoal.records.metric_files import newest_steps

pytestmark = pytest.mark.timeout(400)
SILENT = 500  # connections that say nothing
HELLO = struct.pack("<BI", 0, 0x3C85F7CE)  # what clients of torch's store begin with
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # and those of gRPC, which Ray speaks
MOST_LINES = 12  # of a command, for all of it
NOISE = random.Random(0)
SENT = [
    b"", b"\n", HELLO[:3], HTTP2[:9], bytes(200_000), *(NOISE.randbytes(n) for n in (1, 8, 100, 5_000, 300_000)),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"\x16\x03\x01\xff\xff" + bytes(50), struct.pack("<Q", 2**63 - 1), struct.pack(">Q", 2**62) * 3, b"\xff" * 64,
    HELLO + b"\x01" + struct.pack("<Q", 2**62),
    HELLO + b"\x01" + struct.pack("<Q", 1) + b"k" + struct.pack("<Q", 2**40),
    HELLO + b"\x0b" + struct.pack("<Q", 2**60), HTTP2 + b"\xff\xff\xff\x01\x04\x00\x00\x00\x01" + b"a" * 1_000,
    HTTP2 + bytes(9) * 50, b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
]  # fmt: skip
INSTALLED = {name: importlib.util.find_spec(name) is not None for name in ("ray", "uvicorn", "plotly")}
PAGE = pytest.mark.skipif(not (INSTALLED["uvicorn"] and INSTALLED["plotly"]), reason="needs the extra watch")
TRAIN = ("train", "dd-ppo", "--env", "CartPole-v1", "--preset", "none", "--device", "cpu", "--steps", "1000000000")
COMMANDS = {
    "watch": ("watch", "runs", "--port", "0"),
    "train-watch": ("train", "impala", *SMALL, "--watch", "--steps", "1000000000"),
    "ray": ("train", "impala", *SMALL, "--runtime", "ray", "--steps", "1000000000"),
    "torchrun": TRAIN,
}  # fmt: skip


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it."""
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def ports(pid: int) -> set[tuple[str, int]]:
    """Where a process and all that descend from it listen on the network."""
    found = set()
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN:
                    found.add((each.laddr.ip.removeprefix("::ffff:"), each.laddr.port))
    return found


def memory(pid: int) -> int:
    """Bytes of a process and all that descend from it, in memory of their own."""
    total = 0
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            found = process.memory_info()
            total += found.rss - found.shared
    return total


class Command:
    """A command in a folder, with its standard error in a file."""

    def __init__(self, folder: Path, name: str, *words: str) -> None:
        self.folder, self.errors = folder, folder / "errors.txt"
        start = [sys.executable, "-m", "shoal"]
        if name == "torchrun":
            start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *start[1:]]
        if name != "watch":
            words = (*words, "--run-dir", str(folder / "r"), "--quiet")
        environ = {**ENVIRON, "SHOAL_WATCH_TOKEN": "a" * 32, "OMP_NUM_THREADS": "1"}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen([*start, *words], cwd=folder, stdout=errors, stderr=errors, env=environ)

    def alive(self) -> None:
        assert self.process.poll() is None, self.errors.read_text()[-3_000:]

    def steps(self) -> int:
        return newest_steps(self.folder / "r") if (self.folder / "r" / "metrics.csv").exists() else 0

    def further(self, steps: int) -> None:
        """Wait until the run has more steps than these."""
        while self.steps() <= steps:
            self.alive()
            time.sleep(0.2)


def answer(place: tuple[str, int]) -> bytes:
    with socket.create_connection(place, timeout=60.0) as user:
        user.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return user.recv(1_000)


def send(place: tuple[str, int], message: bytes) -> None:
    """Send something to a port, and half of it once more, and look at what comes back for a moment."""
    for part in (message, message[: len(message) // 2]):
        with contextlib.suppress(OSError), socket.create_connection(place, timeout=5.0) as stranger:
            stranger.sendall(part)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(0.2)
            stranger.recv(1_000)


@contextlib.contextmanager
def silence(places: set[tuple[str, int]]) -> Iterator[None]:
    """Connections that say nothing, for the time of the block."""
    with contextlib.ExitStack() as held:
        for _ in range(SILENT):
            for place in places:
                with contextlib.suppress(OSError):
                    held.enter_context(socket.create_connection(place, timeout=1.0))
        yield


@pytest.mark.parametrize("name", [pytest.param(n, marks=PAGE if "watch" in n else ()) for n in COMMANDS])
def test_no_port_of_a_command_is_harmed(name: str, tmp_path: Path) -> None:
    if name == "ray" and not INSTALLED["ray"]:
        pytest.skip("needs the extra ray")
    if name == "watch":
        write_run(tmp_path / "runs" / "one")
    command = Command(tmp_path, name, *COMMANDS[name])
    pid = command.process.pid
    try:
        if name == "watch":
            while not ports(pid):
                command.alive()
                time.sleep(0.1)
        else:
            command.further(0)
        places, before = ports(pid), memory(pid)
        assert places, "something listens"
        if name != "torchrun":  # whose stores have no other choice
            assert {ip for ip, _ in places} == {"127.0.0.1"}, places
        places = {("127.0.0.1", port) for _, port in places}
        for place in sorted(places):
            for message in SENT:
                send(place, message)
        steps = command.steps()
        with silence(places):
            if name != "watch":
                command.further(steps)
        assert memory(pid) - before < 300 * 2**20
        if "watch" in name:
            assert all(b"403" in answer(place) for place in places), "others are answered"
        if name != "watch":
            command.further(command.steps())
    finally:
        command.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(60.0)
        for each in family(pid) if command.process.poll() is None else ():
            each.kill()
    told = command.errors.read_text(errors="replace")
    if name != "torchrun":  # which tells of its own end, and torch of each message
        assert command.process.returncode == 130 and len(told.splitlines()) < MOST_LINES, told[-3_000:]
        assert "Traceback" not in told, told[-3_000:]
