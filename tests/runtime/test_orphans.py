"""What a run leaves behind, however it ends: nothing. Each run is a script without a ``__main__`` guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from shoal.runtime.interrupts import TOGETHER

pytestmark = pytest.mark.timeout(110)

SCRIPT = r"""
import ctypes, os, signal, subprocess, sys, time
from shoal import api
from shoal.local.runtime import LocalRuntime
from shoal.runtime.launch import Launch, Stop
from programs import Wired

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
print("imported", flush=True)

def tell(pid):  # one write, so that lines of several processes do not mix
    os.write(1, f"pid {pid}\n".encode())

class Busy:  # lives in __main__: travels by value
    def __init__(self, ctx, helper, long):
        tell(os.getpid())
        if helper:
            tell(subprocess.Popen(["sleep", "1000"]).pid)
        self.ctx, self.long, self.steps = ctx, long, 0
    def step(self):
        if self.long:
            os.write(1, b"long\n")
            ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter lock
        self.ctx.metrics.count("env_steps")
        self.steps += 1
        if self.steps == 5:  # a run without a step would end in another way
            os.write(1, b"stepped\n")
        time.sleep(0.01)

program = Wired()
program.role("plain", lambda ctx: Busy(ctx, True, False), replicas=2)
if "long" in sys.argv:
    program.role("long", lambda ctx: Busy(ctx, False, True))
grace = 1000.0 if "long" in sys.argv else 5.0  # then only a second signal ends it
report = LocalRuntime(grace=grace).launch(program, Launch(stop=Stop(seconds=60)))
print("reason", report.reason, report.steps > 0, flush=True)
"""


class Launched:
    """A running script and the processes it told of."""

    def __init__(self, tmp_path: Path, *arguments: str, expected: int) -> None:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        root = Path(__file__).parents[2]
        self.temporary = tempfile.mkdtemp(prefix="s", dir="/tmp")  # short: sockets are made there
        environ = {
            **os.environ,
            "TMPDIR": self.temporary,
            "PYTHONPATH": os.pathsep.join([str(root), str(Path(__file__).parent)]),
        }
        command = [sys.executable, str(script), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        self.pids: list[int] = []
        self.lines: list[str] = []
        assert self.process.stdout is not None
        wanted = ["stepped", "stepped", *(a for a in arguments if a == "long")]
        while len(self.pids) < expected or any(self.lines.count(line) < wanted.count(line) for line in wanted):
            line = self.process.stdout.readline().strip()
            assert line or self.process.poll() is None
            self.lines.append(line)
            if line.startswith("pid"):
                self.pids.append(int(line.split()[1]))
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def finish(self) -> list[str]:
        output, _ = self.process.communicate()
        return [*self.lines, *output.split("\n")]

    def wait_for_silence(self) -> None:
        """Returns once no process of the run is left; the test's timeout is the limit."""
        while any(_alive(pid) for pid in [*self.pids, *(p.pid for p in self.family)]):
            time.sleep(0.02)
        assert not os.listdir(self.temporary)
        os.rmdir(self.temporary)


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_children_follow_a_killed_parent(tmp_path: Path) -> None:
    run = Launched(tmp_path, "long", expected=5)
    run.process.kill()
    run.finish()
    run.wait_for_silence()


@pytest.mark.parametrize("number, reason", [
    (signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated"), (signal.SIGHUP, "hung up"),
])  # fmt: skip
def test_an_interrupted_run_ends_in_order(tmp_path: Path, number: signal.Signals, reason: str) -> None:
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    run = Launched(tmp_path, expected=4)
    run.process.send_signal(number)
    lines = run.finish()
    assert f"reason {reason} True" in lines
    assert lines.count("imported") == 1, "children do not import the script again"
    run.wait_for_silence()
    if shared:
        assert not [name for name in set(os.listdir("/dev/shm")) - shared if "shoal" in name or "torch" in name]


def test_the_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    run = Launched(tmp_path, "long", expected=5)
    run.process.send_signal(signal.SIGINT)
    time.sleep(1.2 * TOGETHER)
    run.process.send_signal(signal.SIGTERM)
    assert any(line.startswith("reason interrupted") for line in run.finish())
    run.wait_for_silence()
