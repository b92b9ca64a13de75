"""A replica and copies of it that work at its word (an ``algos.shares.Team``).

The copies are forked and see what the replica was at that moment; what changes afterwards they learn from tensors that
all of them share. Processes and not threads, as a network's forward pass is many short calls from Python, of which only
one thread at a time can make one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch

from shoal import api
from shoal.runtime import futex
from shoal.runtime.layout import LINE
from shoal.runtime.processes import describe_exit

_LOW = 0xFFFFFFFF


class Team:
    """``size`` members: this process is number 0.

    A member that dies ends the team: ``run`` raises RuntimeError. The copies end within ``futex.RECHECK`` seconds of
    the death of this process, however it comes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._words = self._map((size, LINE), np.int64)  # column 0: rounds begun (line 0) or done (the others)
        self._address = self._words.ctypes.data
        self._copies: list[int] = []
        self._work: Callable[[int], None] | None = None

    def zeros(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor that all members see, if made before ``start``."""
        count = int(np.prod(shape, dtype=np.int64))
        flat = self._map((max(1, count * dtype.itemsize),), np.uint8)
        return torch.from_numpy(flat)[: count * dtype.itemsize].view(dtype).view(tuple(shape))

    def start(self, work: Callable[[int], None]) -> None:
        """Fork the other members; each does ``work(number)`` in every ``run``. A second call replaces them."""
        self.close()
        self._words[:] = 0
        self._work, parent = work, os.getpid()
        for number in range(1, self.size):
            with warnings.catch_warnings():  # of threads: the copy takes no lock of theirs, and leaves by _exit
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                self._follow(number, parent)
            self._copies.append(pid)

    def run(self) -> None:
        """Returns when every member has done its work once."""
        assert self._work is not None, "start first"
        words = self._words
        words[0, 0] += 1
        futex.fence()
        futex.wake(self._address)
        self._work(0)
        for number in range(1, self.size):
            while (done := words[number, 0]) < words[0, 0]:
                futex.wait(self._address + number * LINE * 8, int(done) & _LOW)
                self._check(number)
        futex.fence()

    def close(self) -> None:
        for pid in self._copies:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        self._copies = []

    def _check(self, number: int) -> None:
        pid, status = os.waitpid(self._copies[number - 1], os.WNOHANG)
        if pid:
            del self._copies[number - 1]
            self.close()
            how = describe_exit(os.waitstatus_to_exitcode(status))
            raise api.ShoalError(f"process {pid}, which shared the work of this one, {how}")

    def _follow(self, number: int, parent: int) -> None:
        """The life of a copy."""
        words, line = self._words, self._address
        assert self._work is not None
        try:
            while True:
                done = words[number, 0]
                while words[0, 0] == done:
                    futex.wait(line, int(done) & _LOW)
                    if os.getppid() != parent:
                        os._exit(0)
                futex.fence()
                self._work(number)
                futex.fence()
                words[number, 0] = done + 1
                futex.wake(line + number * LINE * 8)
        except BaseException:  # noqa: BLE001 - the process has nobody else to tell
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    @staticmethod
    def _map(shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Anonymous shared memory: the kernel frees it with its last process."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(mmap.mmap(-1, count), dtype).reshape(shape)
