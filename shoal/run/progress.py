"""Progress of a run: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from shoal.metering.aggregator import WINDOW, Snapshot
from shoal.metering.bottleneck import bottleneck
from shoal.program import Program
from shoal.program.draw import human_bytes
from shoal.run import panel
from shoal.run.symptoms import Symptoms
from shoal.runtime.launch import Stop
from shoal.terminal import OFF_TERMINAL, styled
from shoal.untrusted import one_line
from shoal.words import counted

PLAIN_EVERY = 5.0  # seconds between two lines when the output is not a terminal
KNOWN = {  # records with a name and a place of their own
    "replay_size": "replay", "loss": "loss", "entropy": "entropy",
    "learning_rate": "learning rate", "grad_norm": "gradient norm", "kl": "KL",
}  # fmt: skip
OLD_SECONDS = 30.0  # seconds after which a value that was not recorded again is shown with its age
OWN_PLACE = {*KNOWN, "evaluation_return", "samples_per_insert", "policy_lag_p50", "policy_lag_p95", "policy_lag_max"}


def watched() -> bool:
    """Return True if a person sees standard output: it is a terminal or the cell of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # it may have been closed
    return on_terminal or type(shell).__name__ == "ZMQInteractiveShell"


class Environment(Protocol):
    """The facts of a run's environment that are shown, from an ``EnvSpec`` or from the run's files."""

    @property
    def id(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def frames_per_step(self) -> int: ...


class Played(NamedTuple):
    """The environment of a run that was started elsewhere."""

    id: str
    backend: str
    why: str
    frames_per_step: int = 1


class _Nobody(io.StringIO):
    """A stream that discards everything."""

    def write(self, text: str) -> int:
        return len(text)


def time_left(stop: Stop, snapshot: Snapshot) -> float | None:
    """Return the seconds until the first limit is reached at the average speed so far, or None if unknown."""
    left = []
    for limit, done in ((stop.steps, snapshot.steps), (stop.updates, snapshot.updates)):
        if limit is not None and done > 0:
            left.append(max(0.0, limit - done) * snapshot.seconds / done)
    if stop.seconds is not None:
        left.append(max(0.0, stop.seconds - snapshot.seconds))
    return min(left) if left else None


def clock(seconds: float | None) -> str:
    """Return seconds as hours, minutes and seconds: 3725 -> '1:02:05'."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


def number(value: float) -> str:
    """Return a number in few characters without losing its sign or magnitude: 12,345 or 0.00123."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000 or (value == int(value) and abs(value) >= 1):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def packed(figures: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return lines of figures of at most ``width`` characters. A figure that does not fit begins a new line."""
    out: list[str] = []
    for key, value in figures:
        text = one_line(f"{key} {value}")
        if out and len(out[-1]) + len(text) + 3 <= width:
            out[-1] += f" | {text}"
        else:
            indent = "    | " if out else ""
            first, *rest = textwrap.wrap(text, width - len(indent), subsequent_indent="      ") or [""]
            out += [indent + first, *rest]
    return out


class Progress:
    """Shows a run on ``file`` (default: standard output). Call ``close`` at its end."""

    def __init__(
        self,
        system: str,
        env: Environment,
        stop: Stop,
        resolved: Any = None,
        path: Path | None = None,
        file: IO[str] | None = None,
        program: Program | None = None,
        symptoms: Symptoms | None = None,
        first: float = 0.0,
    ):
        """first: approximate environment steps before the first update; 0: unknown."""
        self.system, self.env, self.stop, self.resolved, self.path = system, env, stop, resolved, path
        self.symptoms = symptoms
        self.file = file or sys.stdout
        self.buffers = program.memory() if program is not None else {}
        channels = program.channels.values() if program is not None else ()
        self.ratio = next((c.ratio.samples_per_insert for c in channels if c.kind == "replay"), None)
        self.first = first
        self.live: Any = None
        self._made = (0.0, 0)  # seconds and steps, including uncounted ones, of the last snapshot
        self._last_line = -math.inf
        self._rates: tuple[float, float] | None = None
        self._records: dict[str, tuple[float, float]] = {}  # the last value of each record, and when it was recorded
        self._spark = panel.Spark()
        self.alerts = Alerts()
        logging.getLogger("shoal").addHandler(self.alerts)
        self._shares: dict[str, dict[str, float]] = {}
        self._last: Snapshot | None = None
        self._printed: Snapshot | None = None
        with self._heard():
            if self.file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
                self._begin_live()
            else:
                for key, value in self._heading():
                    words = textwrap.wrap(f"{key}: {value}", OFF_TERMINAL, subsequent_indent="    ")
                    print("\n".join(words), file=self.file)
                self.file.flush()

    def _begin_live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        class Terminal(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # otherwise rich would end the process

        self.live = Live(console=Terminal(file=styled(self.file)), auto_refresh=False)
        self.live.start()
        self.live.update(self._panel(None), refresh=True)

    def recall(self, records: Mapping[str, tuple[float, float]], returns: Sequence[float]) -> None:
        """Take records and returns from before the next snapshot: the last value of each record with the second of
        training at which it was recorded, and the returns in order."""
        self._records.update(records)
        for value in returns:
            self._spark.add(value)

    def update(self, snapshot: Snapshot) -> None:
        since, steps = self._made
        self._made = snapshot.seconds, max(steps, snapshot.steps + snapshot.making)
        rate = snapshot.step_rate
        if since and snapshot.seconds > since:
            rate = (self._made[1] - steps) / (snapshot.seconds - since)
        old = self._rates or (rate, snapshot.update_rate)
        self._rates = (0.7 * old[0] + 0.3 * rate, 0.7 * old[1] + 0.3 * snapshot.update_rate)
        for role, phases in snapshot.shares.items():  # a role in the middle of a long step keeps its last shares
            before = self._shares.get(role, phases)
            names = dict.fromkeys([*before, *phases])
            self._shares[role] = {p: 0.7 * before.get(p, 0.0) + 0.3 * phases.get(p, 0.0) for p in names}
        self._records.update({name: (value, snapshot.seconds) for name, value in snapshot.records.items()})
        if snapshot.episodes:
            self._spark.add(snapshot.episode_return)
        self._last = snapshot
        with self._heard():
            if self.live is not None:
                self.live.update(self._panel(snapshot), refresh=True)
            elif time.monotonic() - self._last_line >= PLAIN_EVERY:
                self._last_line = time.monotonic()
                self._print(snapshot)

    def close(self) -> None:
        logging.getLogger("shoal").removeHandler(self.alerts)
        with self._heard():
            if self.live is not None:
                self.live.stop()
            elif self._last is not None and self._last is not self._printed:
                self._print(self._last)

    def _print(self, snapshot: Snapshot) -> None:
        self._printed = snapshot
        print("\n".join(packed(self._figures(snapshot), OFF_TERMINAL)), file=self.file, flush=True)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Stop showing anything if the block fails to write, as when the terminal or the reader of the pipe has gone.
        The run continues."""
        try:
            yield
        except OSError:
            self.live, self.file = None, _Nobody()

    # ----------------------------------------------------------------------------------- contents
    def _heading(self) -> list[tuple[str, str]]:
        why = f" ({self.env.why})" if self.env.why else ""
        out = [("system", self.system), ("environment", f"{self.env.id} by {self.env.backend}{why}")]
        if self.resolved is not None:
            out.append(("preset", f"{self.resolved.preset} ({self.resolved.why})"))
        if self.buffers:
            parts = ", ".join(f"{name} {human_bytes(n)}" for name, n in self.buffers.items())
            out.append(("buffers", f"{human_bytes(sum(self.buffers.values()))} ({parts})"))
        if self.path is not None:
            out.append(("run", str(self.path)))
        return out

    def _figures(self, s: Snapshot) -> list[tuple[str, str]]:
        steps_rate, updates_rate = self._rates or (s.step_rate, s.update_rate)
        goal = f" of {self.stop.steps:,}" if self.stop.steps is not None else ""
        rate = f"{steps_rate:,.0f}/s"
        if self.env.frames_per_step > 1:
            rate += f", {steps_rate * self.env.frames_per_step:,.0f} frames/s"
        shown = "none yet"
        if s.episodes:
            shown = f"{number(s.episode_return)} (mean of {min(s.episodes, WINDOW)}, {counted(s.episodes, 'episode')})"
            room = panel.room(self.live.console.size.width - 4) - len(shown) - 1 if self.live is not None else 0
            curve = self._spark.text(min(24, room))
            shown += f" {curve}" if curve else ""
        out = [
            ("steps", f"{max(s.steps, self._made[1]):,}{goal} ({rate})"),
            ("updates", f"{s.updates:,} ({updates_rate:,.1f}/s)"),
            ("return", shown),
            ("time", f"{clock(s.seconds)}, {clock(time_left(self.stop, s))} left"),
        ]
        if not s.updates and self.first:
            out.insert(2, ("first update", self._awaited(s)))
        if (slow := bottleneck(self._shares)) is not None:
            out.append(("bottleneck", str(slow)))
        if s.restarts:
            out.append(("restarts", str(s.restarts)))
        if self.alerts.newest:
            out.append(("alert", self.alerts.newest))
        if self.symptoms is not None and (found := self.symptoms.sentences()):
            out.append(("not improved", found[0]))
        if s.infos:
            out.append(("episodes", ", ".join(f"{name} {number(value)}" for name, value in s.infos.items())))
        r = self._records
        if "evaluation_return" in r:
            out.append(("evaluation", number(r["evaluation_return"][0]) + self._age("evaluation_return", s)))
        if "policy_lag_max" in r:
            lag = (r["policy_lag_p50"][0], r["policy_lag_p95"][0], r["policy_lag_max"][0])
            told = "{:.0f} p50, {:.0f} p95, {:.0f} max (updates)".format(*lag)
            out.append(("policy lag", told + self._age("policy_lag_max", s)))
        if "samples_per_insert" in r:
            target = f" (target {number(self.ratio)})" if self.ratio is not None else ""
            out.append(("samples per insert", number(r["samples_per_insert"][0]) + target))
        out += [(label, number(r[key][0]) + self._age(key, s)) for key, label in KNOWN.items() if key in r]
        if s.fill:
            out.append(("fill", ", ".join(f"{name} {share:.0%}" for name, share in s.fill.items())))
        out.append(("memory", human_bytes(s.memory)))
        taken = {key for key, _ in out}
        own = [name for name in r if name not in OWN_PLACE]
        out += [(f"record/{n}" if n in taken else n, number(r[n][0]) + self._age(n, s)) for n in own]
        return out

    def _age(self, name: str, s: Snapshot) -> str:
        """Return when a value was recorded, if that is long ago, else ""."""
        age = s.seconds - self._records[name][1]
        return f" ({clock(age)} ago)" if age > OLD_SECONDS else ""

    def _awaited(self, s: Snapshot) -> str:
        """Return when the first update is expected at the speed so far."""
        made = max(s.steps, self._made[1])
        after = f"after about {counted(self.first, 'step')}"
        if not made or not s.seconds:
            waiting = any(phases.get("wait:params", 0.0) > 0.5 for phases in s.shares.values())
            return f"{after}: {'the learner starts' if waiting else 'environments start'}"
        if made >= self.first:
            return f"{after}, which are done"
        return f"{after}, in {clock(max(0.0, self.first - made) * s.seconds / made)} at this pace"

    def _panel(self, snapshot: Snapshot | None) -> Any:
        from rich.progress_bar import ProgressBar

        size = self.live.console.size
        width, height = size.width - 4, size.height - 4  # inside its frame and below its bar
        slow = bottleneck(self._shares)
        figures = [("state", "starting")]
        total: float | None = None
        if snapshot is not None:
            figures = self._figures(snapshot)
            left = time_left(self.stop, snapshot)
            total = None if left is None else snapshot.seconds + left
        bar = ProgressBar(total=total, completed=0 if snapshot is None or total is None else snapshot.seconds)
        times = {role: self._told_times(phases) for role, phases in self._shares.items()}
        shown = panel.lines(self._heading(), figures, times, "" if slow is None else slow.role, width, height)
        return panel.render(f"shoal: {self.system} on {self.env.id}", shown, Bar(bar))

    def _told_times(self, phases: Mapping[str, float]) -> str:
        parts = sorted(((p, share) for p, share in phases.items() if share >= 0.005), key=lambda item: -item[1])
        return ", ".join(f"{phase} {share:.0%}" for phase, share in parts)


class Bar:
    """A progress bar of rich that ends its line."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        yield from console.render(self._bar, options)
        yield Segment.line()


class Alerts(logging.Handler):
    """Keeps the newest warning of Shoal and the number of warnings, for a line of the panel."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count, self.newest = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(record.getMessage().partition("\n")[0], time.strftime("%H:%M:%S"))

    def tell(self, text: str, when: str) -> None:
        """Record a warning."""
        self.count += 1
        self.newest = f"{when} {text}" + (f" ({self.count} in all)" if self.count > 1 else "")
