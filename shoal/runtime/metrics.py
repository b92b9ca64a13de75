"""What roles tell about themselves: recorded in each replica, shipped as ``Telemetry``, merged into ``Snapshot``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shoal.api import Stop

WINDOW = 100  # episodes in the reported mean return


@dataclass
class Telemetry:
    """One replica's figures since its last report. ``phases`` are seconds; ``records`` are (sum, count, max)."""

    counts: dict[str, int] = field(default_factory=dict)
    records: dict[str, tuple[float, int, float]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    episodes: list[tuple[float, int]] = field(default_factory=list)
    seconds: float = 0.0


class Recorder:
    """The ``Metrics`` of one replica: cheap to call, drained about once a second by its runtime.

    enter: told the phase that begins, returns the one it interrupts (``pulse.Pulse.enter``).
    """

    def __init__(self) -> None:
        self.enter: Callable[[str], str] = str
        self._pending = Telemetry()
        self._since = time.monotonic()
        self.totals: dict[str, int] = {}  # of this replica's life, never drained

    def count(self, name: str, n: int = 1) -> None:
        counts = self._pending.counts
        counts[name] = counts.get(name, 0) + n
        self.totals[name] = self.totals.get(name, 0) + n

    def record(self, name: str, value: float) -> None:
        total, n, top = self._pending.records.get(name, (0.0, 0, -np.inf))
        self._pending.records[name] = (total + value, n + 1, max(top, value))

    def episode(self, ret: float, length: int) -> None:
        self._pending.episodes.append((ret, length))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before = self.enter(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_phase(name, time.perf_counter() - start)
            self.enter(before)

    def add_phase(self, name: str, seconds: float) -> None:
        self._pending.phases[name] = self._pending.phases.get(name, 0.0) + seconds

    def drain(self) -> Telemetry:
        out, self._pending = self._pending, Telemetry()
        now = time.monotonic()
        out.seconds, self._since = now - self._since, now
        return out


@dataclass
class Snapshot:
    """The state of a run at one moment, as shown and logged.

    steps: environment steps over all actors; updates: learner updates; *_rate: per second since the last
    snapshot; episode_return: mean of the last 100 episodes (nan before the first); records: mean of what
    roles recorded since the last snapshot; shares: role -> phase -> share of its wall time (``wait:NAME``
    phases are time blocked on channel NAME); fill: channel -> share of capacity in use.
    """

    seconds: float
    steps: int
    updates: int
    step_rate: float
    update_rate: float
    episode_return: float
    episode_length: float
    episodes: int
    counts: dict[str, int]
    records: dict[str, float]
    shares: dict[str, dict[str, float]]
    fill: dict[str, float]
    restarts: int
    new_episodes: list[tuple[float, int]]


class Observer(Protocol):
    """Told of a run as it goes on: progress display, metric files."""

    def update(self, snapshot: Snapshot) -> None: ...


class Aggregator:
    """Merges every replica's telemetry; counters ``env_steps`` and ``updates`` drive the run's end."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.episodes = 0
        self.restarts = 0
        self._window: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._records: dict[str, tuple[float, int]] = {}
        self._phases: dict[str, dict[str, float]] = {}
        self._role_seconds: dict[str, float] = {}
        self._new_episodes: list[tuple[float, int]] = []
        self._start = self._last = time.monotonic()
        self._last_counts = (0, 0)

    def add(self, role: str, telemetry: Telemetry) -> None:
        for name, n in telemetry.counts.items():
            self.counts[name] = self.counts.get(name, 0) + n
        for name, (value, n, _) in telemetry.records.items():
            total, seen = self._records.get(name, (0.0, 0))
            self._records[name] = (total + value, seen + n)
        phases = self._phases.setdefault(role, {})
        for name, seconds in telemetry.phases.items():
            phases[name] = phases.get(name, 0.0) + seconds
        self._role_seconds[role] = self._role_seconds.get(role, 0.0) + telemetry.seconds
        self._window.extend(telemetry.episodes)
        self._new_episodes.extend(telemetry.episodes)
        self.episodes += len(telemetry.episodes)

    @property
    def steps(self) -> int:
        return self.counts.get("env_steps", 0)

    @property
    def updates(self) -> int:
        return self.counts.get("updates", 0)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def episode_return(self) -> float:
        """Mean return of the last 100 episodes; nan before the first."""
        return float(np.mean([r for r, _ in self._window])) if self._window else float("nan")

    @property
    def full_window(self) -> bool:
        return len(self._window) == WINDOW

    def ended(self, stop: Stop) -> str:
        """Why a run ends now: the name of the limit it reached, or "" if it goes on."""
        if stop.steps is not None and self.steps >= stop.steps:
            return "steps"
        if stop.updates is not None and self.updates >= stop.updates:
            return "updates"
        if stop.seconds is not None and self.seconds >= stop.seconds:
            return "seconds"
        if stop.episode_return is not None and self.full_window and self.episode_return >= stop.episode_return:
            return "episode_return"
        return ""

    def snapshot(self, fill: dict[str, float] | None = None) -> Snapshot:
        """The figures since the last snapshot; resets the per-interval ones."""
        now = time.monotonic()
        interval = max(now - self._last, 1e-9)
        steps, updates = self._last_counts
        out = Snapshot(
            seconds=now - self._start,
            steps=self.steps,
            updates=self.updates,
            step_rate=(self.steps - steps) / interval,
            update_rate=(self.updates - updates) / interval,
            episode_return=self.episode_return,
            episode_length=float(np.mean([n for _, n in self._window])) if self._window else float("nan"),
            episodes=self.episodes,
            counts=dict(self.counts),
            records={name: total / n for name, (total, n) in self._records.items() if n},
            shares={
                role: {name: s / max(self._role_seconds[role], 1e-9) for name, s in phases.items()}
                for role, phases in self._phases.items()
            },
            fill=fill or {},
            restarts=self.restarts,
            new_episodes=self._new_episodes,
        )
        self._last, self._last_counts = now, (self.steps, self.updates)
        self._records, self._phases, self._role_seconds, self._new_episodes = {}, {}, {}, []
        return out
