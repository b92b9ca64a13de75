"""A replica and copies of it that work at its word (a ``learning.data_parallel.Team``).

The copies are forked and see what the replica was at that moment; what changes afterwards they learn from tensors that
all of them share. Processes and not threads, as a network's forward pass is many short calls from Python, of which only
one thread at a time can make one.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import numpy as np
import torch

from shoal import api
from shoal.local import signals
from shoal.local.processes import describe_exit
from shoal.shm import futex
from shoal.shm.layout import LINE

_LOW = 0xFFFFFFFF
BEGUN, MET = 0, 1  # columns of a member's line: runs begun (of member 0), meetings come to


class Team:
    """``size`` members: this process is number 0. Copies call ``forget`` to give back memory that they do not need.

    A member that dies ends the team: ``run`` raises ShoalError. The copies end within ``futex.RECHECK`` seconds of
    the death of this process, however it comes.
    """

    def __init__(self, size: int, forget: Callable[[], None] = lambda: None) -> None:
        self.size, self._forget = size, forget
        self._words = self._map((size, LINE), np.int64)  # a line for each member
        self._flat = self._words.reshape(-1).data  # the same, for a quicker look
        self._address = self._words.ctypes.data
        self._copies: list[int] = []
        self._leader = os.getpid()
        self._work: Callable[[int], None] | None = None

    def zeros(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor that all members see, if made before ``start``."""
        count = math.prod(shape)
        flat = self._map((max(1, count * dtype.itemsize),), np.uint8)
        return torch.from_numpy(flat)[: count * dtype.itemsize].view(dtype).view(tuple(shape))

    def start(self, work: Callable[[int], None]) -> None:
        """Fork the other members; each does ``work(number)`` in every ``run``. A second call replaces them."""
        self.close()
        self._words[:] = 0
        self._work, self._leader = work, os.getpid()
        for number in range(1, self.size):
            pid = signals.fork()
            if not pid:
                self._follow(number)
            self._copies.append(pid)

    def run(self) -> None:
        """Returns when every member has done its work once."""
        assert self._work is not None, "start first"
        self._raise(0, BEGUN)
        self._work(0)
        self.meet(0)

    def meet(self, number: int) -> None:
        """Called by member ``number`` in its work: returns when every member has called it as often."""
        mine = self._raise(number, MET)
        for other in range(self.size):
            self._await(other, MET, mine, number)

    def close(self) -> None:
        for pid in self._copies:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        self._copies = []

    def _follow(self, number: int) -> None:
        """The life of a copy."""
        assert self._work is not None
        self._forget()
        torch.set_num_threads(1)  # those of OpenMP are not copied, and an operation would wait for them for ever
        try:
            for round in itertools.count(1):
                self._await(0, BEGUN, round, number)
                self._work(number)
                self.meet(number)
        except BaseException:  # noqa: BLE001 - the process has nobody else to tell
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _raise(self, line: int, column: int) -> int:
        """Count one up, after all that this process has written before; returns the count."""
        futex.fence()
        at = line * LINE + column
        self._flat[at] += 1
        futex.fence()
        futex.wake(self._address + at * 8)
        return self._flat[at]

    def _await(self, line: int, column: int, count: int, number: int) -> None:
        """Member ``number`` sleeps until another's count is ``count``."""
        at = line * LINE + column
        while (seen := self._flat[at]) < count:
            if not futex.soon(self._flat, at, seen):
                futex.wait(self._address + at * 8, seen & _LOW)
                self._check(number)
        futex.fence()

    def _check(self, number: int) -> None:
        """A copy ends with its parent; the parent raises if a copy has ended."""
        if number:
            if os.getppid() != self._leader:
                os._exit(0)
            return
        for pid in self._copies:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._copies.remove(pid)
                self.close()
                how = describe_exit(os.waitstatus_to_exitcode(status))
                raise api.ShoalError(f"process {pid}, which shared the work of this one, {how}")

    @staticmethod
    def _map(shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Anonymous shared memory: the kernel frees it with its last process."""
        count = math.prod(shape) * np.dtype(dtype).itemsize
        return np.frombuffer(mmap.mmap(-1, count), dtype).reshape(shape)
