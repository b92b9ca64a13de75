"""What surrounds a command from its first moment on: signals that end it, and standard streams that may be gone."""

from __future__ import annotations

import contextlib
import errno
import io
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from shoal.runtime.interrupts import EXIT_CODES, REASONS, TOGETHER, heeded, leave
from shoal.runtime.streams import open_standard
from shoal.runtime.watcher import Watcher

CLEANUP_SECONDS = 2.0  # seconds in which a command may clean up after a signal


class Guard:
    """Runs a command so that it ends with one sentence and the exit code of the signal at any moment, imports included,
    and so that whoever does not read its output does not stop it."""

    def __init__(self) -> None:
        self.reason, self._since = "", 0.0  # what a signal said of the end, and when
        open_standard()
        sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
        self._out, sys.stdout = _tolerant(1, sys.stdout)
        self._err, sys.stderr = _tolerant(2, sys.stderr)

    def run(self, command: Callable[[], int]) -> int:
        """The exit code of ``command``. While it trains, it treats signals in its own way."""
        try:
            sys.unraisablehook = _report_unraisable
            for number in heeded():
                signal.signal(number, self._note)
            Watcher(REASONS, 1, CLEANUP_SECONDS, TOGETHER, lambda: int(bool(self.reason)), self._leave)
            code = command()
            for number in REASONS:  # all is done; a second signal may find the interpreter without handlers
                signal.signal(number, signal.SIG_IGN)
        except BaseException as error:
            if (interrupt := _interrupt_behind(error)) is not None:
                self.reason = self.reason or (str(interrupt) if str(interrupt) in EXIT_CODES else "interrupted")
            if not self.reason:
                _end_processes()
                raise
            sys.stdout.flush()
            self._leave()
        if self.reason and code not in (0, *EXIT_CODES.values()):  # what failed, failed by the signal
            self._leave()
        _end_processes()
        sys.stdout.flush()
        if self._out.error is not None and self._out.error.errno != errno.EPIPE:
            print(f"shoal: cannot write to standard output: {self._out.error.strerror}", file=sys.stderr)
            if sys.argv[1:2] not in (["train"], ["resume"]):  # whose work is done elsewhere
                code = code or 1
        return code

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Ask the command to clean up and, where it cannot or is asked again, leave it."""
        now = time.monotonic()
        if self.reason:
            if now - self._since > TOGETHER:
                self._leave()
            return
        self.reason, self._since = REASONS[signal.Signals(number)], now
        sys.unraisablehook = lambda unraisable: None  # where this lands in a destructor, nobody wants to read of it
        raise KeyboardInterrupt(self.reason)

    def _leave(self, number: int = signal.SIGINT) -> NoReturn:
        with contextlib.suppress(ValueError):  # of the watcher's thread
            for each in REASONS:  # nobody leaves twice
                signal.signal(each, signal.SIG_IGN)
        _end_processes(last=True)
        leave(self.reason or REASONS[signal.Signals(number)])


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt that ``error`` is, or during which it was raised (by what cleans up then)."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, KeyboardInterrupt):
        behind = behind.__context__
    return behind


def _report_unraisable(unraisable: Any) -> None:
    """Say nothing of an interrupt that came while a destructor or a callback ran, where it ends nothing."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def _end_processes(last: bool = False) -> None:
    """End those that the command has started, and what may still be importing in one of them."""
    processes = sys.modules.get("shoal.local.processes")
    if (end := getattr(processes, "end", None)) is not None:  # imported to its end
        with contextlib.suppress(Exception):  # the interpreter may be in the middle of anything
            end(last)


class _Tolerant(io.FileIO):
    """A stream that takes everything; ``error`` is what first went wrong, and from then on nothing is written."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self.error is not None:
            return size
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            return size


def _tolerant(number: int, stream: Any) -> tuple[_Tolerant, Any]:
    """(the descriptor, a text stream to it like ``stream``, which is None where it was closed)."""
    raw = _Tolerant(number, "w", closefd=False)
    errors = getattr(stream, "errors", "strict")
    return raw, io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors="backslashreplace" if errors == "strict" else errors,  # a path may be no text
        line_buffering=number == 2 or raw.isatty(),
    )
