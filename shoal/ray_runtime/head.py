"""Whether the head of a cluster, which knows of all nodes, still answers."""

from __future__ import annotations

import threading
import time

import ray

from shoal.api import ShoalError

POLL_SECONDS = 2.0  # seconds between two questions
HEAD_TIMEOUT_SECONDS = 20.0  # seconds without an answer after which a run ends; Ray itself ends the process after 60


class Head:
    """Asks in a thread of its own, as a question may never come back. Without the head, nodes go on talking to each
    other, so there is time for a last checkpoint."""

    def __init__(self) -> None:
        self._answered, self._closed = time.monotonic(), threading.Event()
        threading.Thread(target=self._ask, name="shoal-head", daemon=True).start()

    def check(self) -> None:
        """ShoalError where it has been silent for too long."""
        silent = time.monotonic() - self._answered
        if silent > HEAD_TIMEOUT_SECONDS:
            raise ShoalError(
                f"the head of the Ray cluster has not answered for {silent:.0f} s "
                "(shoal resume goes on from the newest checkpoint, on that cluster or another)"
            )

    def close(self) -> None:
        self._closed.set()

    def _ask(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                ray.nodes()
            except Exception:  # noqa: BLE001 - whatever Ray raises, it is no answer
                continue
            self._answered = time.monotonic()
