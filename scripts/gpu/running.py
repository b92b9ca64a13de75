"""Runs one stage in a process group of its own, within its time, and writes what it prints as it comes."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEAST = 5.0  # seconds that must be left for a stage to begin


@dataclass(frozen=True)
class Stage:
    """A command whose lines that are JSON objects are its findings. seconds: how long it may take; case: what it
    measures, of which another stage may measure something else; may_lack: a module without which it is left out."""

    name: str
    command: list[str]
    seconds: float
    case: str = ""
    env: dict[str, str] = field(default_factory=dict)
    may_lack: str = ""


class Results:
    """The lines found so far, each of which is in the file before the next is looked for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lines: list[dict[str, Any]] = []
        self._path = folder / "results.jsonl"
        self._path.write_text("", encoding="utf-8")
        self._begin = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def add(self, **line: Any) -> None:
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def describe(self, device: str) -> None:
        import torch

        on_gpu = device != "cpu" and torch.cuda.is_available()
        self.add(
            stage="machine", device=device, gpu=torch.cuda.get_device_name(device) if on_gpu else "",
            cores=len(os.sched_getaffinity(0)), cpu=platform.processor() or platform.machine(),
            torch=torch.__version__, python=platform.python_version(), time=time.strftime("%Y-%m-%d %H:%M:%S"),
        )  # fmt: skip


def run_stage(stage: Stage, left: float, folder: Path, results: Results) -> bool:
    """Whether the stage ended well in its time and what is ``left`` of that of all. A module that it may lack leaves it
    out, which is no failure."""
    if stage.may_lack and not _importable(stage.may_lack):
        results.add(stage=stage.name, case=stage.case, left_out=f"{stage.may_lack} is not installed")
        return True
    limit = min(stage.seconds, left)
    if limit < LEAST:
        results.add(stage=stage.name, case=stage.case, ok=False, error=f"only {max(left, 0.0):.0f} s were left")
        return False
    begin, timed_out = time.monotonic(), threading.Event()
    print(f"{stage.name} ...", flush=True)
    with (folder / f"{_file_name(stage.name)}.log").open("w", encoding="utf-8") as log, _Usage() as usage:
        process = subprocess.Popen(
            stage.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **stage.env}, start_new_session=True,
        )  # fmt: skip

        def end() -> None:
            timed_out.set()
            _kill(process.pid)

        timer = threading.Timer(limit, end)
        timer.start()
        assert process.stdout is not None
        last = ""
        for text in process.stdout:
            log.write(text)
            log.flush()
            last = text.strip() or last
            if (found := _object(text)) is not None:
                results.add(stage=stage.name, case=stage.case, **found)
        process.stdout.close()
        process.wait()
        timer.cancel()
        _kill(process.pid)  # whatever it left behind
    why = f"stopped after {limit:.0f} s" if timed_out.is_set() else last[:300]
    ok = process.returncode == 0 and not timed_out.is_set()
    seconds = round(time.monotonic() - begin, 1)
    told = {} if ok else {"error": why}
    results.add(stage=stage.name, case=stage.case, ok=ok, seconds=seconds, gpu_used=usage.mean(), **told)
    print(f"{stage.name}: {'well' if ok else 'FAILED: ' + why} ({seconds:.0f} s)", flush=True)
    return ok


class _Usage:
    """The share of the time in which the GPU worked on something, as ``nvidia-smi`` says once a second."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Usage:
        if shutil.which("nvidia-smi"):
            self._process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-l", "1", "-i", "0"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            out, _ = self._process.communicate()
            self._seen = [float(line) for line in out.splitlines() if line.strip().isdigit()]

    def mean(self) -> float | None:
        return round(sum(self._seen) / len(self._seen) / 100, 3) if self._seen else None


def _importable(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _file_name(stage: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in stage).strip("-")


def _object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return {key: value for key, value in found.items() if key not in ("stage", "case")}
