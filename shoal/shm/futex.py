"""Sleeping until a 32-bit word of shared memory changes.

A wake-up is only a hint: it may be lost or doubled. Whoever waits looks at the counters again, at
least every ``RECHECK`` seconds. Nothing here spins, but for a few looks before a sleep, and nothing has a state that a
killed process could leave locked.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
import time
from collections.abc import Callable

RECHECK = 0.05  # seconds; upper bound of one sleep
SPIN_READS = 100  # before a sleep: some 5 us, about what it takes to fall asleep and be woken

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1  # the shared (not process-private) operations
_EVERYONE = 2**31 - 1
WEAK = platform.machine() not in ("x86_64", "AMD64")  # CPUs that may show two stores in the other order

Wait = Callable[[int, int], None]
Wake = Callable[[int], None]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _linux(number: int) -> tuple[Wait, Wake]:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    timeout = _Timespec(0, int(RECHECK * 1e9))
    pointer, nr = ctypes.byref(timeout), ctypes.c_long(number)
    wait_op, wake_op = ctypes.c_int(_FUTEX_WAIT), ctypes.c_int(_FUTEX_WAKE)

    def wait(address: int, seen: int) -> None:
        syscall(nr, ctypes.c_void_p(address), wait_op, ctypes.c_uint32(seen), pointer, None, 0)

    def wake(address: int) -> None:
        syscall(nr, ctypes.c_void_p(address), wake_op, _EVERYONE, None, None, 0)

    return wait, wake


def _portable() -> tuple[Wait, Wake]:
    """Elsewhere: look at the word every millisecond for one ``RECHECK``."""

    def wait(address: int, seen: int) -> None:
        word = ctypes.c_uint32.from_address(address)
        end = time.monotonic() + RECHECK
        while word.value == seen & 0xFFFFFFFF and time.monotonic() < end:
            time.sleep(0.001)

    def wake(address: int) -> None:
        return None

    return wait, wake


def _choose() -> tuple[Wait, Wake]:
    number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 2**32 else None
    return _linux(number) if number is not None else _portable()


wait, wake = _choose()
"""``wait(address, seen)`` sleeps while the word at ``address`` is ``seen``; ``wake(address)`` wakes every sleeper."""


def soon(words: memoryview, at: int, seen: int) -> bool:
    """Return whether the 64-bit word ``at`` is no longer ``seen`` within a few looks: two processes that pass small
    items to each other then need not wake each other for each."""
    return any(words[at] != seen for _ in range(SPIN_READS))


_lock = threading.Lock()
_acquire, _release = _lock.acquire, _lock.release


def fence() -> None:
    """A full memory barrier: Python has none, but taking an uncontended lock is one.

    Weakly ordered CPUs need two rounds: a store may sink into one critical section, not through a second.
    """
    _acquire()
    _release()
    if WEAK:
        _acquire()
        _release()
