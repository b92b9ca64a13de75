"""The script that checks a GPU runs whole on the CPU, and writes each thing that it finds at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "gpu"))
from gpu_table import table  # noqa: E402
from running import Results, Stage, run_stage  # noqa: E402

MACHINE: dict[str, Any] = dict(stage="machine", device="cpu", gpu="", cores=2, torch="2", time="2026-01-01 00:00:00")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def stage(code: str, seconds: float = 60.0, **more: Any) -> Stage:
    return Stage("a: run", [sys.executable, "-c", code], seconds, "a", **more)


def test_what_a_stage_found_before_it_failed_is_written(tmp_path: Path) -> None:
    results = Results(tmp_path)
    code = "print('{\"env_steps_per_s\": 3.0}'); print('words'); raise SystemExit('it broke')"
    assert not run_stage(stage(code), 60.0, tmp_path, results)
    found, end = lines(tmp_path)
    assert found == {"stage": "a: run", "case": "a", "env_steps_per_s": 3.0}
    assert end["ok"] is False and end["error"] == "it broke"


def test_a_stage_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])"
    results = Results(tmp_path)
    assert not run_stage(stage(code, 5.0), 60.0, tmp_path, results)
    assert lines(tmp_path)[-1]["error"] == "stopped after 5 s"


def test_no_stage_begins_without_time_and_none_without_its_module(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert not run_stage(stage("pass"), 2.0, tmp_path, results)
    assert run_stage(stage("raise SystemExit(1)", may_lack="no_such_module"), 60.0, tmp_path, results)
    late, lacking = lines(tmp_path)
    assert late["error"] == "only 2 s were left" and lacking["left_out"] == "no_such_module is not installed"


def test_the_table_sets_each_run_beside_its_limit_and_its_peer() -> None:
    found = [
        MACHINE,
        dict(stage="a: run", case="a", env_steps_per_s=3_000.0, updates_per_s=8.0),
        dict(stage="a: run", case="a", ok=True, gpu_used=0.5),
        dict(stage="a: bare update", case="a", updates_per_s=16.0),
        dict(stage="a: Stable-Baselines3", case="a", env_steps_per_s=1_000.0),
        dict(stage="a: bare update, graph", case="a", updates_per_s=21.0),
        dict(stage="b: run", case="b", ok=False, error="it broke"),
        dict(
            stage="c",
            case="c",
            way="on the device",
            env_steps_per_s=1_000.0,
            updates_per_s=10.0,
            update_alone_per_s=20.0,
            share=0.75,
        ),
        dict(stage="c", case="c", way="PPO on the device", error="fewer than three updates in 4 s"),
    ]
    text = table(found)
    assert "| a | 3,000 | 8.00 | 16 | 0.50 | 0.50 | x 3.00 |" in text and "- b: run: it broke" in text
    assert "| a, graph |  |  | 21 |" in text
    assert "| c, on the device | 1,000 | 10 | 20 | 0.75 |  |  |" in text
    assert "- c, PPO on the device: fewer than three updates in 4 s" in text


def test_the_share_of_the_limit_of_ppo_on_the_device_is_of_environments_and_updates_alone() -> None:
    """100 steps an update: 25 ms of environments, 50 ms of updating, of the 100 ms that it takes."""
    from batched import share

    rates = {"env_steps_per_s": 1_000.0, "updates_per_s": 10.0, "update_alone_per_s": 20.0}
    assert share(rates, 4_000.0) == pytest.approx(0.75)


def test_the_script_runs_whole_on_the_cpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gpu", "--device", "cpu", "--smoke", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=570,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = lines(tmp_path)
    ended = {line["stage"] for line in found if line.get("ok")}
    assert {"tests", "environments on the device", "CartPole, PPO: run", "CartPole, PPO: bare update"} <= ended
    measured = {line["way"] for line in found if "way" in line and "env_steps_per_s" in line}
    assert {"PPO on the device", "PPO on Gymnasium's"} <= measured, found
    assert "no GPU" in (tmp_path / "table.md").read_text()


def test_a_stage_that_there_is_not_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gpu", "--only", "nothing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "no stage is called nothing; there are tests" in done.stderr
