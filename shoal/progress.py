"""What a run shows while it goes on: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from shoal.api import EnvSpec, Stop
from shoal.draw import human_bytes
from shoal.runtime.metrics import WINDOW, Snapshot

PLAIN_EVERY = 5.0  # seconds between two lines when the output is not a terminal
MEMORY_EVERY = 2.0  # seconds between two readings of the memory
KNOWN = {  # records that have a name and a place of their own
    "policy_lag": "policy lag", "replay_size": "replay", "samples_per_insert": "samples per insert",
    "epsilon": "epsilon", "loss": "loss", "entropy": "entropy", "learning_rate": "learning rate",
    "grad_norm": "gradient norm", "kl": "KL",
}  # fmt: skip


def bottleneck(shares: Mapping[str, Mapping[str, float]]) -> tuple[str, str, float] | None:
    """(role, its largest phase, that phase's share) of the role that waits least for others.

    A role's ``wait:`` phases are time in which others held it up, so the role with the least of them sets
    the pace. Without any (the serial runtime, where no one waits) it is the role with most work.
    """
    work = {role: {p: s for p, s in phases.items() if not p.startswith("wait")} for role, phases in shares.items()}
    work = {role: phases for role, phases in work.items() if phases}
    if not work:
        return None
    waits = {role: sum(s for p, s in shares[role].items() if p.startswith("wait")) for role in work}
    if any(waits.values()):
        role = min(work, key=lambda r: (waits[r], -sum(work[r].values())))
    else:
        role = max(work, key=lambda r: sum(work[r].values()))
    phase = max(work[role], key=lambda p: work[role][p])
    return role, phase, work[role][phase]


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


def memory() -> int:
    """Bytes used by this process and its children; shared pages are counted once where the system can."""
    import psutil

    total = 0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            info = process.memory_full_info()
            total += getattr(info, "pss", 0) or info.rss
        except psutil.Error:
            continue
    return total


class Progress:
    """Shows a run on ``file`` (standard output): call ``close`` at its end."""

    def __init__(
        self,
        system: str,
        env: EnvSpec,
        stop: Stop,
        resolved: Any = None,
        path: Path | None = None,
        file: IO[str] | None = None,
        buffers: Mapping[str, int] | None = None,
    ):
        self.system, self.env, self.stop, self.resolved, self.path = system, env, stop, resolved, path
        self.file = file or sys.stdout
        self.buffers = buffers or {}
        self.live: Any = None
        self._last_line = -math.inf
        self._memory, self._memory_at = 0, -math.inf
        self._rates: tuple[float, float] | None = None
        self._last: Snapshot | None = None
        self._printed: Snapshot | None = None
        if self.file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(file=self.file), auto_refresh=False)
            self.live.start()
            self.live.update(self._panel(None), refresh=True)
        else:
            for key, value in self._heading():
                print(f"{key}: {value}", file=self.file)
            self.file.flush()

    def update(self, snapshot: Snapshot) -> None:
        old = self._rates or (snapshot.step_rate, snapshot.update_rate)
        self._rates = (0.7 * old[0] + 0.3 * snapshot.step_rate, 0.7 * old[1] + 0.3 * snapshot.update_rate)
        self._last = snapshot
        if time.monotonic() - self._memory_at >= MEMORY_EVERY:
            self._memory, self._memory_at = memory(), time.monotonic()
        if self.live is not None:
            self.live.update(self._panel(snapshot), refresh=True)
        elif time.monotonic() - self._last_line >= PLAIN_EVERY:
            self._last_line = time.monotonic()
            self._print(snapshot)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
        elif self._last is not None and self._last is not self._printed:
            self._print(self._last)

    def _print(self, snapshot: Snapshot) -> None:
        self._printed = snapshot
        print(self.line(snapshot), file=self.file, flush=True)

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
            ("steps", f"{s.steps:,}{goal} ({rate})"),
            ("updates", f"{s.updates:,} ({updates_rate:,.1f}/s)"),
            ("return", shown),
        ]
        out += [(label, number(s.records[key])) for key, label in KNOWN.items() if key in s.records]
        out += [(name, number(v)) for name, v in s.records.items() if name not in KNOWN]
        if s.fill:
            out.append(("fill", ", ".join(f"{name} {share:.0%}" for name, share in s.fill.items())))
        if (slow := bottleneck(s.shares)) is not None:
            out.append(("bottleneck", f"{slow[0]} ({slow[1]} {slow[2]:.0%} of its time)"))
        if s.restarts:
            out.append(("restarts", str(s.restarts)))
        out.append(("memory", human_bytes(self._memory)))
        out.append(("time", f"{clock(s.seconds)}, {clock(time_left(self.stop, s))} left"))
        return out

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
            parts += ["", self._time_table(snapshot)]
        return Panel(Group(*parts), title="shoal", title_align="left")

    def _bar(self, snapshot: Snapshot) -> Any:
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar

        left = time_left(self.stop, snapshot)
        total = snapshot.seconds + left if left is not None else None
        bar = ProgressBar(total=total, completed=snapshot.seconds if total is not None else 0)
        return Padding(bar, (1, 0))  # a bare bar does not end its line

    @staticmethod
    def _time_table(snapshot: Snapshot) -> Any:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        slow = bottleneck(snapshot.shares)
        for role, phases in snapshot.shares.items():
            mark = "[yellow]" if slow is not None and slow[0] == role else "[dim]"
            parts = sorted(phases.items(), key=lambda item: -item[1])
            table.add_row(f"{mark}{_escape(role)}[/]", ", ".join(f"{_escape(p)} {share:.0%}" for p, share in parts))
        return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
