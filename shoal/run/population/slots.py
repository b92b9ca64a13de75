"""Processes that do one piece of work after another, whatever becomes of them in between."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple

import cloudpickle

from shoal.local import processes, signals
from shoal.local.child import follow_parent
from shoal.runtime.interrupts import Interrupts


class Done(NamedTuple):
    """What came of a task: its ``result``, or why there is none (``failure``)."""

    task: int
    result: Any
    failure: str = ""


class Slots:
    """``count`` processes that call ``function`` with one argument at a time. A process that dies is told of as the
    failure of its task, and another takes its place."""

    def __init__(self, function: Callable[[Any], Any], count: int) -> None:
        self._blob = cloudpickle.dumps(function)
        self._processes: list[Any] = [None] * count
        self._pipes: list[connection.Connection | None] = [None] * count
        self._tasks: list[int | None] = [None] * count
        processes.prepare()

    @property
    def free(self) -> int:
        """Slots without a task."""
        return sum(task is None for task in self._tasks)

    def busy(self) -> dict[int, int]:
        """Task -> pid of the process that does it."""
        return {task: self._processes[i].pid for i, task in enumerate(self._tasks) if task is not None}

    def submit(self, task: int, argument: Any) -> None:
        """Give a free slot the task of that number."""
        slot = self._tasks.index(None)
        if self._processes[slot] is None or not self._processes[slot].is_alive():
            self._start(slot)
        self._tasks[slot] = task
        pipe = self._pipes[slot]
        assert pipe is not None
        with contextlib.suppress(OSError):  # it died meanwhile, which ``wait`` tells
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
        """Ask every task to end in order, by SIGTERM; ``wait`` then tells what came of it."""
        for pid in self.busy().values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """End every process, without waiting for that."""
        for process in self._processes:
            if process is not None:
                processes.kill(process)

    def close(self) -> None:
        """Leave no process behind."""
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
    """What runs inside a slot: until the pipe closes, as it does when the parent dies."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is for the parent, which asks in order
    follow_parent()
    with Interrupts():  # what ``stop`` asks between two runs reaches the next
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.OF_THE_RUN)
        function = cloudpickle.loads(blob)
        while True:
            try:
                argument = cloudpickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                break
            try:
                answer: Any = (False, function(argument))
            except Exception:  # noqa: BLE001 - told to the parent, which names it
                answer = (True, traceback.format_exc())
            try:
                pipe.send_bytes(cloudpickle.dumps(answer))
            except OSError:
                break
    os._exit(0)
