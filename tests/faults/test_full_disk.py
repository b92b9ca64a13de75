"""A disk that is full: a tiny file system of its own, in a mount namespace of its own."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from trainings import ENVIRON, HERE, needs_namespaces

pytestmark = [pytest.mark.timeout(110), needs_namespaces]


def test_a_full_disk_stops_no_training(tmp_path: Path) -> None:
    """The disk fills up while metrics are written, and later there is space again."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    train = f"{sys.executable} -m shoal train impala --env CartPole-v1 --actors 1 --envs 2 --preset none --quiet"
    script = (
        f"mount -t tmpfs -o size=400k none {disk} && head -c 340k /dev/zero > {disk}/filler && "
        f"{train} --run-dir {disk}/r; code=$?; cp -r {disk}/r {kept}; exit $code"
    )
    run = subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", script], stderr=subprocess.PIPE, text=True, env=ENVIRON, cwd=HERE
    )
    assert run.stderr is not None
    assert "cannot write metrics" in (line := run.stderr.readline()) and "No space left" in line, line
    inside = Path(f"/proc/{run.pid}/root{disk}")
    full_at = len((inside / "r" / "metrics.jsonl").read_text().splitlines())
    time.sleep(2.0)
    (inside / "filler").unlink()
    assert "are written to" in run.stderr.readline(), "and so are all later ones: nothing else is said"
    time.sleep(1.0)
    (shoal,) = psutil.Process(run.pid).children()
    shoal.send_signal(signal.SIGINT)
    _, told = run.communicate()
    assert (run.returncode, told) == (130, "")

    files = {
        name: rows_of(kept / name) for name in ("metrics.csv", "metrics.jsonl", "performance.csv", "performance.jsonl")
    }
    for rows in files.values():
        assert rows == sorted(set(rows)), "whole rows only"
    assert len({rows[-1] for rows in files.values()}) == 1 and files["metrics.jsonl"][-1] > full_at, "it went on"
    assert any(len(rows) < rows[-1] for rows in files.values()), "some were left out"
    assert (kept / "params.json").exists()


def rows_of(path: Path) -> list[int]:
    """The row numbers of a metric file; raises for a line that is not whole."""
    if path.suffix == ".jsonl":
        return [json.loads(line)["row"] for line in path.read_text().splitlines()]
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    assert all(len(row) == len(header) for row in rows)
    return [int(row[0]) for row in rows]
