"""Profiles of a run: the spans of all replicas, written as a Chrome trace, which Perfetto shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from shoal.metering.aggregator import Snapshot
from shoal.metering.recorder import START


class Line(NamedTuple):
    """One phase of a role: ``share`` of its time, over its replicas; ``spans`` recorded, and their ``mean`` length
    (seconds)."""

    role: str
    phase: str
    share: float
    spans: int
    mean: float


class Trace:
    """An observer of a run whose replicas record spans.

    The table leaves out what lies before the first update: starting, compiling, filling a replay.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[str, int], list[tuple[str, float, float]]] = {}
        self._seconds: dict[str, dict[str, float]] = {}
        self._before: dict[str, dict[str, float]] | None = None  # seconds before the first update
        self._early: dict[tuple[str, int], int] = {}  # spans before it

    def update(self, snapshot: Snapshot) -> None:
        for replica, spans in snapshot.spans.items():
            self._spans.setdefault(replica, []).extend(spans)
        self._seconds = snapshot.phase_seconds
        if self._before is None and snapshot.updates:
            self._before = snapshot.phase_seconds
            self._early = {replica: len(spans) for replica, spans in self._spans.items()}

    def shares(self) -> dict[str, dict[str, float]]:
        """Role -> phase -> share of its time."""
        out: dict[str, dict[str, float]] = {}
        for role, booked in self._seconds.items():
            before = (self._before or {}).get(role, {}) if self._before is not self._seconds else {}
            phases = {name: s - before.get(name, 0.0) for name, s in booked.items() if name != START}
            total = sum(phases.values())
            if total > 0:
                out[role] = {name: s / total for name, s in phases.items()}
        return out

    def table(self) -> list[Line]:
        """Every phase of every role, the largest first."""
        lines = []
        for role, phases in self.shares().items():
            for phase, share in sorted(phases.items(), key=lambda item: -item[1]):
                lengths = [
                    s
                    for replica, spans in self._spans.items()
                    if replica[0] == role
                    for p, _, s in spans[self._early.get(replica, 0) :]
                    if p == phase
                ]
                lines.append(Line(role, phase, share, len(lengths), sum(lengths) / max(1, len(lengths))))
        return lines

    def write(self, path: Path) -> None:
        """Chrome's trace event format: one process per replica, times in microseconds from the first span on."""
        begin = min((spans[0][1] for spans in self._spans.values() if spans), default=0.0)
        events: list[dict[str, object]] = []
        for pid, ((role, index), spans) in enumerate(sorted(self._spans.items()), 1):
            events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{role}-{index}"}})
            events += [
                {"ph": "X", "name": phase, "cat": phase.partition(":")[0], "pid": pid, "tid": 1,
                 "ts": round(1e6 * (start - begin), 3), "dur": round(1e6 * seconds, 3)}
                for phase, start, seconds in spans
            ]  # fmt: skip
        path.unlink(missing_ok=True)  # not through a link
        with open(path, "x", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file, separators=(",", ":"))
