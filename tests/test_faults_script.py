"""``scripts/faults`` puts faults into a formula, and tells which a test notices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORMULA = ["shoal/ops/evolution.py", "--only", "es_weights.*-> .*[+*]", "--slots", "1", "--least", "1"]


@pytest.mark.parametrize(
    ("tests", "noticed"), [("tests/ops/test_ops_evolution.py", True), ("tests/ops/test_ops_cem.py", False)]
)
def test_a_fault_is_noticed_where_a_test_looks(tests: str, noticed: bool, tmp_path: Path) -> None:
    command = [sys.executable, "scripts/faults", *FORMULA, "--tests", tests, "--work", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    lived = [json.loads(line)["result"] == "lives" for line in lines]
    assert lived and not any(lived) if noticed else all(lived), done.stdout + done.stderr
    assert done.returncode == (0 if noticed else 1)
