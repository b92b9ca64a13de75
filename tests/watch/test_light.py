"""What a look at runs costs: no PyTorch, which takes seconds and 200 MB, and nothing at all while nobody looks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

pytest.importorskip("uvicorn", reason="needs the extra watch")
pytest.importorskip("plotly", reason="needs the extra watch")

from watch.runs import write_run

HEAVY = {"torch", "numba", "gymnasium", "scipy", "pandas"}
SERVER = """
import json, sys, threading, urllib.request
from pathlib import Path
from shoal.cli import main, watch
from shoal.watch import page_process, server

made, sock = server.make_server([Path(sys.argv[1])], "a" * 32, "127.0.0.1"), server.listen("127.0.0.1", 0)
threading.Thread(target=made.run, args=([sock],)).start()
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
where = server.address(sock, "127.0.0.1", "a" * 32)
opener.open(where).read()
for asked in ("runs", "run?run=one", "metrics?run=one", "curves?run=one&run=two&metric=loss", "times?run=one",
              "log?run=one&file=run.log", "run?run=many"):
    assert opener.open(where.partition("?")[0] + "api/" + asked).read(), asked
made.should_exit = True
print(json.dumps([*sys.modules]))
"""
REPORT = """
import json, sys
from shoal.cli.main import main

assert main(["report", sys.argv[1], "--out", sys.argv[2]]) == 0
print(json.dumps([*sys.modules]))
"""


def modules(code: str, *args: object) -> set[str]:
    """What is imported in a process once it has run ``code``, whose last line prints it."""
    words = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_run(tmp_path / "runs" / name, ended="steps")
    population = tmp_path / "runs" / "many"
    population.mkdir()
    (population / "population.json").write_text('{"system": "impala"}')
    (population / "scores.csv").write_text("member,step,score\n0,100,1.5\n")
    return tmp_path / "runs"


def test_the_page_is_served_without_torch(runs: Path) -> None:
    assert not HEAVY & modules(SERVER, runs)


def test_a_report_is_written_without_torch(runs: Path) -> None:
    assert not HEAVY & modules(REPORT, runs, runs.parent / "report.html")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts how often a process wakes, as Linux does")
def test_a_server_that_nobody_asks_sleeps_until_a_signal_ends_it(runs: Path) -> None:
    words = [sys.executable, "-m", "shoal", "watch", str(runs)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().rpartition(" ")[2].strip()
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            assert browser.open(address, timeout=60).headers["date"].endswith("GMT")
            time.sleep(0.5)  # the connection is closed
            before = psutil.Process(process.pid).num_ctx_switches().voluntary
            time.sleep(2.0)
            assert psutil.Process(process.pid).num_ctx_switches().voluntary - before <= 2
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
        finally:
            process.kill()
