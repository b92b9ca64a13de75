"""Handle SIGINT, SIGTERM and SIGHUP during a run: the first ends the run with a checkpoint, a second one ends it at
once, whatever the main thread is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from shoal.runtime.watcher import Watcher

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None  # as signal.signal returns it
REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
EXIT_CODES = {"interrupted": 130, "terminated": 143, "hung up": 129}  # by what the first signal says of the end
GRACE_SECONDS = 3.0  # seconds after the second signal in which the main thread may end the run itself
TOGETHER = 1.5  # seconds: signals that follow one another faster are one, sent to a process and to its group


def heeded() -> list[signal.Signals]:
    """Return the signals that end a run: without SIGHUP, if the command ignores it (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in REASONS if not (ignored and number == signal.SIGHUP)]


class Interrupts:
    """A context. Signals reach Python's main thread only; elsewhere this does nothing.

    count: signals so far, those that come ``TOGETHER`` counted once; reason: what the first one says of the run's end.
    The second raises KeyboardInterrupt, unless there is ``wake``, a descriptor that each is written to, so that a
    sleeping loop looks; while that loop is in code of others (``foreign``) the second raises all the same. Where
    neither ends the context within ``GRACE_SECONDS``, because the main thread hangs, ``kill`` is called in another
    thread (to leave no process behind) and this process exits. A context within another one knows what that one has
    noted, and tells it what it notes.
    """

    def __init__(self, wake: int | None = None, kill: Callable[[], None] | None = None) -> None:
        self.count, self.reason = 0, ""
        self.foreign = False
        self._kill = kill
        self._watcher: Watcher | None = None
        self._wake, self._last = wake, 0.0
        self._before: dict[int, Handler] = {}
        self._outer: Interrupts | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            owners = [getattr(signal.getsignal(number), "__self__", None) for number in heeded()]
            # of any signal: a library may have a handler of its own for another, as Ray has for SIGTERM
            self._outer = next((owner for owner in owners if isinstance(owner, Interrupts)), None)
            self._before = {number: signal.signal(number, self._note) for number in heeded()}
            if self._outer is not None:
                self._take(self._outer)
            self._watcher = Watcher(REASONS, 2, GRACE_SECONDS, TOGETHER, lambda: self.count, self._leave)
            self._watcher.look()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._watcher is not None:
            self._watcher.close()
        if self._outer is not None:
            self._outer._take(self)
            if self._outer._watcher is not None:
                self._outer._watcher.look()
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
        if self.count > 1 and (self._wake is None or self.foreign):
            raise KeyboardInterrupt(self.reason)

    @contextlib.contextmanager
    def in_foreign_code(self) -> Iterator[None]:
        """A second signal raises KeyboardInterrupt within the block, which may never end by itself."""
        self.foreign = True
        try:
            yield
        finally:
            self.foreign = False

    def _leave(self, number: int) -> NoReturn:
        """End the process from the watcher's thread, since the main thread hangs."""
        reason = self.reason or REASONS[signal.Signals(number)]
        if self._kill is not None:
            with contextlib.suppress(Exception):
                self._kill()
        leave(reason)


def leave(reason: str) -> NoReturn:
    """End this process with one sentence and the exit code of the signal, from any thread and at any moment. Not by an
    exception: an interpreter that was interrupted anywhere may have much to say."""
    if _LEAVING.acquire(blocking=False):  # two threads may want to, and one says so
        with contextlib.suppress(OSError):
            os.write(2, f"shoal: {reason}\n".encode())
    os._exit(EXIT_CODES[reason])


_LEAVING = threading.Lock()
