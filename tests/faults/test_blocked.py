"""A second signal ends a run whatever its main thread hangs in, and no process outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from trainings import ENVIRON

from shoal.records.checkpoint import newest
from shoal.runtime.interrupts import EXIT_CODES, GRACE_SECONDS, TOGETHER, Interrupts
from shoal.runtime.watcher import Watcher

pytestmark = pytest.mark.timeout(110)
HANGS = {
    "sleeping": "time.sleep(1e6)",
    "deaf": """
while True:
    try:
        time.sleep(1e6)
    except BaseException:
        pass
""",
    "native": """
mutex = ctypes.create_string_buffer(64)
lock = ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
lock(mutex)  # never comes back, and no signal interrupts it
""",
}
SCRIPT = """
import ctypes, sys, time
from pathlib import Path
import shoal, shoal.run.training
runtime, where, hang, folder = sys.argv[1:]
def stuck(*args, **kwargs):
    if where == "observer" and not any(Path(folder, "r", "checkpoints").glob("0*")):
        return
    Path(folder, "stuck").touch()
    exec(hang)
if where == "logger":
    class Logger:
        def __init__(self, *args): stuck()
    shoal.run.training.loggers.Logger, shoal.run.training.loggers.check = Logger, lambda names, path: None
def command():
    shoal.train("impala", env="CartPole-v1", actors=2, envs=2, preset="none", runtime=runtime, run_dir=folder + "/r",
                checkpoint_every=0.1, hidden=(4,), steps=10**8, observers=[stuck] if where == "observer" else [],
                log=["tensorboard"] if where == "logger" else ())
    return 0
from shoal.cli.guard import Guard
raise SystemExit(Guard().run(command))
"""


def blocked(folder: Path, runtime: str, where: str, hang: str) -> subprocess.Popen[str]:
    """A run whose main thread hangs."""
    command = [sys.executable, "-c", SCRIPT, runtime, where, HANGS[hang], str(folder)]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRON)
    while not (folder / "stuck").exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    return run


@pytest.mark.parametrize(
    "runtime, where, hang",
    [
        ("local", "observer", "sleeping"), ("local", "observer", "deaf"), ("local", "observer", "native"),
        ("local", "logger", "native"), ("serial", "observer", "native"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_run_that_hangs(
    tmp_path: Path, runtime: str, where: str, hang: str, number: signal.Signals
) -> None:
    if number == signal.SIGTERM and hang != "native":
        return
    run = blocked(tmp_path, runtime, where, hang)
    family = psutil.Process(run.pid).children(recursive=True)
    assert len(family) >= 3 or runtime == "serial" or where == "logger"
    for _ in range(2):
        run.send_signal(number)
        time.sleep(TOGETHER + 0.2)  # else they are one
    _, told = run.communicate()
    assert run.returncode == 128 + number
    assert told.endswith("shoal: interrupted\n" if number == signal.SIGINT else "shoal: terminated\n")
    psutil.wait_procs(family, timeout=30)
    assert not [process for process in family if process.is_running()]
    if where == "observer" and runtime == "local":
        assert newest(tmp_path / "r" / "checkpoints").steps >= 0, "what was saved before is whole"


def test_a_first_signal_waits_for_whoever_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr("shoal.runtime.interrupts.leave", left.append)
    with Interrupts(wake := os.open(os.devnull, os.O_WRONLY)) as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.count == 1
        watcher = interrupts._watcher
        assert watcher is not None and watcher._thread.is_alive()
    os.close(wake)
    assert not watcher._thread.is_alive() and left == []
    assert signal.set_wakeup_fd(-1) == -1, "what was there before is there again"


def test_the_end_is_told_of_the_first_signal_that_was_heard() -> None:
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    watcher = Watcher([signal.SIGTERM], 1, 0.0, TOGETHER, lambda: 0, ended.append)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        watcher._thread.join()
    finally:
        watcher.close()
        signal.signal(signal.SIGTERM, before)
    assert ended == [signal.SIGTERM]


def test_a_copy_of_the_process_tells_nothing_of_its_own_signals() -> None:
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    watcher = Watcher([signal.SIGTERM], 1, 0.0, TOGETHER, lambda: 0, ended.append)
    try:
        if not (pid := os.fork()):
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        watcher.close()
        signal.signal(signal.SIGTERM, before)
    assert ended == []


CLEANUP = """
import os, signal, sys, time
from shoal.cli.guard import Guard
from shoal.runtime.interrupts import Interrupts
number, fails = int(sys.argv[1]), sys.argv[2]
class Owner:
    def __del__(self):
        os.kill(os.getpid(), number)
def command():
    with Interrupts() as interrupts:
        interrupts.count, interrupts.reason = 1, "terminated"
        try:
            if fails == "destructor":
                Owner()
                time.sleep(1e6)
            os.kill(os.getpid(), number)
        finally:
            if fails == "cleanup":
                raise RuntimeError("the cluster is gone")
raise SystemExit(Guard().run(command))
"""


@pytest.mark.parametrize("fails", ["nothing", "cleanup", "destructor"])
def test_what_fails_after_a_second_signal_is_not_told(fails: str) -> None:
    """Neither what cleans up, nor a destructor or a callback of C code that the signal's exception is raised in."""
    command = [sys.executable, "-c", CLEANUP, str(int(signal.SIGTERM)), fails]
    run = subprocess.run(command, capture_output=True, text=True, env=ENVIRON)
    assert (run.returncode, run.stderr) == (143, "shoal: terminated\n")


def test_there_is_a_sentence_for_each_signal() -> None:
    assert GRACE_SECONDS > 0 and set(EXIT_CODES) == {"interrupted", "terminated", "hung up"}
