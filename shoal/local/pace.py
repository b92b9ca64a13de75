"""When a replica takes its next step: roles that are not always due, and roles in the background."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from shoal.api import Role
from shoal.machine import cores
from shoal.shm.session import Session

POLL_SECONDS = 0.1  # seconds between two looks at a role that is not due
BACKGROUND_CPU_SHARE = 0.01  # of the machine's processor time, for one replica in the background
SAVED = 0.05  # seconds of processor time that it may save up, or be in debt before it rests
NICE = 10


def lower_priority() -> None:
    os.nice(NICE)


class Pace:
    """``ready`` says whether ``role`` may step; if not, it has slept for a moment.

    A role in the background earns ``BACKGROUND_CPU_SHARE`` of all processors' time and spends its own (all threads);
    in debt by ``SAVED`` it rests until it has paid. So whatever it does costs the others at most that share on average.
    """

    def __init__(self, session: Session, role: Role, background: bool) -> None:
        self._session = session
        self._due: Callable[[], bool] | None = getattr(role, "due", None)
        self._always = self._due is None and not background
        self._rate = BACKGROUND_CPU_SHARE * cores() if background else 0.0
        self._saved, self._resting = SAVED, False
        self._spent, self._now = time.process_time(), time.monotonic()

    def ready(self) -> bool:
        if self._always:
            return True
        if self._due is not None and not self._due():
            self._session.rest(POLL_SECONDS)
            return False
        if self._rate and self._in_debt():
            self._session.rest(min(POLL_SECONDS, max(0.001, -self._saved / self._rate)))
            return False
        return True

    def _in_debt(self) -> bool:
        spent, now = time.process_time(), time.monotonic()
        self._saved += (now - self._now) * self._rate - (spent - self._spent)
        self._saved = min(self._saved, SAVED)
        self._spent, self._now = spent, now
        self._resting = self._saved < (0.0 if self._resting else -SAVED)
        return self._resting
