"""SIGINT and SIGTERM while a run goes on: the first asks it to end in order, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None  # as signal.signal returns it
REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Interrupts:
    """A context. Signals reach Python's main thread only; elsewhere this does nothing.

    count: signals so far; reason: what the first one says of the run's end. The second raises KeyboardInterrupt, unless
    there is ``wake``, a descriptor that each is written to, so that a sleeping loop looks.
    """

    def __init__(self, wake: int | None = None) -> None:
        self.count, self.reason = 0, ""
        self._wake = wake
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in REASONS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.reason = self.reason or REASONS[signal.Signals(number)]
        if self._wake is not None:
            with contextlib.suppress(OSError):  # the pipe is full: whoever reads it will look anyway
                os.write(self._wake, b"!")
        elif self.count > 1:
            raise KeyboardInterrupt
