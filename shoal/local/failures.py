"""What becomes of a replica that died: it is started again, the run goes on without it, or the run fails."""

from __future__ import annotations

import logging
import re
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from shoal.api import EnvironmentFailed, RoleFailed, ShoalError, UsageError
from shoal.errors import out_of_memory
from shoal.local import processes
from shoal.local.replica import Replica
from shoal.words import counted

OURS = Path(__file__).parents[1]  # the folder of Shoal's own code
log = logging.getLogger("shoal.runtime")


@dataclass(frozen=True)
class Patience:
    """How often a replica may fail before the run does.

    restarts: how often within ``window`` seconds; before each restart it waits ``backoff`` seconds, doubling up to
        ``longest_backoff``.
    still_born: how often in a row without ever completing a step.
    repeats: how often in a row within ``window`` by the same error, where it is one that will be met again.
    """

    restarts: int = 10
    window: float = 60.0
    backoff: float = 0.1
    longest_backoff: float = 2.0
    still_born: int = 3
    repeats: int = 2


def cause_of(error: BaseException) -> str:
    """Return the traceback of ``error``; of memory that is out and of what Shoal raises on purpose, its sentence; of an
    environment's failure that has a cause, before it the lines of the cause's traceback that are not Shoal's."""
    if (sentence := out_of_memory(error)) is not None:
        return sentence
    if not isinstance(error, ShoalError):
        return "".join(traceback.format_exception(error))
    if not isinstance(error, EnvironmentFailed) or error.__cause__ is None:
        return str(error)
    inner = traceback.TracebackException.from_exception(error.__cause__)
    theirs = [frame for frame in inner.stack if OURS not in Path(frame.filename).parents]
    inner.stack[:] = theirs or inner.stack
    return "".join(inner.format(chain=False)) + str(error)


class Failures:
    """Decides what follows the failures of one run; a cause is told in full the first time only."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._told: set[str] = set()

    def plan_restart(self, replica: Replica, exitcode: int | None, stepped: bool) -> None:
        """Say when a dead replica is started again (``restart_at``), or that it never is (``given_up``). Where the run
        cannot go on without it, UsageError if a name or value of the user's is at fault, else RoleFailed. ``stepped``:
        it had completed a step in this life."""
        patience, now = self._patience, time.monotonic()
        cause = replica.cause or processes.describe_exit(exitcode)
        allowed = replica.may_restart(now, patience.restarts, patience.window)
        key = _key(replica, cause)
        replica.in_a_row = replica.in_a_row + 1 if (key, len(replica.failures) > 1) == (replica.last, True) else 1
        replica.last = key
        allowed = allowed and not (replica.repeats and replica.in_a_row > patience.repeats)
        if not stepped:
            replica.still_born += 1
            first = len(replica.failures) == 1
            allowed = allowed and replica.still_born < patience.still_born and not (first and replica.repeats)
        else:
            replica.still_born = 0
        known = self.is_known(replica, cause)
        if not allowed and replica.role.on_failure == "ignore":
            log.warning("%s failed too often, the run goes on without it: %s", replica.label, cause.rstrip())
            replica.given_up = True
            return
        if not allowed and replica.users:
            raise UsageError(cause)
        if not allowed:
            if known:
                cause = cause.rstrip().rpartition("\n")[2] + "\n(its traceback is printed above)"
            if replica.role.on_failure in ("restart", "restore") and len(replica.failures) > 1:
                cause += f"\n(gave up after {counted(len(replica.failures), 'failure')})"
            message = f"gave up after {counted(len(replica.failures), 'failure')}" if known else cause.rstrip()
            log.error("%s (generation %d) failed: %s", replica.label, replica.generation, message)
            raise RoleFailed(replica.role.name, replica.index, replica.generation, exitcode, cause)
        delay = min(patience.backoff * 2 ** (len(replica.failures) - 1), patience.longest_backoff)
        replica.restart_at = now + delay
        text = "the same failure again" if known else cause.rstrip()
        log.warning("%s failed, restarting in %.1f s: %s", replica.label, delay, text)

    def is_known(self, replica: Replica, cause: str) -> bool:
        """Return whether this cause was told before, of whatever replica."""
        key = _key(replica, cause)
        known = key in self._told
        self._told.add(key)
        return known


def _key(replica: Replica, cause: str) -> str:
    """Return what tells causes apart: numbers (indices, seeds) do not count."""
    return replica.role.name + re.sub(r"\b(0x)?[0-9a-f]*[0-9][0-9a-f.]*\b", "#", cause)
