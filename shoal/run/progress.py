"""What a run shows while it goes on: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from shoal.metering.aggregator import WINDOW, Snapshot
from shoal.metering.bottleneck import bottleneck
from shoal.program import Program
from shoal.program.draw import human_bytes
from shoal.run.symptoms import Symptoms
from shoal.runtime.launch import Stop
from shoal.terminal import OFF_TERMINAL, styled
from shoal.untrusted import one_line

PLAIN_EVERY = 5.0  # seconds between two lines when the output is not a terminal
KNOWN = {  # records that have a name and a place of their own
    "replay_size": "replay", "loss": "loss", "entropy": "entropy",
    "learning_rate": "learning rate", "grad_norm": "gradient norm", "kl": "KL",
}  # fmt: skip
OWN_PLACE = {*KNOWN, "samples_per_insert", "policy_lag_p50", "policy_lag_p95", "policy_lag_max"}


def watched() -> bool:
    """Return whether a person looks at standard output: a terminal, or the cell of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # it may have been closed
    return on_terminal or type(shell).__name__ == "ZMQInteractiveShell"


class Environment(Protocol):
    """What is shown of a run's environment: of an ``EnvSpec``, or of what its files say."""

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
    """Takes everything and keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


def time_left(stop: Stop, snapshot: Snapshot) -> float | None:
    """Seconds until the first limit is reached at the average pace so far; None if unknown."""
    left = []
    for limit, done in ((stop.steps, snapshot.steps), (stop.updates, snapshot.updates)):
        if limit is not None and done > 0:
            left.append(max(0.0, limit - done) * snapshot.seconds / done)
    if stop.seconds is not None:
        left.append(max(0.0, stop.seconds - snapshot.seconds))
    return min(left) if left else None


def clock(seconds: float | None) -> str:
    """3725 -> '1:02:05'."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"


def number(value: float) -> str:
    """Short, without losing the sign or the size: 12,345 or 0.00123."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000 or (value == int(value) and abs(value) >= 1):
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Progress:
    """Shows a run on ``file`` (standard output): call ``close`` at its end."""

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
        """``first``: environment steps before the first update, roughly; 0: nobody can say."""
        self.system, self.env, self.stop, self.resolved, self.path = system, env, stop, resolved, path
        self.symptoms = symptoms
        self.file = file or sys.stdout
        self.buffers = program.memory() if program is not None else {}
        channels = program.channels.values() if program is not None else ()
        self.ratio = next((c.ratio.samples_per_insert for c in channels if c.kind == "replay"), None)
        self.first = first
        self.live: Any = None
        self._made = (0.0, 0)  # seconds and steps, those that are not counted yet among them, when it was last told
        self._last_line = -math.inf
        self._rates: tuple[float, float] | None = None
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
                raise BrokenPipeError  # rich would end the program

        self.live = Live(console=Terminal(file=styled(self.file)), auto_refresh=False)
        self.live.start()
        self.live.update(self._panel(None), refresh=True)

    def update(self, snapshot: Snapshot) -> None:
        since, steps = self._made
        self._made = snapshot.seconds, max(steps, snapshot.steps + snapshot.making)
        rate = snapshot.step_rate
        if since and snapshot.seconds > since:
            rate = (self._made[1] - steps) / (snapshot.seconds - since)
        old = self._rates or (rate, snapshot.update_rate)
        self._rates = (0.7 * old[0] + 0.3 * rate, 0.7 * old[1] + 0.3 * snapshot.update_rate)
        for role, phases in snapshot.shares.items():  # a role in the middle of a long step keeps its last ones
            before = self._shares.get(role, phases)
            names = dict.fromkeys([*before, *phases])
            self._shares[role] = {p: 0.7 * before.get(p, 0.0) + 0.3 * phases.get(p, 0.0) for p in names}
        self._last = snapshot
        with self._heard():
            if self.live is not None:
                self.live.update(self._panel(snapshot), refresh=True)
            elif time.monotonic() - self._last_line >= PLAIN_EVERY:
                self._last_line = time.monotonic()
                self._print(snapshot)

    def close(self) -> None:
        with self._heard():
            if self.live is not None:
                self.live.stop()
            elif self._last is not None and self._last is not self._printed:
                self._print(self._last)

    def _print(self, snapshot: Snapshot) -> None:
        self._printed = snapshot
        lines = textwrap.wrap(self.line(snapshot), OFF_TERMINAL, subsequent_indent="    ", break_long_words=False)
        print("\n".join(lines), file=self.file, flush=True)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Whoever read it may have gone, with the terminal or the pipe: then nothing more is shown, and no run ends."""
        try:
            yield
        except OSError:
            self.live, self.file = None, _Nobody()

    def line(self, snapshot: Snapshot) -> str:
        """The state of the run in one line."""
        return " | ".join(f"{key} {value}" for key, value in self._figures(snapshot))

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
            shown = f"{number(s.episode_return)} (mean of {min(s.episodes, WINDOW)}, {s.episodes:,} episodes)"
        out = [
            ("steps", f"{max(s.steps, self._made[1]):,}{goal} ({rate})"),
            ("updates", f"{s.updates:,} ({updates_rate:,.1f}/s)"),
            ("return", shown),
        ]
        if not s.updates and self.first:
            out.insert(2, ("first update", self._awaited(s)))
        if s.infos:
            out.append(("episodes", ", ".join(f"{name} {number(value)}" for name, value in s.infos.items())))
        r = s.records
        if "policy_lag_max" in r:
            lag = (r["policy_lag_p50"], r["policy_lag_p95"], r["policy_lag_max"])
            out.append(("policy lag", "{:.0f} p50, {:.0f} p95, {:.0f} max (updates)".format(*lag)))
        if "samples_per_insert" in r:
            target = f" (target {number(self.ratio)})" if self.ratio is not None else ""
            out.append(("samples per insert", number(r["samples_per_insert"]) + target))
        out += [(label, number(r[key])) for key, label in KNOWN.items() if key in r]
        out += [(name, number(v)) for name, v in r.items() if name not in OWN_PLACE]
        if s.fill:
            out.append(("fill", ", ".join(f"{name} {share:.0%}" for name, share in s.fill.items())))
        if (slow := bottleneck(self._shares)) is not None:
            out.append(("bottleneck", str(slow)))
        if s.restarts:
            out.append(("restarts", str(s.restarts)))
        if self.symptoms is not None and (found := self.symptoms.sentences()):
            out.append(("not improved", found[0]))
        out.append(("memory", human_bytes(s.memory)))
        out.append(("time", f"{clock(s.seconds)}, {clock(time_left(self.stop, s))} left"))
        return out

    def _awaited(self, s: Snapshot) -> str:
        """When the first update comes, at the pace so far."""
        made = max(s.steps, self._made[1])
        after = f"after about {self.first:,.0f} steps"
        if not made or not s.seconds:
            return f"{after}: environments start"
        return f"{after}, in {clock(max(0.0, self.first - made) * s.seconds / made)} at this pace"

    def _panel(self, snapshot: Snapshot | None) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table

        head = Table.grid(padding=(0, 2))
        for key, value in self._heading():
            head.add_row(f"[dim]{key}[/dim]", _escape(value))
        if snapshot is None:
            return Panel(Group(head, "", "starting"), title="shoal", title_align="left")
        figures = Table.grid(padding=(0, 2))
        for key, value in self._figures(snapshot):
            value = f"[bold]{_escape(value)}[/bold]" if key == "return" else _escape(value)
            figures.add_row(f"[dim]{key}[/dim]", value)
        parts: list[Any] = [head, self._bar(snapshot), figures]
        if snapshot.shares:
            parts += ["", self._time_table()]
        return Panel(Group(*parts), title="shoal", title_align="left")

    def _bar(self, snapshot: Snapshot) -> Any:
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar

        left = time_left(self.stop, snapshot)
        total = snapshot.seconds + left if left is not None else None
        bar = ProgressBar(total=total, completed=snapshot.seconds if total is not None else 0)
        return Padding(bar, (1, 0))  # a bare bar does not end its line

    def _time_table(self) -> Any:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        slow = bottleneck(self._shares)
        for role, phases in self._shares.items():
            mark = "[yellow]" if slow is not None and slow.role == role else "[dim]"
            parts = sorted(((p, share) for p, share in phases.items() if share >= 0.005), key=lambda item: -item[1])
            table.add_row(f"{mark}{_escape(role)}[/]", ", ".join(f"{_escape(p)} {share:.0%}" for p, share in parts))
        return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(one_line(text))
