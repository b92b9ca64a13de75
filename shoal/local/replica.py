"""The supervisor's view of one replica: its process, its pipe, its restarts."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection

from shoal.local import processes
from shoal.local.processes import Process
from shoal.local.telemetry import Inbox, Message
from shoal.program import RoleSpec


class Replica:
    """One replica of a role over all its lives (generations). ``news`` tells of its messages and of its death."""

    def __init__(
        self,
        role: RoleSpec,
        index: int,
        launch: Callable[[Replica, Connection], Process],
        news: selectors.BaseSelector,
    ) -> None:
        self.role, self.index, self.generation = role, index, 0
        self.process: Process | None = None
        self.inbox: Inbox | None = None
        self.restart_at: float | None = None
        self.given_up = False  # it failed too often, and the run goes on without it
        self.cause = ""  # traceback, or sentence, of the last failure
        self.repeats = False  # trying again will fail in the same way
        self.users = False  # a name or value that the user gave is at fault
        self.failures: deque[float] = deque()
        self.last, self.in_a_row = "", 0  # cause of the last failure, and how often it came in a row
        self.still_born = 0  # lives in a row that ended before their first step
        self._launch, self._news = launch, news
        self._pipe: Connection | None = None

    @property
    def label(self) -> str:
        return f"{self.role.name}[{self.index}]"

    def start(self) -> None:
        self.restart_at, self.cause, self.repeats, self.users = None, "", False, False
        ours, theirs = connection.Pipe(duplex=False)
        try:
            self.process = self._launch(self, theirs)
        finally:
            theirs.close()
        self._pipe, self.inbox = ours, Inbox(ours.fileno())
        for descriptor in (self.inbox.fd, self.process.sentinel):
            self._news.register(descriptor, selectors.EVENT_READ, self)

    def receive(self) -> list[Message]:
        """Messages that arrived; closes the pipe at its end."""
        if self.inbox is None:
            return []
        messages = self.inbox.receive()
        if not self.inbox.open:
            self._close_pipe()
        return messages

    def reap(self) -> int | None:
        """Collect the dead process and its helpers; returns its exit code."""
        process = self.process
        assert process is not None, "there is a process to collect"
        self._news.unregister(process.sentinel)
        process.join()
        exitcode: int | None = process.exitcode
        processes.kill(process)  # only its process group is left to kill
        process.close()
        self.process = None
        self._close_pipe()
        return exitcode

    def kill(self) -> None:
        """End its process, and the helpers of that, at once."""
        if self.process is not None:
            processes.kill(self.process)

    def may_restart(self, now: float, limit: int, window: float) -> bool:
        """Counts a failure; True while there are at most ``limit`` within ``window`` seconds."""
        self.failures.append(now)
        while now - self.failures[0] > window:
            self.failures.popleft()
        return self.role.on_failure != "stop" and len(self.failures) <= limit

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._news.unregister(self._pipe.fileno())
            self._pipe.close()
            self._pipe, self.inbox = None, None
