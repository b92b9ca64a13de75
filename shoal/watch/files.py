"""The files of one run as plain data. A file that is missing, damaged or half written is told of, and ends nothing."""

from __future__ import annotations

import csv
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shoal.program.picture import FILE as PICTURE, Picture
from shoal.records.config_size import require_moderate
from shoal.records.evaluation_files import BEST, FILE as EVALUATIONS, VIDEOS
from shoal.records.live_file import NAME as LIVE
from shoal.records.run_lock import NAME as LOCK, is_held
from shoal.types import Values
from shoal.untrusted import RUN_FORMAT, excerpt, one_line, table_rows
from shoal.watch.folder import Folder
from shoal.watch.series import Table
from shoal.words import counted

Data = TypeVar("Data")
FRESH = 60.0  # seconds since its last row, within which a run on another machine is held to go on
MOST_LOG = 256 << 10  # bytes of a log that are shown
MOST_EVENTS = 200
MOST_EVALUATIONS = 1_000
_EVENT = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,\d+)? (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)$")
_COMMAND = re.compile(r"^\| command \| (`+) ?(.*?) ?\1 \|$", re.MULTILINE)


@dataclass(frozen=True)
class Event:
    """A message of ``logs/run.log``: when, its level, and its text, which may have several lines."""

    when: str
    level: str
    text: str


class RunFiles:
    """The run in a directory; each method returns what a file says at this moment. problems: file -> why it could not
    be read, where that is not for its absence."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, Folder(path)
        self.metrics = Table(self.folder, "metrics.jsonl", carries=True)
        self.performance = Table(self.folder, "performance.jsonl")
        self.problems: dict[str, str] = {}
        self._config: tuple[Any, Values] = None, {}  # the version of config.json that was read, what it says

    def refresh(self) -> None:
        """Read on in the files of metrics."""
        for table in (self.metrics, self.performance):
            self._look(table.name, table.refresh, None)
            if table.damaged:
                self.problems[table.name] = f"{counted(table.damaged, 'damaged line')} left out"

    def config(self) -> Values:
        """Return ``config.json``, {} where it cannot be read. ``config`` and ``origins`` are dicts in it. A file that
        has not changed is parsed once, as every curve asks for it."""

        def read() -> Values:
            facts = self.folder.json("config.json")
            if facts.get("format", RUN_FORMAT) != RUN_FORMAT:
                raise ValueError(f"its format is {facts['format']!r}, and this version of Shoal reads {RUN_FORMAT}")
            for name in ("config", "origins"):
                if not isinstance(facts.get(name, {}), dict):
                    raise ValueError(f"'{name}' is no object with names")
            require_moderate(facts)
            return facts

        version = self.folder.version("config.json")
        if version is None or version != self._config[0]:
            self._config = version, self._look("config.json", read, {})
        return self._config[1]

    def report(self) -> Values:
        """Return ``report.json``: how the run ended, {} where nothing says so."""
        return self._look("report.json", lambda: self.folder.json("report.json"), {})

    def picture(self) -> Picture | None:
        """Return the program that was recorded; None where there is none."""
        return self._look(PICTURE, lambda: Picture.from_json(self.folder.json(PICTURE)), None)

    def drawing(self) -> str:
        """Return the program as text."""
        return self._look("program.txt", lambda: self.folder.tail("program.txt", most=1 << 20)[0], "")

    def live(self) -> Values:
        """Return ``live.json``: phases of replicas, and items per second; {} where there is none."""
        return self._look(LIVE, lambda: self.folder.json(LIVE), {})

    def command(self) -> str:
        """Return how the run was started, "" where that is not known."""
        text = self._look("summary.md", lambda: self.folder.tail("summary.md", most=1 << 20)[0], "")
        found = _COMMAND.search(text)
        return found[2] if found else ""

    def evaluations(self) -> list[dict[str, str]]:
        """Return the rows of ``evaluations.csv``, the newest last."""

        def read() -> list[dict[str, str]]:
            rows = table_rows(self.folder.read(EVALUATIONS).decode("utf-8"))
            return [{str(k): str(v) for k, v in row.items() if k and v} for row in rows[-MOST_EVALUATIONS:]]

        return self._look(EVALUATIONS, read, [])

    def best(self) -> Values:
        """Return the best evaluation: ``steps`` and ``score``; {} without one."""
        nothing: Values = {}
        facts = self._look(f"{BEST}/params.json", lambda: self.folder.json(BEST, "params.json"), nothing)
        return {
            name: facts[name] for name in ("steps", "score", "episodes") if isinstance(facts.get(name), (int, float))
        }

    def videos(self) -> list[str]:
        """Return the names of the films, each the steps of its evaluation."""
        return [name for name in self.folder.names(VIDEOS) if name.endswith(".mp4") and not name.startswith(".")]

    def logs(self) -> list[str]:
        """Return the names of the log files."""
        return [name for name in self.folder.names("logs") if not name.startswith(".")]

    def checkpoints(self) -> list[tuple[int, float]]:
        """Return (steps, when it was written) of the checkpoints that are kept."""
        found = []
        for name in self.folder.folders("checkpoints"):
            when = self.folder.modified("checkpoints", name, "manifest.json")
            if name.isdecimal() and when is not None:
                found.append((int(name), when))
        return found

    def log(self, name: str) -> str:
        """Return the end of a log file. OSError where there is none of that name."""
        text, cut = self.folder.tail("logs", name, most=MOST_LOG)
        return ("(what was before is left out)\n" if cut else "") + text

    def events(self) -> list[Event]:
        """Return the messages of the run's log, the newest last."""
        text = self._look("logs/run.log", lambda: self.log("run.log"), "")
        out: list[Event] = []
        for line in text.splitlines():
            if found := _EVENT.match(line):
                out.append(Event(found[1], found[2].lower(), found[3]))
            elif out and len(out[-1].text) < 4_000:
                out[-1] = Event(out[-1].when, out[-1].level, f"{out[-1].text}\n{line}")
        return out[-MOST_EVENTS:]

    # ------------------------------------------------------------------------------------------ state
    def age(self) -> float | None:
        """Seconds since the newest row was written; None without any."""
        when = self.folder.modified("performance.jsonl")
        return None if when is None else max(0.0, time.time() - when)

    def running(self) -> bool:
        """Whether some process trains here: it holds the lock, or (on another machine) wrote a row just now."""
        age = self.age()
        return self._locked() or (age is not None and age < FRESH and not self.report())

    def state(self) -> str:
        """Return ``running``, ``failed``, ``killed`` or the reason for which it ended."""
        if self.running():  # also while it begins again, with the report of its earlier life
            return "running"
        reason = self.report().get("reason")
        return one_line(str(reason))[:100] if reason else "killed"

    def _locked(self) -> bool:
        try:
            with self.folder.open(LOCK) as file:
                return is_held(file.fileno())
        except OSError:
            return False

    def _look(self, name: str, read: Callable[[], Data], otherwise: Data) -> Data:
        """What a file holds; ``otherwise`` where it is not there, or not as it should be, which is noted."""
        try:
            data = read()
        except FileNotFoundError:
            self.problems.pop(name, None)
            return otherwise
        except OSError as error:
            self.problems[name] = f"cannot be read: {excerpt(error.strerror or error)}"
            return otherwise
        except (ValueError, TypeError, LookupError, RecursionError, csv.Error) as error:
            self.problems[name] = f"damaged or half written: {excerpt(error)}"
            return otherwise
        self.problems.pop(name, None)
        return data


def number(value: Any) -> float | None:
    """A number that a file holds; None for anything else."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else None


def as_number(cell: str | None) -> float:
    """The number in a cell of a CSV file; nan where it holds none."""
    try:
        value = float(cell) if cell else math.nan
    except ValueError:
        return math.nan
    return value if abs(value) < 1e300 else math.nan


def as_dict(value: Any) -> dict[str, Any]:
    """An object that a file holds; {} for anything else."""
    return value if isinstance(value, dict) else {}
