"""Watch for signals in a thread, for a process whose main thread is in code that does not return to Python."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection


class Watcher:
    """Calls ``end`` once ``allowed`` signals of ``numbers`` have come and the main thread has not closed this for
    ``patience`` seconds more. Python's own handlers run in the main thread alone, when it is back in Python; the
    interpreter tells a descriptor of a signal at once (``signal.set_wakeup_fd``), which this thread reads.

    Signals that follow one another within ``together`` seconds are one. ``count``: signals that the owner knows of;
    ``end`` is given the first that was heard here, or 0. Opened and closed in the main thread; one within another takes
    the place of that until it is closed.
    """

    def __init__(
        self, numbers: Collection[int], allowed: int, patience: float, together: float, count: Callable[[], int],
        end: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._numbers, self._allowed, self._patience, self._together = numbers, allowed, patience, together
        self._count, self._end = count, end
        self._heard, self._first, self._last = 0, 0, float("-inf")
        self._closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        _let_copies_go()
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="shoal-signals", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Wake the watcher after a change of ``count``."""
        with contextlib.suppress(OSError):  # the pipe is full: it looks anyway
            os.write(self._write, b"\0")

    def close(self) -> None:
        self._closed = True  # first: a signal may end this method anywhere
        signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        self.look()
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        due: float | None = None
        while not self._closed:
            left = None if due is None else max(0.0, due - time.monotonic())
            if not select.select([self._read], [], [], left)[0]:
                if not self._closed:
                    self._end(self._first)
                return
            now = time.monotonic()
            heard = [number for number in os.read(self._read, 4096) if number in self._numbers]
            if heard and now - self._last >= self._together:
                self._heard, self._first, self._last = self._heard + 1, self._first or heard[0], now
            if due is None and max(self._heard, self._count()) >= self._allowed:
                due = now + self._patience


@functools.cache
def _let_copies_go() -> None:
    """Detach a forked copy of this process, so that it does not report its signals to the original."""

    def let_go() -> None:
        with contextlib.suppress(ValueError):  # of a copy by another thread, which hears none
            signal.set_wakeup_fd(-1)

    os.register_at_fork(after_in_child=let_go)
