"""Ends of channels that also log what a role does with them, and how long it works between."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from shoal.metering.recorder import OTHER, Recorder

WORTH = 50e-6  # seconds without a core, below which a switch is the kernel's doing


@dataclass
class Entry:
    """Work since the entry before, and then an operation (none: the end of a step). fresh: whether the last look at
    parameters in this step found newer ones."""

    do: str
    port: str
    busy: float
    idle: float
    phases: dict[str, float]
    fresh: bool


@dataclass
class StepLog:
    """One step, and what it counted."""

    entries: list[Entry] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


class LoggingRecorder(Recorder):
    """The metrics of a role, with processor time by phase: what other programs do on the machine is not in it.

    Time in which the process gave up its core by itself, as in a sleep, is ``idle``.
    """

    def __init__(self) -> None:
        super().__init__(OTHER)
        self.inserts: list[float] = []
        self.steps: list[StepLog] = []
        self._log = StepLog()
        self._acc: dict[str, float] = {}
        self._clock = time.process_time()
        self._fresh = True
        self._origin = self._look()

    def enter(self, phase: str) -> str:
        now, before = time.process_time(), self._phase
        self._phase = phase
        if before == "insert":
            self.inserts.append(now - self._clock)
        else:
            self._acc[before] = self._acc.get(before, 0.0) + now - self._clock
        self._clock = now
        return before

    def begin(self) -> None:
        """A step begins."""
        self.enter(OTHER)
        self._log, self._acc, self._fresh, self._origin = StepLog(), {}, True, self._look()
        self._before = dict(self.totals)

    def mark(self, do: str, port: str) -> None:
        """An operation: the work before it is done."""
        self.enter(self._phase)
        wall, cpu, gave_up = self._look()
        idle = wall - self._origin[0] - (cpu - self._origin[1])
        rested = gave_up > self._origin[2] and idle > WORTH
        acc, self._acc = self._acc, {}
        busy = sum(acc.values())
        self._log.entries.append(Entry(do, port, busy, idle if rested else 0.0, acc, self._fresh))
        self._origin = wall, cpu, gave_up

    def looked(self, fresh: bool) -> None:
        """Parameters were looked at."""
        self._fresh = fresh

    def end(self) -> StepLog:
        """A step is over."""
        self.mark("", "")
        log = self._log
        log.counts = {k: n - self._before.get(k, 0) for k, n in self.totals.items()}
        self.enter(OTHER)
        return log

    @staticmethod
    def _look() -> tuple[float, float, int]:
        return time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

    _before: dict[str, int] = {}  # noqa: RUF012 - replaced, never changed


class Tap:
    """An end of a channel, as its role sees it; ``kind``: of the channel, or of its end: writer, queue, replay, params,
    publisher, reduce, board, shared."""

    def __init__(self, end: Any, port: str, kind: str, log: LoggingRecorder) -> None:
        self.end, self._port, self._kind, self._log = end, port, kind, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.end, name)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        if self._kind == "writer":
            self._log.mark("reserve", self._port)
        found = self.end.put(*args, **kwargs)
        self._log.mark("commit" if self._kind == "writer" else "put", self._port)
        return found

    def slot(self, *args: Any, **kwargs: Any) -> _SlotTap:
        return _SlotTap(self.end.slot(*args, **kwargs), self._port, self._kind, self._log)

    def get(self) -> Any:
        if self._kind != "board":
            self._log.mark("get", self._port)
        return self.end.get()

    def latest(self, newer_than: int = -1) -> Any:
        self._log.mark("latest", self._port)
        found = self.end.latest(newer_than)
        self._log.looked(found is not None)
        return found

    def fetch(self, into: Any, newer_than: int = -1) -> Any:
        self._log.mark("latest", self._port)
        found = self.end.fetch(into, newer_than)
        self._log.looked(found is not None)
        return found

    def publish(self, params: Any) -> Any:
        found = self.end.publish(params)
        self._log.mark("publish", self._port)
        return found

    def offer(self, params: Any) -> Any:
        found = self.end.offer(params)
        self._log.mark("offer", self._port)
        return found

    def copy(self) -> Any:
        self._log.mark("copy", self._port)
        return self.end.copy()

    def add(self, gradient: Any, lr: float) -> Any:
        found = self.end.add(gradient, lr)
        self._log.mark("add", self._port)
        return found


class _SlotTap:
    """A slot of a tapped end; ``version`` is the slot's."""

    def __init__(self, slot: Any, port: str, kind: str, log: LoggingRecorder) -> None:
        self._slot, self._port, self._kind, self._log = slot, port, kind, log

    @property
    def version(self) -> int:
        found: int = self._slot.version
        return found

    @version.setter
    def version(self, version: int) -> None:
        self._slot.version = version

    def __enter__(self) -> Any:
        if self._kind == "writer":
            self._log.mark("reserve", self._port)
        return self._slot.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> Any:
        found = self._slot.__exit__(kind, error, tb)
        if kind is None:
            does = {"writer": "commit", "publisher": "publish"}.get(self._kind, "put")
            self._log.mark(does, self._port)
        return found
