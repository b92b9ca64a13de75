"""Every benchmark runs for a moment, without peers, and prints its table; no figure of it is looked at."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


def run(script, *args, tmp_path):
    environ = {**os.environ, "SHOAL_PEERS": str(tmp_path / "none"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *args]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280, check=False
    )  # generous: the machine may be busy
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "a smoke run leaves nothing behind"
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "script, row, skipped",
    [
        ("throughput.py", r"\| shoal \| fp32 \| [\d,.]+ \|", ("sb3", "tianshou")),
        ("solve.py", r"\| recurrent-ppo \| 1/1 \| [\d,.]+ \|", ("sb3", "sf")),
        ("replay.py", r"\| shoal \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \|", ("tianshou", "rllib", "reverb")),
        ("transport.py", r"\| 28 KB \| [\d,.]+ \| [\d,.]+ \|", ("rllib",)),
        ("reduction.py", r"\| 4,610 floats \(a small MLP\) \| [\d.]+ \| [\d.]+ \|", ()),
        ("population.py", r"\| random search \| [\d.]+ \| [\d.]+ to [\d.]+ \| \d+ \| 0 \|", ()),
        ("marks.py", r"\| shoal \| [\d,.]+ \| 1 \| - \|[^#]*- shoal: [\d.]+ x rpc, at least 3: ", ("rllib",)),
        ("faults.py", r"\| 1 kills \| 1 \| [\d.]+ \| [\d.]+ \| \d \| [\d,.]+ \|", ()),
        ("soak.py", r"\| apex-dqn-cartpole \| [\d.]+ \| [\d,.]+ \| -?[\d,.]+ \|", ()),
        ("supervisor.py", r"\| 3 \| [\d.]+% \| \d+ \| \d+ \|", ()),
        ("scaling.py", r"\| 1 \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \| .*learner: ", ()),
    ],
)
def test_smoke(script, row, skipped, tmp_path):
    out = run(script, "--smoke", tmp_path=tmp_path)
    assert re.search(row, out), out
    for peer in skipped:
        assert f"{peer}: skipped, no {tmp_path}/none/{peer}/bin/python" in out


@pytest.mark.timeout(300)
def test_an_ablation_runs_for_a_moment(tmp_path):
    out = run("ablation.py", "r2d2", "--smoke", tmp_path=tmp_path)
    assert re.search(r"\| stored-burn-in \| [\d.]+ \([\d.]+ to [\d.]+\) \| [\d.]+ \[", out), out


def test_every_run_of_an_ablation_has_settings_that_are_taken(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from ablation import ABLATIONS

    from shoal import systems
    from shoal.settings.config import resolve

    for one in ABLATIONS.values():
        for task, variant, _ in one.runs((), one.seeds):
            settings = dict(one.settings(task, variant), steps=one.steps)
            preset = settings.pop("preset")
            resolve(systems.load(one.system), preset, None, settings)
        assert len({str(one.settings(t, v)) for t, v, _ in one.runs((), (0,))}) == len(one.runs((), (0,)))


def test_normalised_scores_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from ablation import normalised

    found = normalised({"a": [5.0, 7.0], "b": [2.0, 2.0]}, random=1.0)
    assert found["a"].tolist() == [0.8, 1.2] and found["b"].tolist() == [0.2, 0.2]
    assert normalised({"a": [1.0]}, random=1.0) == {}


@pytest.mark.timeout(300)
@pytest.mark.skipif("SHOAL_TEST_CLUSTER" not in os.environ, reason="SHOAL_TEST_CLUSTER=1 asks for it")
def test_smoke_of_the_cluster(tmp_path):
    pytest.importorskip("ray")
    out = run("cluster.py", "--smoke", "--only", "dd-ppo-cartpole", tmp_path=tmp_path)
    assert re.search(r"\| ray \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \| - \|", out), out
    assert re.search(r"gradients [\d,.]+ \(must: [\d,.]+\)", out), out


@pytest.mark.parametrize(
    "script",
    ["throughput.py", "marks.py", "solve.py", "replay.py", "scaling.py", "faults.py", "soak.py", "cluster.py"],
)
def test_list_says_what_would_run(script, tmp_path):
    assert "cartpole" in run(script, "--list", tmp_path=tmp_path).lower()


def test_a_side_that_takes_too_long_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import common

    note = tmp_path / "pid"
    script = tmp_path / "side.py"
    script.write_text(
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    figures = common.run_side(common.Side("shoal", str(script)), timeout=10)
    assert figures == {"error": "no result within 10 s"}
    deadline = time.monotonic() + 20
    while psutil.pid_exists(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(int(note.read_text()))


def test_the_table_of_results_is_what_is_recorded(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import learning

    assert learning.table() in (ROOT / "docs" / "results.md").read_text(), "python benchmarks/learning.py --summary"
    assert learning.table() == (learning.RESULTS / "summary.md").read_text()
