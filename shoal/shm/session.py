"""State that all blocking ports of one replica share: the stop flag, and the time spent waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.shm import futex
from shoal.shm.arena import Arena
from shoal.shm.layout import STOP


class Session:
    """``tick`` (ships telemetry when due) is called at every look at the stop flag."""

    def __init__(self, arena: Arena, metrics: Recorder, tick: Callable[[], None] | None = None) -> None:
        self.arena, self.metrics = arena, metrics
        self.tick = tick
        self.fresh = True  # no port has done anything yet in this step: the role is as it was before
        self.at_rest: Callable[[], None] | None = None  # called when a port waits meanwhile
        self._words, self._stop = arena.words, STOP // 8

    def stopping(self) -> bool:
        return self._words[self._stop] != 0

    def wait(self, phase: str, address: int, seen: int) -> None:
        """Sleep until the word at ``address`` may have changed; raise Stopped when the run ends."""
        with self.metrics.phase(phase):
            self.look(phase)  # in the phase: the report that it may send wakes who asks whether this replica waits
            futex.wait(address, seen)

    def look(self, phase: str) -> None:
        """Do periodic work while a port waits; raise Stopped when the run ends."""
        if self._words[self._stop]:
            raise api.Stopped(f"the run ended during {phase}")
        if self.tick is not None:
            self.tick()
        if self.fresh and self.at_rest is not None:
            self.at_rest()

    def rest(self, seconds: float) -> None:
        """Sleep between two steps of a role that has nothing to do or has used its share of time."""
        with self.metrics.phase("wait:rest"):
            if self.tick is not None:
                self.tick()
            time.sleep(seconds)
