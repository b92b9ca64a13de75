"""Processes killed while a run goes on."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from numbered import program
from trainings import HERE, SMALL, Training

from shoal.local.runtime import LocalRuntime
from shoal.runtime.launch import Launch, Stop

pytestmark = pytest.mark.timeout(110)


KILLS = 6


def kill_each_life(folder: Path, killed: list[int]) -> None:
    """Kill writer 0 at a random moment of each of its first lives."""
    rng = random.Random(0)
    while len(killed) < KILLS:
        time.sleep(rng.uniform(0.02, 0.3))
        text = (folder / "0").read_text() if (folder / "0").exists() else ""
        if text and int(text) not in killed:
            os.kill(int(text), signal.SIGKILL)
            killed.append(int(text))


def test_a_killed_actor_costs_nobody_an_item(tmp_path: Path) -> None:
    """The reader raises for a torn, repeated or missing item of any writer, the killed one's earlier lives too."""
    killed: list[int] = []
    thread = threading.Thread(target=kill_each_life, args=(tmp_path, killed))
    thread.start()
    numbered = program(tmp_path, tmp_path / "told", life=KILLS)
    report = LocalRuntime(backoff=0.02).launch(numbered, Launch(seed=0, stop=Stop(updates=100, seconds=100)))
    thread.join()
    assert report.reason == "updates" and report.restarts == len(killed) == KILLS
    seen = {int(writer): life for writer, life in json.loads((tmp_path / "told").read_text()).items()}
    assert set(seen) == {0, 1, 2} and seen[0][0] == KILLS
    assert seen[1][0] == seen[2][0] == 0 and min(seen[1][1], seen[2][1]) > 100, "the others never stopped"


def test_the_default_budget_allows_twenty_kills_in_five_minutes() -> None:
    """One every 15 s; the whole of it is measured by benchmarks/faults.py."""
    options = LocalRuntime().patience
    in_window = options.window / 15 + 1
    assert in_window <= options.restarts
    assert options.backoff * 2 ** (in_window - 1) < 2.0, "and it is soon back"


def test_a_crash_loop_ends_soon_and_says_why_once(tmp_path: Path) -> None:
    env = f"{HERE / 'broken_env.py'}:Hopeless"
    run = Training(tmp_path / "a", "--env", env, "--actors", "2", "--envs", "2", "--preset", "none", system="impala")
    assert run.process.stderr is not None
    told, first = "", 0.0
    with run.process.stderr as lines:
        for line in lines:
            told += line
            first = first or (time.monotonic() if "failed, restarting" in line else 0.0)
    assert run.process.wait() == 1
    assert time.monotonic() - first < 30
    assert told.count("Traceback (most recent call last)") == 1, told
    assert told.count('raise RuntimeError("there is no road")') == 1
    assert re.search(r"RuntimeError in step \(index \d, action \d, seed \d+\): there is no road", told)
    assert "gave up after" in told


def test_a_killed_learner_ends_the_run_and_is_named(tmp_path: Path) -> None:
    run = Training(tmp_path / "a", *SMALL)
    learner, *actors = run.pids("learner-0", "actor-0", "actor-1")
    os.kill(learner, signal.SIGKILL)
    _, told = run.process.communicate()
    assert run.process.returncode == 1
    assert "learner[0] (generation 0) failed with exit code -9:\nkilled by SIGKILL" in told
    assert not any(psutil.pid_exists(pid) for pid in actors)


def test_a_killed_inference_server_is_replaced_and_its_actors_go_on(tmp_path: Path) -> None:
    """Also where it dies again and again, where the recurrent states are lost with it, and where an actor has two
    questions under way."""
    core = ("--core", "lstm", "--core-size", "8", "--double-buffer", "on")
    run = Training(tmp_path / "a", *SMALL, "--inference", "server", "--unroll", "10", *core)
    killed: list[int] = []
    while len(killed) < 2 or run.pids("inference-0")[0] in killed:
        (pid,) = run.pids("inference-0")
        if pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.05)
    before = run.steps()
    while run.steps() <= before + 1_000:  # more than was on its way when the third server began
        assert run.process.poll() is None, run.process.communicate()
        time.sleep(0.05)
    said = run.end()
    assert run.process.returncode == 130, said
    assert said.count("inference[0]") >= 2 and "killed by SIGKILL" in said
    report = json.loads((tmp_path / "a" / "r" / "report.json").read_text())
    assert report["steps"] > before + 1_000
    assert 2 <= report["restarts"] <= 6, "the server twice, and with it each time an actor that had a recurrent state"


def test_a_killed_parent_takes_its_children_and_nothing_else(tmp_path: Path) -> None:
    """Two runs at once on one machine."""
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    one = Training(tmp_path / "a", *SMALL)
    other = Training(tmp_path / "b", *SMALL)
    names = ("learner-0", "actor-0", "actor-1")
    pids, others = one.pids(*names), other.pids(*names)
    family = [*pids, *(p.pid for p in psutil.Process(one.process.pid).children(recursive=True))]
    one.process.kill()
    one.process.communicate()
    end = time.monotonic() + 60
    while any(map(psutil.pid_exists, family)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in family if psutil.pid_exists(pid)], "a minute later"
    assert other.pids(*names) == others and all(map(psutil.pid_exists, others)), "the other run has not noticed"
    assert (other.end(), other.process.returncode) == ("", 130)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "shoal" in name or "torch" in name}
