"""``summary.md`` in a population's directory: an overview of it for people."""

from __future__ import annotations

import contextlib
import functools
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shoal.records.markdown import code, command, items, made_on, row, rows, text, write_lines, written
from shoal.records.run_dir import provenance
from shoal.run.population.controller import Population
from shoal.run.population.files import Setup
from shoal.untrusted import one_line
from shoal.words import counted

SHOWN = 10  # largest number of members, and of different remarks, that are listed


class PopulationSummary:
    """Writes the summary of the population in ``path``. A full disk skips the summary and does not stop training."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self._path, self._setup, self._command, self._began = path, setup, command(), time.time()
        self._remarks: Counter[str] = Counter()

    @functools.cached_property
    def _machine(self) -> dict[str, str]:
        return made_on(**provenance())

    def note(self, sentence: str) -> None:
        """Count a sentence among the remarks."""
        self._remarks[sentence] += 1

    @contextlib.contextmanager
    def kept(self, control: Population) -> Iterator[None]:
        """Write the summary at the beginning of a training, and again if it fails."""
        self.write(control, "running")
        try:
            yield
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.write(control, f"failed: {lines[-1]}")
            raise

    def write(self, control: Population, state: str) -> None:
        """Write the file atomically."""
        with contextlib.suppress(OSError):
            write_lines(self._path, self._lines(control, state))

    def _lines(self, control: Population, state: str) -> list[str]:
        setup, path = self._setup, one_line(shlex.quote(str(self._path)))
        lines = [
            f"# A population of {setup.size} of {text(setup.system)} on {text(setup.values.get('env', ''))}, "
            f"seed {setup.seed}", "", f"{text(state)} (written {written()})", "",
            *rows({
                "command": code(self._command), "began": written(self._began), "preset": setup.preset,
                "runtime": setup.runtime, **self._machine,
            }), "", "## Members", "",
        ]  # fmt: skip
        names = list(setup.space)
        lines += [row(["member", "steps", "score", *names]), row(["---:"] * (3 + len(names)))]
        best_first = sorted(control.members, key=lambda m: (m.score is None, -(m.score or 0.0), m.index))
        for m in best_first[:SHOWN]:
            score = "lost" if m.lost else "none yet" if m.score is None else f"{m.score:.4g}"
            lines.append(row([m.index, f"{m.step:,}", score, *(m.values[name] for name in names)]))
        if (more := len(best_first) - SHOWN) > 0:
            lines += ["", f"and {counted(more, 'other')}: scores.csv"]
        copied = counted(len(control.lineage), "copy")
        lines += ["", f"{copied} so far: lineage.csv", "", "## Remarks", ""]
        lines += items(self._remarks.most_common(SHOWN)) or ["none"]
        return [
            *lines, "", "## What next", "", "```bash",
            f"shoal resume {path}  # go on; --steps N: for longer",
            f"shoal eval {path}  # play whole episodes by the best member",
            f"shoal watch {path}  # members' scores and hyperparameters over time", "```",
        ]  # fmt: skip
