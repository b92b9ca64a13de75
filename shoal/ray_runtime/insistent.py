"""Calls of another node's agent that are made again where the connection breaks. Such a call may have arrived or not:
whoever is called does once what it is told twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

RETRY_SECONDS = 0.2  # seconds until a call is made again


def tell(
    call: Callable[[], Any],
    unreachable: type[Exception],
    ended: Callable[[], bool],
    answered: Callable[[BaseException | None], None] = lambda error: None,
) -> None:
    """Make a call, and again until it gets through or ``ended()``; returns at once. ``answered``: told, in a thread, of
    the error that it ended with, or None."""

    def arrived(future: Future[Any]) -> None:
        error = future.exception()
        if not isinstance(error, unreachable) or ended():
            answered(error)
            return
        later = threading.Timer(RETRY_SECONDS, again, (error,))
        later.daemon = True
        later.start()

    def again(error: BaseException) -> None:
        if ended():  # meanwhile: who would be called may be gone
            answered(error)
        else:
            tell(call, unreachable, ended, answered)

    try:
        future = call().future()
    except Exception as error:  # noqa: BLE001 - of Ray's client, once its own connection is lost
        future = Future()
        future.set_exception(error)
    future.add_done_callback(arrived)


def ask(call: Callable[[], Any], unreachable: type[Exception], ended: Callable[[], bool]) -> None:
    """The same, but returns once it got through; raises the error that it ended with."""
    while True:
        try:
            call().future().result()
            return
        except unreachable:
            if ended():
                raise
            time.sleep(RETRY_SECONDS)
