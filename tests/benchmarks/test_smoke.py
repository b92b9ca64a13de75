"""Every benchmark runs for a moment, without peers, and prints its table; no figure of it is looked at."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
        ("throughput.py", r"\| shoal \| fp32 \| [\d,.]+ \|", ("rllib", "sf")),
        ("solve.py", r"\| recurrent-ppo \| 1/1 \| [\d,.]+ \|", ("sb3", "sf")),
        ("replay.py", r"\| shoal \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \|", ("tianshou", "rllib", "reverb")),
        ("transport.py", r"\| 28 KB \| [\d,.]+ \| [\d,.]+ \|", ("rllib",)),
        ("scaling.py", r"\| 1 \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \| .*learner: ", ()),
    ],
)
def test_smoke(script, row, skipped, tmp_path):
    out = run(script, "--smoke", tmp_path=tmp_path)
    assert re.search(row, out), out
    for peer in skipped:
        assert f"{peer}: skipped, no {tmp_path}/none/{peer}/bin/python" in out


@pytest.mark.parametrize("script", ["throughput.py", "solve.py", "replay.py", "scaling.py"])
def test_list_says_what_would_run(script, tmp_path):
    assert "cartpole" in run(script, "--list", tmp_path=tmp_path).lower()
