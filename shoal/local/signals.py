"""Signals in the processes of a run: what ends the run is the supervisor's business, the others take no notice."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Iterator

OF_THE_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Signals of the run wait until the end of the block; a process that is started in it begins with them held."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_RUN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def shield() -> None:
    """Take no notice of them, held ones included. Not SIG_IGN: programs started from here would inherit that."""
    for number in OF_THE_RUN:
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_RUN)


def unshield() -> None:
    """The usual reaction, in processes that others fork from a replica (environments of their own)."""
    for number in OF_THE_RUN:
        signal.signal(number, signal.SIG_DFL)


def fork() -> int:
    """A copy of this process which is shielded from its first moment on; 0 in the copy."""
    with held(), warnings.catch_warnings():  # of threads: the copy takes no lock of theirs, and leaves by _exit
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if not pid:
            shield()
    return pid
