"""The processes of torchrun as a group: what they tell each other beside what they reduce, and how one that is lost is
named by the others.

Small things go through the store that torchrun started them with: a value of the first for all, a value of each for
the first or for all, signs of life, the cause of a failure. Nobody waits without looking at those once a second. The
store asks nobody for a password, so what comes out of it is data (``records.checkpoint_state``), never code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from shoal.api import RoleFailed, ShoalError, Stopped, Tensors
from shoal.records.checkpoint_state import from_bytes, to_bytes
from shoal.runtime.all_reduce import completed
from shoal.torchrun.place import Place

POLL_INTERVAL = timedelta(seconds=1)  # between two looks at the others, and between two signs of life
ANSWER = 3.0  # seconds in which those who are left answer when one of them was lost
MEET = timedelta(seconds=600)  # in which all processes come up
# processes are found to hang by their signs of life, not by a time limit of a reduction
NO_TIMEOUT = timedelta(days=30)


class Group:
    """The ranks of a run. hang_timeout: seconds without a sign of life after which a rank is given up; 0: never.

    Raises RoleFailed, which names rank and host, from whatever waits for a rank that has failed, died, or hangs.
    """

    def __init__(self, place: Place, hang_timeout: float) -> None:
        self.place, self.hang_timeout, self.role = place, hang_timeout, "rank"
        self.rank, self.world = place.rank, place.world
        master = place.first and not place.hosted
        base = TCPStore(place.address, place.port, place.world, master, MEET, wait_for_workers=False)
        self._store: Any = PrefixStore(f"shoal/{place.attempt}", base)  # of bytes, which its stubs call strings
        self._said, self._beats, self._beaten = 0, 0, 0.0
        self._reduces_on_gpu = False
        self._seen: dict[int, tuple[bytes, float]] = {}  # of each rank: its last sign of life, and when it was new
        for kind in ("cause", "alone"):
            self.set(f"{kind}/{place.rank}", b"")
        self.beat()
        hosts = self.exchange((place.host, os.getpid()))
        self.hosts: list[str] = [host for host, _ in hosts]
        self._pids: list[int] = [pid for _, pid in hosts]

    def join(self, device: torch.device) -> None:
        """Ready to reduce: by Gloo or, what is on the ranks' ``device`` where that is a GPU, by NCCL."""
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        self._reduces_on_gpu = device.type == "cuda"
        store = PrefixStore(f"reduce/{self._number()}", self._store)
        if self.place.world == self.place.local_world and (loopback := _loopback()):  # no other machine takes part
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        dist.init_process_group(
            backend, store=store, rank=self.place.rank, world_size=self.place.world, timeout=NO_TIMEOUT
        )  # fmt: skip

    def leave(self) -> None:
        """Nobody reduces any more. Where the first rank holds the store, it stays until all have what they want."""
        number, rank = self._number(), self.place.rank
        if dist.is_initialized():
            dist.destroy_process_group()
        with contextlib.suppress(RuntimeError):
            self._store.set(f"leave/{number}/{rank}", b"")
            if self.place.first and not self.place.hosted:
                self._store.wait([f"leave/{number}/{r}" for r in range(self.place.world)], timedelta(seconds=ANSWER))

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """What goes wrong inside breaks the group: reductions that nobody will complete hold the process no longer than
        its own code runs."""
        try:
            yield
        except BaseException:
            atexit.register(_leave_at_once)
            if self.place.first and not self.place.hosted:
                time.sleep(ANSWER)  # the others ask the store which this process holds
            raise

    # ------------------------------------------------------------------------------------- telling
    def share(self, value: Any = None) -> Any:
        """The value that the first rank gives; plain data of less than 8 MB."""
        key = f"share/{self._number()}"
        if self.place.first:
            self._store.set(key, to_bytes(value))
            return value
        return from_bytes(self._await([key])[0])

    def gather(self, value: Any) -> list[Any] | None:
        """Gather what all ranks give, in their order, at the first one; return None at the others, who do not wait."""
        mine, number = self.place.rank, self._number()
        self._store.set(f"gather/{number}/{mine}", to_bytes(value))
        if not self.place.first:
            return None
        keys = [f"gather/{number}/{rank}" for rank in range(self.place.world)]
        found = [from_bytes(each) for each in self._await(keys)]
        for key in keys:
            self._store.delete_key(key)
        return found

    def exchange(self, value: Any) -> list[Any]:
        """Gather what all ranks give, in their order, at each of them."""
        number = self._number()
        self._store.set(f"exchange/{number}/{self.place.rank}", to_bytes(value))
        return [from_bytes(each) for each in self._await([f"exchange/{number}/{r}" for r in range(self.place.world)])]

    def set(self, key: str, value: bytes) -> None:
        """Set a value of this rank's own that others look at."""
        self._asked(lambda: self._store.set(key, value))

    def get(self, keys: list[str]) -> list[bytes]:
        """Values that have been set."""
        found: list[bytes] = self._asked(lambda: self._store.multi_get(keys))
        return found

    def spread(self, tensors: Tensors) -> None:
        """Fill these tensors with those of the first rank."""
        for tensor in tensors.values():
            self._complete(dist.broadcast(tensor, 0, async_op=True), tensor.is_cuda)

    # -------------------------------------------------------------------------------------- reducing
    def reduce(self, tensor: torch.Tensor) -> dist.Work | None:
        """Begin to add up a tensor of each rank, in place."""
        work: dist.Work | None = dist.all_reduce(tensor, async_op=True)
        return work

    def wait(self, work: dist.Work) -> None:
        """Returns when a reduction is complete."""
        self._complete(work, self._reduces_on_gpu)

    def beat(self) -> None:
        """Give a sign of life, at most one a second."""
        if (now := time.monotonic()) - self._beaten >= POLL_INTERVAL.total_seconds():
            self._beaten, self._beats = now, self._beats + 1
            self.set(f"beat/{self.place.rank}", str(self._beats).encode())

    def look(self) -> None:
        """Raise RoleFailed where another rank failed, is gone, or gives no sign of life."""
        self.beat()
        ranks = range(self.place.world)
        self._raise_causes()
        now, beats = time.monotonic(), self.get([f"beat/{rank}" for rank in ranks])
        for rank in ranks:
            if rank == self.place.rank:
                continue
            if self._is_gone(rank):
                self._lost(None)
            if self._seen.get(rank, (b"", 0.0))[0] != beats[rank]:
                self._seen[rank] = beats[rank], now
            silent = now - self._seen[rank][1]
            if 0 < self.hang_timeout < silent:
                self._fail(rank, f"no sign of life for {silent:.0f} s (--hang-timeout)")

    def failed(self, cause: str) -> None:
        """Tell the others that this rank fails."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"cause/{self.place.rank}", cause.encode())

    # ------------------------------------------------------------------------------------ internals
    def _complete(self, work: Any, on_gpu: bool) -> None:
        try:
            while not completed(work, POLL_INTERVAL, on_gpu):
                self.look()
        except ConnectionError as error:
            self._lost(error)

    def _number(self) -> int:
        """All ranks say the same things in the same order."""
        self._said += 1
        return self._said

    def _await(self, keys: list[str]) -> list[bytes]:
        due, pause = time.monotonic() + POLL_INTERVAL.total_seconds(), 1e-4
        while not self._asked(lambda: self._store.check(keys)):  # the store's own wait complains of every time limit
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            if time.monotonic() > due and self._said > 1:  # before, not all are known
                due = time.monotonic() + POLL_INTERVAL.total_seconds()
                self.look()
        return self.get(keys)

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (dist.DistError, RuntimeError) as error:
            self._no_store(error)

    def _no_store(self, error: Exception) -> NoReturn:
        raise ShoalError(
            f"the store at {self.place.address}:{self.place.port}, through which torchrun's processes find each other, "
            f"is gone: the first machine, or torchrun on it, has ended ({error})"
        ) from None

    def _is_gone(self, rank: int) -> bool:
        """Return whether the process of a rank on this machine has ended."""
        if self.hosts[rank] != self.place.host:
            return False
        try:
            with open(f"/proc/{self._pids[rank]}/stat", encoding="utf-8") as file:
                return file.read().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return os.path.exists("/proc/self/stat")

    def _raise_causes(self) -> None:
        ranks = range(self.place.world)
        for rank, cause in zip(ranks, self.get([f"cause/{rank}" for rank in ranks]), strict=True):
            if cause and rank != self.place.rank:
                self._fail(rank, cause.decode())

    def _lost(self, error: Exception | None) -> NoReturn:
        """A connection broke, or a process is gone: find out whose, by who else answers."""
        mine = self.place.rank
        self.set(f"alone/{mine}", b"!")
        end = time.monotonic() + ANSWER
        while True:
            self._raise_causes()
            answers = self.get([f"alone/{rank}" for rank in range(self.place.world)])
            silent = [rank for rank, answer in enumerate(answers) if not answer]
            gone = [rank for rank in silent if self._is_gone(rank)]
            if gone or len(silent) == 1 or time.monotonic() > end:
                break
            time.sleep(0.05)
        found = gone or silent
        if not found:
            raise ShoalError(f"the connection between ranks broke, though all of them are there: {error}")
        others = f" (so did {', '.join(map(str, found[1:]))})" if found[1:] else ""
        self._fail(found[0], f"the process ended without a word{others}")

    def _fail(self, rank: int, cause: str) -> NoReturn:
        """The first rank that is left says which one failed; the others end quietly. All know of it from now on, as
        those who end for it look as if they failed too."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"cause/{rank}", cause.encode())
        if any(other != rank and not self._is_gone(other) for other in range(self.place.rank)):
            raise Stopped(f"{self.role}[{rank}] failed, as a rank before this one says")
        raise RoleFailed(self.role, rank, 0, None, f"on the host {self.hosts[rank]}: {cause}")


def _loopback() -> str | None:
    """Return the name of the interface that only this machine reaches; None where it is not called as on Linux and
    macOS."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), None)


def _leave_at_once() -> None:
    """The end of an interpreter waits for reductions on their way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
