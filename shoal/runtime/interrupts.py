"""SIGINT, SIGTERM and SIGHUP (the terminal is gone) while a run goes on: the first asks it to end in order, a second
one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None  # as signal.signal returns it
REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
EXIT_CODES = {"interrupted": 130, "terminated": 143, "hung up": 129}  # by what the first signal says of the end
TOGETHER = 1.5  # seconds: signals that follow one another faster are one, sent to a process and to its group


def heeded() -> list[signal.Signals]:
    """The signals that end a run: not the terminal's end for a command that was told to outlive it (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in REASONS if not (ignored and number == signal.SIGHUP)]


class Interrupts:
    """A context. Signals reach Python's main thread only; elsewhere this does nothing.

    count: signals so far, those that come ``TOGETHER`` counted once; reason: what the first one says of the run's end.
    The second raises KeyboardInterrupt, unless there is ``wake``, a descriptor that each is written to, so that a
    sleeping loop looks. A context within another one knows what that one has noted, and tells it what it notes.
    """

    def __init__(self, wake: int | None = None) -> None:
        self.count, self.reason = 0, ""
        self._wake, self._last = wake, 0.0
        self._before: dict[int, Handler] = {}
        self._outer: Interrupts | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            self._outer = outer if isinstance(outer, Interrupts) else None
            self._before = {number: signal.signal(number, self._note) for number in heeded()}
            if self._outer is not None:
                self._take(self._outer)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._outer is not None:
            self._outer._take(self)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, other: Interrupts) -> None:
        self.count, self.reason, self._last = other.count, other.reason, other._last

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.count and now - self._last < TOGETHER:
            return
        self.count, self._last = self.count + 1, now
        self.reason = self.reason or REASONS[signal.Signals(number)]
        if self._wake is not None:
            with contextlib.suppress(OSError):  # the pipe is full: whoever reads it will look anyway
                os.write(self._wake, b"!")
        elif self.count > 1:
            raise KeyboardInterrupt(self.reason)
