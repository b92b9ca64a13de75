"""Worker processes that run one task after another and are replaced when they die."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple

import cloudpickle

from shoal.local import descriptors, processes, signals
from shoal.local.child import follow_parent
from shoal.runtime import memory
from shoal.runtime.interrupts import Interrupts

SLOT_BYTES = 32_000_000  # of a slot's process that no other shares, while it trains a small network


def fitting(count: int, tell: Callable[[str], None]) -> int:
    """Return how many of ``count`` slots memory and the limit of open files leave room for, at least 1. tell: receives
    a sentence if they are fewer."""
    fits = max(1, min(count, memory.available() // SLOT_BYTES, descriptors.room()))
    if fits < count:
        tell(f"{fits:,} at once instead of {count:,} (slots): there is no memory, or are no open files, for more")
    return fits


class Done(NamedTuple):
    """The outcome of a task: its ``result``, or the ``failure``."""

    task: int
    result: Any
    failure: str = ""


class Slots:
    """``count`` processes that call ``function`` with one argument at a time. If a process dies, its task fails and
    another process takes its place."""

    def __init__(self, function: Callable[[Any], Any], count: int) -> None:
        descriptors.make_room(count)
        self._blob = cloudpickle.dumps(function)
        self._processes: list[Any] = [None] * count
        self._pipes: list[connection.Connection | None] = [None] * count
        self._tasks: list[int | None] = [None] * count
        processes.prepare()

    @property
    def free(self) -> int:
        """Return the number of slots without a task."""
        return sum(task is None for task in self._tasks)

    def busy(self) -> dict[int, int]:
        """Return the pid of the process of each running task."""
        return {task: self._processes[i].pid for i, task in enumerate(self._tasks) if task is not None}

    def submit(self, task: int, argument: Any) -> None:
        """Start a task in a free slot."""
        slot = self._tasks.index(None)
        if self._processes[slot] is None or not self._processes[slot].is_alive():
            self._start(slot)
        self._tasks[slot] = task
        pipe = self._pipes[slot]
        assert pipe is not None
        with contextlib.suppress(OSError):  # if it has died, ``wait`` reports that
            pipe.send_bytes(cloudpickle.dumps(argument))

    def wait(self, timeout: float | None = None) -> list[Done]:
        """Return the finished tasks. Blocks until at least one finishes, if any slot is busy."""
        working = {self._pipes[i]: i for i, task in enumerate(self._tasks) if task is not None}
        if not working:
            return []
        out = []
        for pipe in connection.wait([p for p in working if p is not None], timeout):
            slot = working[pipe]  # type: ignore[index]
            task = self._tasks[slot]
            assert task is not None
            try:
                failed, content = cloudpickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                out.append(Done(task, None, content) if failed else Done(task, content))
            except (EOFError, OSError):
                process = self._processes[slot]
                process.join()
                out.append(Done(task, None, processes.describe_exit(process.exitcode)))
                self._end(slot)
            self._tasks[slot] = None
        return out

    def stop(self) -> None:
        """Ask every task to end normally, by SIGTERM. ``wait`` then returns their results."""
        for pid in self.busy().values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill every process without waiting."""
        for process in self._processes:
            if process is not None:
                processes.kill(process)

    def close(self) -> None:
        """End all processes."""
        for slot, process in enumerate(self._processes):
            if process is not None:
                processes.kill(process)
                process.join()
                self._end(slot)

    def _start(self, slot: int) -> None:
        if self._processes[slot] is not None:
            self._end(slot)
        ours, theirs = connection.Pipe()
        try:
            self._processes[slot] = processes.start(_serve, (self._blob, theirs), f"shoal-slot-{slot}")
        finally:
            theirs.close()
        self._pipes[slot] = ours

    def _end(self, slot: int) -> None:
        pipe = self._pipes[slot]
        if pipe is not None:
            pipe.close()
        self._processes[slot] = self._pipes[slot] = None


def _serve(blob: bytes, pipe: connection.Connection) -> None:
    """Run tasks inside a slot until the pipe closes, as it does when the parent dies."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is for the parent, which then sends SIGTERM
    follow_parent()
    with Interrupts():  # a signal between two tasks applies to the next
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.OF_THE_RUN)
        function = cloudpickle.loads(blob)
        while True:
            try:
                argument = cloudpickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                break
            try:
                answer: Any = (False, function(argument))
            except Exception:  # noqa: BLE001 - sent to the parent, which reports it
                answer = (True, traceback.format_exc())
            try:
                pipe.send_bytes(cloudpickle.dumps(answer))
            except OSError:
                break
    os._exit(0)
