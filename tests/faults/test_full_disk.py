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

from shoal.cli.main import main
from shoal.records.checkpoint import newest

pytestmark = [pytest.mark.timeout(110), needs_namespaces]


class OnSmallDisk:
    """``shoal train`` on a disk of ``size`` of which ``filler`` is taken; ``inside`` is that disk, seen from here, and
    ``kept`` what was on it at the end."""

    def __init__(self, folder: Path, size: str, filler: str, *arguments: str) -> None:
        disk, self.kept = folder / "disk", folder / "kept"
        disk.mkdir()
        train = [
            sys.executable,
            "-m",
            "shoal",
            "train",
            "impala",
            "--env",
            "CartPole-v1",
            "--actors",
            "1",
            "--envs",
            "2",
        ]
        script = (
            f'mount -t tmpfs -o size={size} none "$disk" && head -c {filler} /dev/zero > "$disk/filler" && '
            '"$0" "$@"; code=$?; mkdir "$kept"; cp -r "$disk/r" "$kept/r"; exit $code'
        )
        self.process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", script, *train, "--preset", "none", "--quiet", "--run-dir", f"{disk}/r",
             *arguments],
            stderr=subprocess.PIPE, text=True, env={**ENVIRON, "disk": str(disk), "kept": str(self.kept)}, cwd=HERE,
        )  # fmt: skip
        self.inside = Path(f"/proc/{self.process.pid}/root{disk}")

    def line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def rows(self) -> int:
        return len((self.inside / "r" / "metrics.jsonl").read_text().splitlines())

    def wait_for_rows(self, count: int) -> None:
        while self.rows() < count:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)

    def interrupt(self) -> str:
        (shoal,) = psutil.Process(self.process.pid).children()
        shoal.send_signal(signal.SIGINT)
        return self.process.communicate()[1]


def test_a_full_disk_stops_no_training(tmp_path: Path) -> None:
    """The disk fills up while metrics are written, and later there is space again."""
    run = OnSmallDisk(tmp_path, "80000k", "79940k", "--checkpoint-every", "0")
    line = run.line()
    assert "cannot write metrics" in line and "No space left" in line, line
    full_at = run.rows()
    time.sleep(2.0)  # in which it goes on
    (run.inside / "filler").unlink()
    said = [line, run.line()]
    written = run.rows()  # with space for all: what was said so far may be of a row that fitted without
    run.wait_for_rows(written + 2)
    said += run.interrupt().splitlines()
    assert run.process.returncode == 130
    words = ("cannot write metrics", "are written to")  # a shorter row may have found room in what was left of a page
    assert len(said) % 2 == 0 and all(words[i % 2] in told for i, told in enumerate(said)), said

    names = ("metrics.csv", "metrics.jsonl", "performance.csv", "performance.jsonl")
    files = {name: rows_of(run.kept / "r" / name) for name in names}
    for rows in files.values():
        assert rows == sorted(set(rows)), "whole rows only"
    assert len({rows[-1] for rows in files.values()}) == 1 and files["metrics.jsonl"][-1] > full_at, "it went on"
    assert (run.kept / "r" / "params.json").exists()


def test_a_checkpoint_that_does_not_fit_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = OnSmallDisk(tmp_path, "80M", "1k", "--checkpoint-every", "1")
    checkpoints = run.inside / "r" / "checkpoints"
    while not (checkpoints.is_dir() and [p for p in checkpoints.iterdir() if p.name.isdigit()]):
        assert run.process.poll() is None, run.process.communicate()
        time.sleep(0.1)
    (run.inside / "filler").write_bytes(bytes(30 << 20))
    assert "no checkpoint at" in (line := run.line()) and "MB are free" in line, line
    before = {p.name for p in checkpoints.iterdir()}
    run.wait_for_rows(run.rows() + 2)  # training goes on
    kept = {name for name in before if name.isdigit()}
    assert kept and {p.name for p in checkpoints.iterdir() if p.name.isdigit()} == kept, "the old ones are kept"
    told = run.interrupt()
    assert told.count("no checkpoint at") <= 1, "said once, and at the end"
    capsys.readouterr()
    steps = newest(run.kept / "r" / "checkpoints").steps
    code = main(["resume", str(run.kept / "r"), "--steps", str(steps + 500), "--quiet"])
    said = capsys.readouterr().err
    assert code == 0 and "damaged" not in said and "none was completed" not in said, said


def rows_of(path: Path) -> list[int]:
    """The row numbers of a metric file; raises for a line that is not whole."""
    if path.suffix == ".jsonl":
        return [json.loads(line)["row"] for line in path.read_text().splitlines()]
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    assert all(len(row) == len(header) for row in rows)
    return [int(row[0]) for row in rows]
