"""Reduce channels whose members are on several nodes: an all-reduce of torch.distributed among the members themselves.

Who looks after the members is the driver, as ever: a member whose connection breaks waits to be told that the run ends.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from shoal.api import Arrays, ShoalError, Tensors
from shoal.runtime.all_reduce import ReduceEnd, completed
from shoal.shm.fields import LINE
from shoal.shm.group_layout import ReduceLayout
from shoal.shm.layout import CHECKPOINT
from shoal.shm.session import Session
from shoal.types import State

POLL_INTERVAL = timedelta(seconds=0.2)  # between two looks whether the run ends
MEET = timedelta(seconds=600)  # in which all members come up
NO_TIMEOUT = timedelta(days=30)  # members are found to hang by their signs of life, not by a time limit of a reduction
LOSS_REPORT_SECONDS = 90.0  # seconds in which the driver hears of a member that is lost; of a silent node after 30
BACKLOG = 4096  # connections that wait to be taken


class Store:
    """The store in which the members of a run's reduce channels find each other; it ends with the process that holds
    it. It listens on one address of this machine alone, but asks nobody for a password."""

    def __init__(self, address: str) -> None:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listening:
            listening.bind(place)
            listening.listen(BACKLOG)
            self.where: tuple[str, int] = address, listening.getsockname()[1]
            self._store = TCPStore(
                *self.where, None, True, MEET, wait_for_workers=False, master_listen_fd=listening.detach()
            )


@dataclass(frozen=True)
class AllReduce:
    """Makes a member's end of a reduce channel (a ``ports.Join``); returns when all members have come.

    store: where they meet; address: of this member's node; device: of its role, ``cuda`` where each member has a GPU of
    its own (then NCCL reduces, else Gloo); crosses: whether the next member is on another node.
    """

    store: tuple[str, int]
    address: str
    device: str = "cpu"
    crosses: bool = True

    def __call__(self, session: Session, layout: ReduceLayout, member: int) -> Member:
        device = torch.device(self.device if self.device == "cuda" else "cpu")
        ranks = _Ranks(session, layout, member, lambda: self._join(layout, member, device), device.type == "cuda")
        return Member(session, layout, ranks, device, self.crosses)

    def _join(self, layout: ReduceLayout, member: int, device: torch.device) -> Any:
        """A group of torch.distributed's; waits for all members."""
        address, port = self.store
        store = TCPStore(address, port, None, False, MEET, wait_for_workers=False)
        mine = PrefixStore(layout.channel.name, store)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # the one that it sees
            choices = dist.ProcessGroupNCCL.Options()
            choices._timeout = NO_TIMEOUT
            return dist.ProcessGroupNCCL(mine, member, layout.members, choices)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.address)]  # not what the host's name says
        options._timeout = MEET
        group = dist.ProcessGroupGloo(mine, member, layout.members, options)
        group._set_default_timeout(NO_TIMEOUT)
        return group


class Member(ReduceEnd):
    """A member's end (an ``api.Reducer``, and ``reduction.Saved``): that of a rank of torchrun, in a replica's session.
    In its line of the arena it counts what it sends to other nodes."""

    def __init__(
        self, session: Session, layout: ReduceLayout, ranks: _Ranks, device: torch.device, crosses: bool
    ) -> None:
        self._knowing = _Knowing(session, ranks.rank, ranks.world)
        super().__init__(ranks, layout.channel, self._knowing, session.metrics, device)
        self._session, self._words = session, session.arena.words
        self._line = layout.lines // 8 + ranks.rank * LINE
        self._bytes = traffic(self.nbytes, ranks.world) if crosses else 0

    @property
    def agreed(self) -> int:
        """The number of the checkpoint that every member knew of when it put the item of the round got last."""
        return self._knowing.agreed

    @contextlib.contextmanager
    def slot(self) -> Iterator[Arrays]:
        with super().slot() as arrays:
            yield arrays
            self._session.fresh = False

    def get(self) -> Tensors:
        found = super().get()
        self._session.fresh = False
        return found

    def load_state_dict(self, mine: State, of_all: Callable[[], list[State]]) -> None:
        super().load_state_dict(mine, of_all)
        self.put_again()

    def _send(self) -> None:
        super()._send()
        if self._bytes:
            self._words[self._line] += 1
            self._words[self._line + 1] += self._bytes


def traffic(nbytes: int, members: int) -> int:
    """Bytes that each member sends to the next one in an all-reduce of so many: they go round in a ring, first to be
    added up and then to be told (Patarasuk and Yuan 2009)."""
    return 2 * (members - 1) * nbytes // members


class _Knowing:
    """With every item: the number of the checkpoint that its member knows of, in a place of its own."""

    def __init__(self, session: Session, member: int, members: int) -> None:
        self._words, self._member, self.size, self.agreed = session.arena.words, member, members, 0
        self._mine = np.zeros(members)

    def said(self) -> np.ndarray:
        self._mine[self._member] = self._words[CHECKPOINT // 8]
        return self._mine

    def hear(self, sums: np.ndarray) -> None:
        self.agreed = int(sums.min())


class _Ranks:
    """The members as those who reduce with each other (``runtime.all_reduce.Ranks``)."""

    def __init__(
        self, session: Session, layout: ReduceLayout, member: int, join: Callable[[], Any], on_gpu: bool
    ) -> None:
        self.rank, self.world = member, layout.members
        self._session, self._name, self._on_gpu = session, layout.channel.name, on_gpu
        self._group = self._met(join)

    def reduce(self, tensor: torch.Tensor) -> dist.Work | None:
        work: dist.Work = self._group.allreduce([tensor])
        return work

    def wait(self, work: dist.Work) -> None:
        try:
            while not completed(work, POLL_INTERVAL, self._on_gpu):
                self._look()
        except ConnectionError as error:
            self._broken(error)

    def _met(self, join: Callable[[], Any]) -> Any:
        """Return what ``join`` returns, which waits for all others; in a thread, as one of them may never come."""
        met: Future[Any] = Future()

        def meet() -> None:
            try:
                met.set_result(join())
            except Exception as error:  # noqa: BLE001 - told below
                met.set_exception(error)

        threading.Thread(target=meet, name=f"shoal-meet-{self._name}", daemon=True).start()
        while not met.done():
            with self._session.metrics.phase(f"wait:{self._name}"), contextlib.suppress(TimeoutError):
                self._look()
                met.exception(POLL_INTERVAL.total_seconds())
        if isinstance(error := met.exception(), RuntimeError):  # also what the library raises of connections
            self._broken(error)
        return met.result()

    def _look(self) -> None:
        self._session.metrics.beat()
        self._session.look(f"wait:{self._name}")

    def _broken(self, error: BaseException) -> NoReturn:
        """Whose fault it is the driver knows, and ends the run; unless all are there, and it hears of nothing."""
        end = time.monotonic() + LOSS_REPORT_SECONDS
        while time.monotonic() < end:
            self._look()
            time.sleep(POLL_INTERVAL.total_seconds())
        raise ShoalError(
            f"channel '{self._name}': the connection to its other members broke, though nobody says that one is lost: "
            f"{error}"
        )
