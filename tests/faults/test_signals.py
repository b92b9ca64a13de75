"""Signals that end a run, whenever they come and whomever they reach: one sentence at most, and the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trainings import ENVIRON, SMALL

from shoal.local import signals
from shoal.runtime.interrupts import TOGETHER, Interrupts

pytestmark = pytest.mark.timeout(110)
TWICE = """
import os, signal, sys, threading, time
delay, number = float(sys.argv[1]), int(sys.argv[2])
def send():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.001)
    time.sleep(delay)
    for _ in range(2):
        os.killpg(0, number)
        time.sleep(0.1)
threading.Thread(target=send, daemon=True).start()
sys.argv[1:] = sys.argv[3:]
from shoal.__main__ import main
raise SystemExit(main())
"""
MOMENTS = [(0.0, signal.SIGINT), (0.3, signal.SIGTERM), (1.0, signal.SIGINT), (2.5, signal.SIGTERM)]


def test_a_signal_in_the_first_seconds_is_one_sentence(tmp_path: Path) -> None:
    """While modules are imported, while the program is built, while processes start: twice, to the whole group."""
    runs = []
    for i, (delay, number) in enumerate(MOMENTS):
        train = ["train", "impala", *SMALL, "--run-dir", str(tmp_path / str(i))]
        command = [sys.executable, "-c", TWICE, str(delay), str(int(number)), *train]
        runs.append(subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON, start_new_session=True,
        ))  # fmt: skip
    for (delay, number), run in zip(MOMENTS, runs, strict=True):
        _, told = run.communicate()
        sentence = "shoal: interrupted\n" if number == signal.SIGINT else "shoal: terminated\n"
        assert run.returncode == 128 + number and told in ("", sentence), (delay, run.returncode, told)


def test_signals_that_come_together_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Interrupts() as outer:
        os.kill(os.getpid(), signal.SIGTERM)
        with Interrupts() as inner:
            assert inner.reason == "terminated", "it knows of what came before"
            now[0] += 0.9 * TOGETHER
            os.kill(os.getpid(), signal.SIGINT)
            assert inner.count == 1
            now[0] += TOGETHER
            with pytest.raises(KeyboardInterrupt, match="terminated"):
                os.kill(os.getpid(), signal.SIGINT)
        assert outer.count == 2
        assert outer.reason == "terminated"


def test_a_signal_is_known_of_where_a_library_has_put_a_handler_of_its_own_meanwhile() -> None:
    with Interrupts() as outer:
        os.kill(os.getpid(), signal.SIGINT)
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)  # as ray.init does
        with Interrupts() as inner:
            assert inner.reason == "interrupted"
        signal.signal(signal.SIGTERM, before)
        assert outer.count == 1


def test_a_command_that_was_told_to_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.reason
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.reason == "hung up"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_copy_of_a_replica_takes_no_notice(tmp_path: Path) -> None:
    pid = signals.fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
