"""No process outlives a command that a signal ended, at whatever moment: its lock of a directory holds until then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from trainings import ENVIRON, SMALL

pytestmark = pytest.mark.timeout(110)
STARTING = """
import os, signal, sys, threading, time
delay = float(sys.argv.pop())
def send():
    from multiprocessing import forkserver
    while forkserver._forkserver._forkserver_pid is None:  # which imports torch from now on
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=send, daemon=True).start()
from shoal.__main__ import main
raise SystemExit(main())
"""


def of_session(leader: int) -> list[str]:
    """Processes of a session that are still there."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        try:
            if os.getsid(process.pid) == leader and process.pid != leader:
                found.append(f"{process.pid} {process.info['cmdline']}")
        except OSError:
            continue
    return found


@pytest.mark.parametrize("delay", [0.0, 0.4, 3.0])
def test_no_process_is_left_when_a_command_that_was_interrupted_returns(delay: float, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    train = ["train", "impala", *SMALL, "--run-dir", str(tmp_path / "run")]
    environ = {**ENVIRON, "TMPDIR": str(folder)}
    run = subprocess.Popen(
        [sys.executable, "-c", STARTING, *train, str(delay)], env=environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert run.wait() == 128 + signal.SIGINT
    meanwhile = [["resume", str(tmp_path / "run"), "--quiet"], [*train, "--steps", "300", "--quiet"]]
    for words in meanwhile if delay == 0.4 else ():
        again = [sys.executable, "-m", "shoal", *words]
        second = subprocess.run(again, env=environ, capture_output=True, text=True, check=False)
        told = second.stderr
        assert "still going on" not in told, "whoever was interrupted has left the directory"
        assert second.returncode in (0, 1, 2) and told.count("\n") <= 1, told
        assert not (tmp_path / "run").exists() or second.returncode == 0 or "run" in told
    assert of_session(run.pid) == []
    assert [path.name for path in folder.iterdir() if path.name.startswith("pymp")] == []
