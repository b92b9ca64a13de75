"""Limits on whoever connects to the page: a request must come soon, connections are counted, and the log has one line a
minute of each kind."""

from __future__ import annotations

import asyncio
import logging
import resource
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

WAIT_SECONDS = 10.0  # in which a request must arrive: after the connection, and after each answer
MOST = 256  # connections at once, each of which holds a descriptor
SPARE_DESCRIPTORS = 64  # that answers need
SILENT = "Connection closed: no whole request came within %g s."
FULL = "Connection closed: %d are open, and it had waited longest without a request."
LOG_SECONDS = 60.0  # between two lines with the same message
MOST_MESSAGES = 100  # whose time is kept


class Connection(H11Protocol):
    """A connection to the page (uvicorn's ``http`` class). uvicorn itself waits for the first request for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self.since = self.loop.time()
        known = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        if len(known) > (most := most_connections()):
            self.logger.warning(FULL, most)
            min(filter(Connection.waits, known), key=lambda one: one.since).transport.abort()
        self.loop.call_later(WAIT_SECONDS, self._look, self.cycle)

    def waits(self) -> bool:
        """Return whether no answer is being made, as for the newest connection."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _look(self, before: object) -> None:
        """Close the connection if it still waits for the request after that of ``before``."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            before = self  # an answer is being sent: no request is waited for
        elif self.cycle is before:
            self.logger.warning(SILENT, WAIT_SECONDS)
            self.transport.abort()
            return
        else:
            before = self.cycle
        self.loop.call_later(WAIT_SECONDS, self._look, before)

    def _should_upgrade(self) -> bool:
        return False  # no web sockets: such a request is answered like any other


def most_connections() -> int:
    """Return how many connections may be open: fewer where the process may open few files."""
    return max(1, min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS))


class Sparse(logging.Filter):
    """Lets a message through once in ``LOG_SECONDS``, and then says how many like it were held back."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}  # message -> when it was last shown, how many came since

    def filter(self, record: logging.LogRecord) -> bool:
        now, message = time.monotonic(), str(record.msg)
        at, held = self._seen.get(message, (-LOG_SECONDS, 0))
        if now - at < LOG_SECONDS:
            self._seen[message] = at, held + 1
            return False
        if len(self._seen) >= MOST_MESSAGES:
            self._seen.clear()
        self._seen[message] = now, 0
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held} more like it since the last line)", ()
        return True
