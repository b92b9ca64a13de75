"""The metrics of a whole run: the telemetry of all replicas, merged into snapshots for displays and metric files."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from shoal.metering.recorder import Telemetry
from shoal.types import State
from shoal.untrusted import counter, number

WINDOW = 100  # episodes in the reported mean return
MOST_INFOS = 200  # names of numbers that environments give: some give an ever new one
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("max", 1.0))


@dataclass
class Snapshot:
    """The state of a run at one moment, as shown and logged.

    row: 1, 2, ...; steps: environment steps over all actors; updates: learner updates; *_rate: per second since
    the last snapshot; episode_return: mean of the last 100 episodes (nan before the first); records: means of the
    metrics recorded since the last snapshot, and p50, p95 and max of the tallied ones; histograms: of the latter, how
    often each number was seen; shares: role -> phase -> share of its wall time (``wait:NAME`` phases are time blocked
    on channel NAME); fill: channel -> share of capacity in use; memory: bytes, 0 where not measured; phase_seconds:
    role -> phase -> seconds since the launch; spans: (role, index) -> new (phase, start, seconds), in a run that is
    profiled; infos: mean of the last 100 of each number that environments gave at the ends of episodes; byte_rate:
    ``bytes`` counted by roles, per second since the last snapshot (None: by none); left_out: the first of their names
    that is not in infos, as there are ``MOST_INFOS`` already ("": there is room); making: environment steps that are
    made and not counted in ``steps`` yet, as they belong to messages that are not complete; phases: role -> what each
    replica does at this moment (its phase, ``restarting`` or ``dead``), {} where the runtime cannot tell; moved:
    channel -> items that were put into it since the launch; failed: replicas that failed since the launch -> what
    became of them last, ``restarted`` or ``lost``.
    """

    row: int
    seconds: float
    steps: int
    updates: int
    step_rate: float
    update_rate: float
    episode_return: float
    episode_length: float
    episodes: int
    counts: dict[str, int] = field(default_factory=dict)
    records: dict[str, float] = field(default_factory=dict)
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    fill: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    memory: int = 0
    new_episodes: list[tuple[float, int]] = field(default_factory=list)
    phase_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    spans: dict[tuple[str, int], list[tuple[str, float, float]]] = field(default_factory=dict)
    infos: dict[str, float] = field(default_factory=dict)
    byte_rate: float | None = None
    histograms: dict[str, dict[int, int]] = field(default_factory=dict)
    left_out: str = ""
    making: int = 0
    phases: dict[str, list[str]] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Observer(Protocol):
    """Receives the snapshots of a run in progress: a progress display, metric files."""

    def update(self, snapshot: Snapshot) -> None: ...


class Aggregator:
    """Merges the telemetry of all replicas. The run ends by its counters ``env_steps`` and ``updates``."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.episodes = 0
        self.restarts = 0
        self._failed: dict[str, str] = {}
        self.row = 0  # snapshots taken
        self._window: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._infos: dict[str, deque[float]] = {}
        self.left_out = ""  # the first name of the environments' numbers that there was no room for
        self._records: dict[str, tuple[float, int]] = {}
        self._tallies: dict[str, dict[int, int]] = {}
        self._new_episodes: list[tuple[float, int]] = []
        self._phases: dict[str, dict[str, float]] = {}
        self._role_seconds: dict[str, float] = {}
        self._phase_seconds: dict[str, dict[str, float]] = {}
        self._spans: dict[tuple[str, int], list[tuple[str, float, float]]] = {}
        self._start = self._last = time.monotonic()
        self._last_counts = (0, 0)
        self._last_bytes = 0

    def failed(self, replica: str, restarted: bool) -> None:
        """Take in that a replica has failed, and whether it is restarted or the run goes on without it."""
        self.restarts += restarted
        self._failed[replica] = "restarted" if restarted else "lost"

    def add(self, role: str, telemetry: Telemetry, index: int = 0) -> None:
        for name, n in telemetry.counts.items():
            self.counts[name] = self.counts.get(name, 0) + n
        for name, (value, n) in telemetry.records.items():
            total, seen = self._records.get(name, (0.0, 0))
            self._records[name] = (total + value, seen + n)
        for name, tally in telemetry.tallies.items():
            merged = self._tallies.setdefault(name, {})
            for value, n in tally.items():
                merged[value] = merged.get(value, 0) + n
        for booked in (self._phases.setdefault(role, {}), self._phase_seconds.setdefault(role, {})):
            for name, seconds in telemetry.phases.items():
                booked[name] = booked.get(name, 0.0) + seconds
        if telemetry.spans:
            self._spans.setdefault((role, index), []).extend(telemetry.spans)
        self._role_seconds[role] = self._role_seconds.get(role, 0.0) + telemetry.seconds
        self._window.extend(telemetry.episodes)
        self._new_episodes.extend(telemetry.episodes)
        for name, values in telemetry.infos.items():
            if name in self._infos or len(self._infos) < MOST_INFOS:
                self._infos.setdefault(name, deque(maxlen=WINDOW)).extend(values)
            elif not self.left_out:
                self.left_out = name
        self.episodes += len(telemetry.episodes)

    def begin(self) -> None:
        """The time until now, since it was made or was given a state, was none of training."""
        now = time.monotonic()
        self._start, self._last = self._start + now - self._last, now

    @property
    def steps(self) -> int:
        return self.counts.get("env_steps", 0)

    @property
    def updates(self) -> int:
        return self.counts.get("updates", 0)

    @property
    def seconds(self) -> float:
        """Seconds of training; in a resumed run, those before its checkpoint included."""
        return time.monotonic() - self._start

    @property
    def told(self) -> int:
        """Environment steps at the last snapshot."""
        return self._last_counts[0]

    @property
    def changed(self) -> bool:
        """Whether the run has moved since the last snapshot."""
        return self._last_counts != (self.steps, self.updates) or self.row == 0

    @property
    def episode_return(self) -> float:
        """Mean return of the last 100 episodes; nan before the first."""
        return float(np.mean([r for r, _ in self._window])) if self._window else float("nan")

    @property
    def full_window(self) -> bool:
        return len(self._window) == WINDOW

    def snapshot(self, fill: dict[str, float] | None = None, memory: int = 0, making: int = 0) -> Snapshot:
        """The figures since the last snapshot. Those of an interval start again at zero."""
        now = time.monotonic()
        interval = max(now - self._last, 1e-9)
        steps, updates = self._last_counts
        self.row += 1
        out = Snapshot(
            row=self.row,
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
            failed=dict(self._failed),
            memory=memory,
            new_episodes=self._new_episodes,
            phase_seconds={role: dict(phases) for role, phases in self._phase_seconds.items()},
            spans=self._spans,
            infos={name: float(np.mean(values)) for name, values in self._infos.items()},
            histograms=self._tallies,
            left_out=self.left_out,
            making=making,
            byte_rate=(self.counts["bytes"] - self._last_bytes) / interval if "bytes" in self.counts else None,
        )
        self._last_bytes = self.counts.get("bytes", 0)
        for name, tally in self._tallies.items():
            out.records |= {f"{name}_{suffix}": quantile(tally, q) for suffix, q in QUANTILES}
        self._last, self._last_counts = now, (self.steps, self.updates)
        self._records, self._tallies, self._new_episodes = {}, {}, []
        self._phases, self._role_seconds, self._spans = {}, {}, {}
        return out

    def state_dict(self) -> State:
        """Return what a resumed run continues from, as plain JSON data; the figures since the last snapshot are
        included."""
        return {
            "counts": dict(self.counts),
            "episodes": self.episodes,
            "restarts": self.restarts,
            "row": self.row,
            "seconds": self.seconds,
            "window": [list(e) for e in self._window],
            "infos": {name: list(values) for name, values in self._infos.items()},
            "records": {name: list(r) for name, r in self._records.items()},
            "tallies": {name: [list(pair) for pair in t.items()] for name, t in self._tallies.items()},
            "new_episodes": [list(e) for e in self._new_episodes],
            "last_counts": list(self._last_counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """ValueError, TypeError, LookupError or AttributeError for what is no such state."""
        self.counts = {name: counter(n) for name, n in state["counts"].items()}
        self.episodes, self.restarts, self.row = (counter(state[name]) for name in ("episodes", "restarts", "row"))
        self._window = deque(((number(r), counter(n)) for r, n in state["window"]), maxlen=WINDOW)
        self._infos = {
            name: deque(map(number, values), maxlen=WINDOW) for name, values in state.get("infos", {}).items()
        }
        self._records = {name: (number(total), counter(n)) for name, (total, n) in state["records"].items()}
        self._tallies = {
            name: {int(number(v)): counter(n) for v, n in pairs} for name, pairs in state["tallies"].items()
        }
        self._new_episodes = [(number(r), counter(n)) for r, n in state["new_episodes"]]
        steps, updates = map(counter, state["last_counts"])
        self._last_counts = (steps, updates)
        self._last_bytes = self.counts.get("bytes", 0)
        self._last = time.monotonic()
        self._start = self._last - number(state["seconds"])


def quantile(tally: Mapping[int, int], q: float) -> float:
    """The ``q``-quantile of tallied integers: the smallest value that a share ``q`` of them does not exceed."""
    left = q * sum(tally.values())
    for value in sorted(tally):
        left -= tally[value]
        if left <= 0:
            return float(value)
    return float(max(tally))
