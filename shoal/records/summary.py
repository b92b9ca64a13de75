"""``summary.md`` in a run's directory: an overview of the run for people, kept current while it runs."""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import shlex
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.metering.aggregator import WINDOW, Snapshot
from shoal.metering.bottleneck import bottleneck
from shoal.records.damage import read_json
from shoal.records.evaluation_files import BEST, FILE as EVALUATIONS, UNFINISHED
from shoal.records.markdown import code, command, items, made_on, rows, text, write_lines, written
from shoal.records.report import Report
from shoal.types import Values
from shoal.untrusted import bounded_lines, one_line, open_text
from shoal.words import counted

WRITE_SECONDS = 30.0  # seconds between two writings
SHOWN = 10  # largest number of evaluations, and of warnings, that are listed

root = logging.getLogger("shoal")


class Summary(logging.Handler):
    """An observer of the run that writes ``summary.md`` and, until ``finish``, collects Shoal's warnings. A full disk
    skips the summary and does not stop training. why: how the preset was chosen."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(logging.WARNING)
        self.path, self._why, self._command = path, why, command()
        self._began, self._due = time.time(), 0.0
        self._last: Snapshot | None = None
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._warnings: Counter[str] = Counter()
        root.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage().partition("\n")[0])

    def note(self, sentence: str) -> None:
        """Count a sentence among the warnings."""
        self._warnings[sentence] += 1

    def update(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        self._returns.extend(ret for ret, _ in snapshot.new_episodes)
        if (now := time.monotonic()) >= self._due:
            self._due = now + WRITE_SECONDS
            self.write("running")

    def finish(self, report: Report | None, error: BaseException | None = None) -> None:
        """Write how the run ended, and stop collecting warnings."""
        root.removeHandler(self)
        if error is not None:
            self.write(f"failed: {str(error).strip() or type(error).__name__}")
        elif report is not None:
            self.write(f"ended: {report.reason}")

    def write(self, state: str) -> None:
        """Write the file atomically."""
        with contextlib.suppress(Exception):  # a full disk, or a config.json that is being edited
            facts = read_json(self.path / "config.json", "run")
            write_lines(self.path, self._lines(facts, state))

    # ----------------------------------------------------------------------------------- contents
    def _lines(self, facts: Values, state: str) -> list[str]:
        env, path = facts["config"].get("env", ""), one_line(shlex.quote(str(self.path)))
        lines = [
            f"# {text(facts['system'])} on {text(env)}, seed {text(facts['seed'])}", "",
            f"{text(state if chr(10) not in state else state.splitlines()[-1])} (written {written()})", "",
            *rows({
                "command": code(self._command), "began": written(self._began),
                "preset": f"{facts.get('preset', 'none')} ({self._why})", "runtime": facts.get("runtime", ""),
                **made_on(facts.get("versions", {}), facts.get("hardware", {}), facts.get("git")),
            }),
        ]  # fmt: skip
        lines += ["", "## Score", "", *self._score(), "", "## Speed", "", *self._speed()]
        lines += ["", "## Warnings", "", *(self._told() or ["none"]), "", "## What next", "", "```bash"]
        lines += [
            f"shoal resume {path}  # go on; --steps N: for longer",
            f"shoal eval {path}{' --best' if (self.path / BEST).is_dir() else ''}  # play whole episodes",
            f"shoal eval {path} --video film.mp4  # film one", f"shoal plot {path}", "```",
        ]  # fmt: skip
        return lines

    def _score(self) -> list[str]:
        if not self._returns:
            lines = ["No episode has ended."]
        else:
            lines = [f"Return of the last {len(self._returns)} training episodes: {_interval([*self._returns])}"]
        rows: list[dict[str, str]] = []
        if (self.path / EVALUATIONS).is_file():
            with open_text(self.path / EVALUATIONS) as file:
                rows = list(csv.DictReader(bounded_lines(file)))
        if rows:
            lines += ["", "| evaluated at steps | episodes | mean return, 95 % interval |", "| ---: | ---: | --- |"]
            for row in rows[-SHOWN:]:
                mean, std, count = float(row["mean"]), float(row["std"]), int(row["episodes"])
                cut = f" ({int(row[UNFINISHED])} did not end)" if row.get(UNFINISHED) else ""
                lines.append(f"| {int(row['steps']):,} | {count}{cut} | {_around(mean, std, count)} |")
        return [*lines, "", "Intervals are of episodes of this one seed; other seeds differ by more (`--seeds`)."]

    def _speed(self) -> list[str]:
        s = self._last
        if s is None:
            return ["Nothing has been done yet."]
        pace = s.steps / s.seconds if s.seconds else 0.0
        totals = {role: sum(phases.values()) or 1.0 for role, phases in s.phase_seconds.items()}
        slow = bottleneck({
            role: {phase: seconds / totals[role] for phase, seconds in phases.items()}
            for role, phases in s.phase_seconds.items()
        })  # fmt: skip
        return [
            f"{counted(s.steps, 'step')} and {counted(s.updates, 'update')} in {s.seconds:,.0f} s: {pace:,.0f} "
            f"steps/s, "
            f"{s.updates / s.seconds if s.seconds else 0.0:,.1f} updates/s; restarts: {s.restarts}",
            "", f"Bottleneck: {slow or 'not known'}",
        ]  # fmt: skip

    def _told(self) -> list[str]:
        out = items(self._warnings.most_common(SHOWN))
        more = len(self._warnings) - SHOWN
        return [*out, *([f"- and {more} others: logs/run.log"] if more > 0 else [])]


def _interval(values: Sequence[float]) -> str:
    return _around(float(np.mean(values)), float(np.std(values)), len(values))


def _around(mean: float, std: float, count: int) -> str:
    """Return the mean of ``count`` values with its 95 % interval by a normal distribution."""
    half = 1.96 * std / math.sqrt(count)
    return f"{mean:.4g} [{mean - half:.4g}, {mean + half:.4g}]" if count > 1 else f"{mean:.4g}"
