"""Which of torchrun's processes this one is, if it is one. Imports no torch: the command asks it first."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """rank: its number of ``world``, over all machines; local_rank: its number of the ``local_world`` on this machine;
    address, port: of the store through which they find each other; hosted: the store is torchrun's own."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int
    attempt: str = "0"  # how often torchrun has started all of them again
    hosted: bool = True

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def host(self) -> str:
        return socket.gethostname()


def place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that torchrun gave this process; None: it was started by something else."""
    if "TORCHELASTIC_RUN_ID" not in environ or "RANK" not in environ:
        return None
    return Place(
        rank=int(environ["RANK"]),
        world=int(environ["WORLD_SIZE"]),
        local_rank=int(environ["LOCAL_RANK"]),
        local_world=int(environ["LOCAL_WORLD_SIZE"]),
        address=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True",
    )


def wait_for_the_first(seconds: float = 10.0) -> None:
    """Before a process says what is wrong with its command: the first on its machine was given the same words and says
    it for all, upon which torchrun ends this one."""
    here = place()
    if here is not None and here.local_rank:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(2))
        time.sleep(seconds)
