"""``shoal train`` in a process of its own, for tests that do something to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])}


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not _can_mount(), reason="nobody may mount in a name space of their own here")

SMALL = ("--env", "CartPole-v1", "--actors", "2", "--envs", "4", "--preset", "none")


class Training:
    """``shoal train`` of a small IMPALA in a process of its own; ``pids`` are its roles' process ids."""

    def __init__(self, folder: Path, *arguments: str, system: str = str(HERE / "told_system.py")) -> None:
        folder.mkdir()
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "train", system, *arguments, "--run-dir", str(folder / "r"), "--quiet"],
            stderr=subprocess.PIPE, text=True, env={**ENVIRON, "SHOAL_TEST_PIDS": str(folder)},
        )  # fmt: skip

    def pids(self, *names: str) -> list[int]:
        """Waits until all these roles have told theirs."""
        while not all((self.folder / name).exists() for name in names):
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        return [int((self.folder / name).read_text()) for name in names]

    def steps(self) -> int:
        """As its last row of metrics says; 0 before the first."""
        path = self.folder / "r" / "metrics.jsonl"
        rows = path.read_text().splitlines() if path.exists() else []
        return int(json.loads(rows[-1])["steps"]) if rows else 0

    def end(self) -> str:
        """Interrupt it; returns what it wrote to its standard error."""
        self.process.send_signal(signal.SIGINT)
        _, told = self.process.communicate()
        return told
