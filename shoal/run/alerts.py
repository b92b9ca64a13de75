"""``--alert COMMAND``: calls a command when a run ends, fails, stalls or loses replicas (or a population members)."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.types import Values
from shoal.words import counted

AFTER = 300.0  # seconds without progress after which a run is reported as stalled
FALL = 0.5  # share of the return's gain whose loss is reported
LISTEN_SECONDS = 5.0  # longest time between two checks of a hanging runtime
COMMAND_SECONDS = 30.0  # seconds after which a command is killed
MOST_NAMED = 3  # failed replicas in a sentence; more are counted
PATIENCE_SECONDS = 3.0  # seconds at the end of a run before it reports that it waits for a command

log = logging.getLogger("shoal.run")


class Alarm:
    """An observer of a run that calls ``command`` by the shell, with a sentence as its last argument, at most once for
    each cause. The command's environment contains ``SHOAL_ALERT`` (ended, failed, stalled, fell, restarted,
    lost) and ``SHOAL_RUN``, the run's directory.

    As a context manager it reports how the run ended. A second shell process reports if this process is killed.

    after: seconds of training without a step, or with a return that has lost half of its gain, before an alert. A
    command that fails, cannot be started, or has not ended after ``COMMAND_SECONDS`` (it is then killed with its
    process group) causes a warning.
    """

    def __init__(self, command: str, path: Path, after: float = AFTER) -> None:
        self._command, self._path, self._after = command, path, after
        self._told: set[Hashable] = set()
        self._running: list[tuple[subprocess.Popen[bytes], float]] = []  # with the monotonic seconds of its deadline
        self._telling = threading.Lock()
        self._survivor: subprocess.Popen[bytes] | None = None
        self._steps, self._moved = -1.0, 0.0  # steps, and the seconds at which they last changed
        self._lowest, self._well = math.inf, 0.0  # lowest return, and the seconds at which the return was last good
        self._best, self._began = -math.inf, math.inf  # highest return, and the lowest one before it
        self.ended: str | None = None  # how the run ended, as a sentence; None: unknown

    def __call__(self, row: Values) -> None:
        self._collect()
        seconds, steps = float(row["seconds"]), float(row["steps"])
        if steps != self._steps:
            self._steps, self._moved = steps, seconds
        elif seconds - self._moved >= self._after:
            self._tell("stalled", steps, f"no step for {seconds - self._moved:.0f} s, at {counted(steps, 'step')}")
        if (score := row.get("episode_return")) is not None and math.isfinite(score):
            self._look(float(score), seconds)

    def failed(self, parts: Mapping[str, str]) -> None:
        """Report replicas or members that failed, those of one look together and each once. parts: name -> what became
        of it, ``restarted`` or ``lost``."""
        for what, became in (("restarted", "restarted"), ("lost", "given up")):
            with self._telling:
                new = [name for name, fate in parts.items() if fate == what and (what, name) not in self._told]
                self._told.update((what, name) for name in new)
            if new:
                named = ", ".join(new[:MOST_NAMED]) + (f" and {len(new) - MOST_NAMED} more" if new[MOST_NAMED:] else "")
                were = "was" if len(new) == 1 else "were"
                at = counted(max(0.0, self._steps), "step")
                self._tell(what, tuple(new), f"{named} failed and {were} {became}, at {at}")

    def _look(self, score: float, seconds: float) -> None:
        """Report a return that has fallen and remains low."""
        self._lowest = min(self._lowest, score)
        if score > self._best:
            self._best, self._began = score, self._lowest
        gained = self._best - self._began
        if not gained or score >= self._best - FALL * gained:
            self._well = seconds
        elif seconds - self._well >= self._after:
            self._tell("fell", self._best, f"the return fell from {self._best:.4g} to {score:.4g}")

    @contextlib.contextmanager
    def listening(self, looked: Callable[[], float]) -> Iterator[None]:
        """Report a runtime that hangs within the block and so writes no rows. looked: returns the monotonic seconds at
        which progress was last seen."""
        over = threading.Event()

        def listen() -> None:
            while not over.wait(min(self._after / 4, LISTEN_SECONDS)):
                self._collect()
                if (silent := time.monotonic() - looked()) >= self._after:
                    steps = max(0.0, self._steps)
                    self._tell("stalled", self._steps, f"no step for {silent:.0f} s, after {counted(steps, 'step')}")

        thread = threading.Thread(target=listen, name="alert", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def __enter__(self) -> Alarm:
        self._survivor = self._start(
            "failed", "failed: its process was killed", before="read -r _ && exit\n", stdin=subprocess.PIPE
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.ended is not None:
            self._tell("ended", None, f"ended: {self.ended}")
        elif isinstance(error, Exception):
            self._tell("failed", None, f"failed: {str(error).strip().partition(chr(10))[0] or type(error).__name__}")
        elif error is not None:
            self._tell("ended", None, f"ended: {error or 'interrupted'}")
        if self._survivor is not None:
            self._survivor.communicate(b"\n")
        self._wait(PATIENCE_SECONDS)
        self._collect()
        if self._running:
            _warn(f"waiting at most {COMMAND_SECONDS:.0f} s for the command of --alert to end")
            self._wait(COMMAND_SECONDS)
        self._collect()

    def _wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` until every command has ended or reached its deadline."""
        limit = time.monotonic() + seconds
        for process, deadline in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, min(deadline, limit) - time.monotonic()))

    def _tell(self, what: str, cause: Any, sentence: str) -> None:
        with self._telling:
            if (what, cause) in self._told:
                return
            self._told.add((what, cause))
        if (process := self._start(what, sentence)) is not None:
            with self._telling:
                self._running.append((process, time.monotonic() + COMMAND_SECONDS))

    def _start(
        self, what: str, sentence: str, before: str = "", stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes] | None:
        """Start the command, after the shell lines ``before``. Return the process, or None if it cannot be started."""
        words = ["/bin/sh", "-c", f'{before}{self._command} "$@"', "shoal", f"{self._path.name}: {sentence}"]
        environ = {**os.environ, "SHOAL_ALERT": what, "SHOAL_RUN": str(self._path)}
        try:
            return subprocess.Popen(
                words, env=environ, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            _warn(f"the command of --alert cannot be started: {error}")
            return None

    def _collect(self) -> None:
        """Report commands that have failed, and kill those that have reached their deadline."""
        with self._telling:
            for process, deadline in [*self._running]:
                late = process.poll() is None and time.monotonic() >= deadline
                if late:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                elif process.returncode is None:
                    continue
                self._running.remove((process, deadline))
                if late:
                    _warn(f"the command of --alert had not ended after {COMMAND_SECONDS:.0f} s and was killed")
                elif process.returncode:
                    _warn(f"the command of --alert ended with exit code {process.returncode}")


def _warn(sentence: str) -> None:
    """Log a warning, or print it to standard error if the run's log is closed."""
    if log.hasHandlers():
        log.warning("%s", sentence)
    else:
        print(f"shoal: {sentence}", file=sys.stderr)
