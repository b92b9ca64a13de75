"""Runs that are recorded one by one: each in a process of its own, some at a time, and what a run leaves behind."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import end

UNTOLD = ("envs",)  # settings that follow from others: of ``total_envs``
EPISODE_STEPS = 5_000  # of an evaluation's episode


@dataclass(frozen=True)
class Job:
    """``command`` in a process of its own; ``what``: its name in sentences."""

    what: str
    command: tuple[str, ...]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the options of a benchmark whose runs are recorded. --play: what to run in this process, three words."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--cores", type=int, nargs="+", default=[0], help="a slot on each of these (default: 0)")
    made.add_argument("--again", action="store_true", help="run what is recorded again, in its place")
    made.add_argument("--table", action="store_true", help="make the table of what is recorded, run nothing")
    made.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    return made


def run_jobs(jobs: Sequence[Job], slots: Sequence[Sequence[int]], hours: float) -> list[str]:
    """Run each job, one at a time on the cores of each slot; ends those that take more than ``hours``. Returns the
    names of those that failed. When it is itself interrupted or terminated, nothing is left running."""

    def terminated(number: int, frame: object) -> None:
        sys.exit(128 + number)  # by the way out below

    before = signal.signal(signal.SIGTERM, terminated)
    waiting, busy, failed = list(jobs), dict[int, tuple[subprocess.Popen[str], float, str]](), list[str]()
    try:
        while waiting or busy:
            for slot, cores in enumerate(slots):
                if slot not in busy and waiting:
                    job = waiting.pop(0)
                    print(f"{time.strftime('%H:%M')} {job.what}", flush=True)
                    on = ["taskset", "-c", ",".join(map(str, cores)), *job.command]
                    process = subprocess.Popen(on, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True)
                    busy[slot] = (process, time.monotonic() + hours * 3600, job.what)
            time.sleep(1.0)
            for slot, (process, until, what) in list(busy.items()):
                if process.poll() is not None or time.monotonic() > until:
                    if process.poll() != 0:
                        print(f"{what}: failed, or not done within {hours:g} hours; it is not recorded", flush=True)
                        failed.append(what)
                    end(process)
                    del busy[slot]
    finally:
        for process, _, _ in busy.values():
            end(process)
        signal.signal(signal.SIGTERM, before)
    return failed


def returns_of(policy: Any, episodes: int, seed: int) -> dict[str, list[float]]:
    """Raw returns of fresh episodes of a policy that ``seed`` trained, by its greedy and by its sampled actions."""
    return {
        way: list(policy.evaluate(episodes, seed=10_000 + seed, greedy=greedy, max_steps=EPISODE_STEPS))
        for way, greedy in (("greedy", True), ("sampled", False))
    }


def keep(target: Path, result: Mapping[str, Any], files: Mapping[str, Path | str]) -> None:
    """Record a run in the folder ``target``: ``files`` (a path to copy, or the text) and ``result.json``; all of it or
    nothing, in place of what was there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        for name, content in files.items():
            if isinstance(content, Path):
                shutil.copy(content, new / name)
            else:
                (new / name).write_text(content, encoding="utf-8")
        (new / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        if target.exists():
            target.rename(Path(scratch) / "old")
        new.rename(target)


def kept(target: Path) -> dict[str, Any] | None:
    """Return what is recorded of a run; None if it is not."""
    path = target / "result.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def changed(config: Mapping[str, Any]) -> list[str]:
    """Return the settings of a recorded run (its ``config.json``) that its preset has other values of today: what the
    run has shown, it has shown of another preset. ``origins`` says which settings were the preset's."""
    from shoal.settings.config import default_values
    from shoal.settings.schedule import plain
    from shoal.systems import load

    system = load(config["system"])
    preset, settings = system.PRESETS.get(config["preset"], {}), config["config"]
    today = json.loads(json.dumps(plain(default_values(system.Config) | preset)))
    of_preset = [name for name, origin in config["origins"].items() if origin == f"preset {config['preset']}"]
    names = dict.fromkeys((*preset, *of_preset))
    return [name for name in names if name not in UNTOLD and settings.get(name) != today.get(name)]


def kept_seeds(folder: Path) -> list[dict[str, Any]]:
    """Return what is recorded of the runs in ``folder``, each named by its seed, seed by seed."""
    found = sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name))
    return [result for path in found if (result := kept(path)) is not None]
