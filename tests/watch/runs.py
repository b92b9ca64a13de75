"""Directories of runs, written by the code that writes those of real ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

from shoal.api import Field
from shoal.metering.aggregator import Snapshot
from shoal.program import Program
from shoal.program.picture import drawings
from shoal.program.wiring import Channel
from shoal.records.metric_files import MetricFiles
from shoal.untrusted import RUN_FORMAT


def program() -> Program:
    """Two actors, a queue, a learner and its parameters; nothing of it can run."""
    made = Program("toy")
    queue = made.channel(Channel("unrolls", "queue", {"obs": Field((4,), "float32")}, 2))
    params = made.channel(Channel("params", "params", {"w": Field((8,), "float32")}))
    made.role("actor", None, replicas=2, on_failure="restart", out=queue.writer(), params=params.reader())
    made.role("learner", None, unrolls=queue.reader(), params=params.writer())
    return made


def snapshot(row: int, **changes: object) -> Snapshot:
    """The state of a run at a row: a return that rises with it, 100 steps each."""
    values = dict(
        row=row, seconds=row / 2, steps=100 * row, updates=row, step_rate=200.0, update_rate=2.0,
        episode_return=float(row), episode_length=10.0, episodes=row, records={"loss": 1.0 / row},
        shares={"actor": {"env": 0.7, "wait:params": 0.3}, "learner": {"learn": 0.9, "wait:unrolls": 0.1}},
        fill={"unrolls": 0.25}, memory=10**6, phases={"actor": ["env", "restarting"], "learner": ["learn"]},
        moved={"unrolls": 4 * row},
    )  # fmt: skip
    return Snapshot(**{**values, **changes})  # type: ignore[arg-type]


def write_run(path: Path, rows: int = 3, seed: int = 0, ended: str = "", **config: object) -> Path:
    """A run of so many ``rows`` in a new directory; without ``ended``, one that was killed."""
    path.mkdir(parents=True)
    facts = {
        "format": RUN_FORMAT, "system": "impala", "seed": seed, "preset": "classic", "runtime": "local",
        "config": {"env": "CartPole-v1", "learning_rate": 0.001, **config},
        "origins": {"env": "flag", "learning_rate": "preset classic", **dict.fromkeys(config, "flag")},
        "stop": {"steps": 1_000, "seconds": None, "updates": None, "episode_return": None},
        "versions": {"python": "3"}, "hardware": {"cores": 2}, "environment": {"id": "CartPole-v1", "backend": "toy"},
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(facts))
    for name, text in drawings(program()).items():
        (path / name).write_text(text)
    files = MetricFiles(path)
    for row in range(1, rows + 1):
        files.update(snapshot(row))
    files.close()
    (path / "logs").mkdir()
    (path / "logs" / "run.log").write_text("2026-01-02 03:04:05,678 INFO 3 processes start\n")
    (path / "logs" / "actor-0.log").write_text("actor[0] starts\n")
    if ended:
        report = {"format": RUN_FORMAT, "reason": ended, "steps": 100 * rows, "updates": rows, "seconds": rows / 2,
                  "episode_return": float(rows), "episodes": rows, "restarts": 0}  # fmt: skip
        (path / "report.json").write_text(json.dumps({k: None if v is math.nan else v for k, v in report.items()}))
    return path
