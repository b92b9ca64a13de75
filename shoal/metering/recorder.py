"""The metrics of one replica: recorded in its process and sent to the supervisor as ``Telemetry``.

A replica is in exactly one phase at any moment, so the phases of a role add up to its wall time. A phase that begins
inside another one interrupts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from shoal.api import NO_NUMBERS

OTHER = "other"  # time that no role and no port has named
START = "start"  # from the launch of the process to the first step


@dataclass
class Telemetry:
    """One replica's figures since its last report. ``phases`` are seconds; ``records`` are (sum, count);
    ``tallies`` say how often each integer was seen."""

    counts: dict[str, int] = field(default_factory=dict)
    records: dict[str, tuple[float, int]] = field(default_factory=dict)
    tallies: dict[str, dict[int, int]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    episodes: list[tuple[float, int]] = field(default_factory=list)
    infos: dict[str, list[float]] = field(default_factory=dict)  # what environments gave at their ends
    spans: list[tuple[str, float, float]] = field(default_factory=list)  # of a SpanRecorder: phase, start, seconds
    seconds: float = 0.0


class Recorder:
    """The ``Metrics`` of one replica: cheap to call, drained every half second by its runtime.

    show: called with the name of every phase that begins (``local.heartbeat``). made: called with the environment
    steps of a unit of work that goes on, which are counted at its end.
    """

    def __init__(self, phase: str = START) -> None:
        self.show: Callable[[str], None] | None = None
        self.made: Callable[[int], None] | None = None
        self._pending = Telemetry()
        self.totals: dict[str, int] = {}  # of this replica's life, never drained
        self._phase, self._since = phase, time.perf_counter()
        self._seconds: dict[str, float] = {phase: 0.0}
        self._drained = self._since
        self._contexts: dict[str, _Phase] = {}

    def count(self, name: str, n: int = 1) -> None:
        counts = self._pending.counts
        counts[name] = counts.get(name, 0) + n
        self.totals[name] = self.totals.get(name, 0) + n

    def making(self, steps: int) -> None:
        if self.made is not None:
            self.made(steps)

    def record(self, name: str, value: float) -> None:
        total, n = self._pending.records.get(name, (0.0, 0))
        self._pending.records[name] = (total + value, n + 1)

    def record_all(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.record(name, float(value))

    def tally(self, name: str, values: Iterable[int]) -> None:
        seen = self._pending.tallies.setdefault(name, {})
        for value in values:
            seen[value] = seen.get(value, 0) + 1

    def episode(self, ret: float, length: int, info: Mapping[str, float] = NO_NUMBERS) -> None:
        self._pending.episodes.append((ret, length))
        for name, value in info.items():
            self._pending.infos.setdefault(name, []).append(value)

    def enter(self, phase: str) -> str:
        """Book the time from now on to ``phase``; returns the phase before."""
        now = time.perf_counter()
        before = self._phase
        self._seconds[before] += now - self._since
        if phase not in self._seconds:
            self._seconds[phase] = 0.0
        self._phase, self._since = phase, now
        if self.show is not None:
            self.show(phase)
        return before

    def beat(self) -> None:
        """A sign of life in the middle of a phase."""
        if self.show is not None:
            self.show(self._phase)

    def phase(self, name: str) -> _Phase:
        """``with metrics.phase(name):`` books the time inside."""
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts[name] = _Phase(self, name)
        return context

    def drain(self) -> Telemetry:
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._since = now
        out, self._pending = self._pending, Telemetry()
        out.phases = {name: seconds for name, seconds in self._seconds.items() if seconds}
        self._seconds = {self._phase: 0.0}
        out.seconds, self._drained = self._since - self._drained, self._since
        return out


class SpanRecorder(Recorder):
    """Also keeps when each phase began and how long it took: at most ``limit`` spans, from the first step on.

    Starts are seconds of ``time.perf_counter``, which on Linux all processes share.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._left = limit

    def enter(self, phase: str) -> str:
        start = self._since
        before = super().enter(phase)
        if self._left and before != START:
            self._left -= 1
            self._pending.spans.append((before, start, self._since - start))
        return before


def recorder(spans: int = 0) -> Recorder:
    """A recorder of metrics, and of at most ``spans`` spans."""
    return SpanRecorder(spans) if spans else Recorder()


class _Phase:
    """A phase as a context: made once per name, so the same phase may not lie within itself."""

    __slots__ = ("_before", "_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name, self._before = recorder, name, OTHER

    def __enter__(self) -> None:
        self._before = self._recorder.enter(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._recorder.enter(self._before)
