"""What the page asks of the server: each question is answered from the files of the runs, as plain data."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.types import Values
from shoal.watch import charts, page, populations
from shoal.watch.catalogue import Catalogue
from shoal.watch.files import RunFiles, number
from shoal.watch.folder import Folder
from shoal.watch.series import row_of

MOST_COMPARED = 20  # runs in one figure
MOST_KEPT = 20  # runs whose tables are kept, those that were asked for last: one or two megabytes each


class Unknown(LookupError):
    """A run, a log or a film that is not there."""


class Site:
    """The runs of a catalogue, by name. Tables of runs that were looked at are kept and read on; one question at a time
    is answered, so that many open pages cost no more than one core."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._runs: dict[Path, RunFiles] = {}
        self._entries: dict[Path, tuple[Any, Values]] = {}
        self._lock = threading.Lock()

    def listing(self) -> Values:
        """Return every run with its score and state, the newest first."""
        with self._lock:
            found = self.catalogue.find()
            rows = [self._entry(name, path) for name, path in found.items()]
            return {"single": self.catalogue.single, "runs": sorted(rows, key=lambda row: -row["written"])}

    def run(self, name: str) -> Values:
        """Return what a page shows of a run, or of a population. Unknown where there is none of that name."""
        with self._lock:
            run = self._get(name)
            if populations.is_population(run.folder):
                return {"population": populations.state(name, run.folder) | {"running": run.running()}}
            return page.state(name, run)

    def curves(self, names: Sequence[str], metrics: Sequence[str], x: str, smooth: float, log: bool) -> Values:
        """Return a figure for each metric, with a line of each run."""
        with self._lock:
            runs = self._several(names)
            bands = page.seeds(runs)
            return {
                "figures": [
                    charts.curve(runs, metric, page.meaning(metric)[0], x, smooth, log, bands) for metric in metrics
                ],
                "differing": page.differing(runs) if len(runs) > 1 else [],
                "left_out": len({*names}) - len(runs),
            }

    def times(self, name: str, x: str) -> Values:
        """Return the figures of where the time of a run goes."""
        with self._lock:
            return {"figures": charts.times(self._several([name])[name], x)}

    def metrics(self, names: Sequence[str]) -> Values:
        """Return the metrics that any of the runs has."""
        with self._lock:
            known: dict[str, Values] = {}
            for run in self._several(names).values():
                known |= {metric["name"]: metric for metric in page.metrics(run)}
            return {"metrics": list(known.values())}

    def log(self, name: str, file: str) -> str:
        """Return the end of a log of a run. Unknown where it has none of that name."""
        with self._lock:
            run = self._get(name)
            if file not in run.logs():
                raise Unknown(f"no log '{file}'")
            return run.log(file)

    def film(self, name: str, file: str) -> RunFiles:
        """Return the run that has a film of that name. Unknown where none has."""
        with self._lock:
            run = self._get(name)
            if file not in run.videos():
                raise Unknown(f"no film '{file}'")
            return run

    def _entry(self, name: str, path: Path) -> Values:
        """A run's row in the list; that of one that has ended is kept until a file of it is written again."""
        folder = Folder(path)
        written = tuple(folder.modified(file) for file in ("report.json", "config.json", "performance.jsonl"))
        kept, entry = self._entries.get(path, (None, {}))
        if kept != written or written[0] is None or entry["state"] == "running" or entry["name"] != name:
            entry = _entry(name, RunFiles(path))
            self._entries[path] = written, entry
        return entry

    def _several(self, names: Sequence[str]) -> dict[str, RunFiles]:
        runs = {name: self._get(name) for name in names[:MOST_COMPARED]}
        for run in runs.values():
            run.refresh()
        return runs

    def _get(self, name: str) -> RunFiles:
        path = self.catalogue.find().get(name)
        if path is None:
            raise Unknown(f"no run '{name}'")
        run = self._runs.pop(path) if path in self._runs else RunFiles(path)
        self._runs[path] = run  # the last one now
        while len(self._runs) > MOST_KEPT:
            self._runs.pop(next(iter(self._runs)))
        return run


def _entry(name: str, run: RunFiles) -> Values:
    """A run's row in the list, from the ends of its files."""
    population = populations.is_population(run.folder)
    told = populations.entry(run.folder) if population else _of_run(run)
    written = max(run.folder.modified(file) or 0.0 for file in ("performance.jsonl", "config.json", "scores.csv"))
    return {
        "name": name, "written": written, "when": page.clock_time(written) if written else "",
        "kind": "population" if population else "run",
        "state": ("running" if run.running() else "ended") if population else run.state(),
        "problem": "; ".join(f"{k}: {v}" for k, v in run.problems.items()),
        **told, **{key: page.told(told[key]) for key in ("system", "env", "seed")},
    }  # fmt: skip


def _of_run(run: RunFiles) -> Values:
    facts, report, last = run.config(), run.report(), last_rows(run)
    steps, score = number(report.get("steps")), number(report.get("episode_return"))
    return {
        "system": facts.get("system", ""), "env": facts.get("config", {}).get("env", ""), "seed": facts.get("seed", ""),
        "preset": page.told(facts.get("preset", "")),
        "steps": int(steps if steps is not None else last.get("steps", 0)),
        "return": score if score is not None else last.get("episode_return"),
    }  # fmt: skip


def last_rows(run: RunFiles, most: int = 64 << 10) -> dict[str, float]:
    """The newest value of each metric within the last ``most`` bytes of the files."""
    out: dict[str, float] = {}
    for name in ("performance.jsonl", "metrics.jsonl"):
        try:
            text, _ = run.folder.tail(name, most=most)
        except OSError:
            continue
        for line in text.splitlines():
            out.update(row_of(line.encode()) or {})
    return out
