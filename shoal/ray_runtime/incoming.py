"""What arrives on a node from others: written into its arena as if it had been made here."""

from __future__ import annotations

import threading

import numpy as np

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.ray_runtime.parcels import Parcels
from shoal.shm import board, store
from shoal.shm.arena import Arena
from shoal.shm.group_layout import BoardLayout
from shoal.shm.layout import Plan
from shoal.shm.ring import Producer
from shoal.shm.session import Session


class _Ring:
    """What is known of a ring of a writer elsewhere. newest: generation and sequence number of the last item."""

    def __init__(self) -> None:
        self.busy = threading.Lock()  # what is sent again waits for the first time
        self.producer: Producer | None = None
        self.newest = [-1, -1]


class Incoming:
    """The routes that end on one node. Each ring has one sender at a time, which waits for each answer."""

    def __init__(self, arena: Arena, plan: Plan) -> None:
        self._arena, self._plan = arena, plan
        self._rings: dict[tuple[str, int], _Ring] = {}  # by channel and writer

    def deliver(self, channel: str, writer: int, items: list[np.ndarray]) -> None:
        """Put packed items into a writer's ring; returns when there was room for all, or the run ends. Items that have
        come before are left out, and those of a life that another has followed: their node was given up, and came
        back."""
        layout, ring = self._plan.rings[channel], self._rings.setdefault((channel, writer), _Ring())
        with ring.busy:
            for flat in items:
                _, *number = Parcels.header(flat)
                if number <= ring.newest:
                    continue
                if ring.producer is None or number[0] > ring.newest[0]:
                    session = Session(self._arena, Recorder())
                    ring.producer = Producer(session, layout, writer, number[0])
                ring.newest = number
                try:
                    Parcels(layout).unpack(flat, ring.producer)
                except api.Stopped:
                    return

    def publish(self, channel: str, version: int, flat: np.ndarray) -> None:
        """Make a version of parameters the latest here."""
        store.place(self._arena, self._plan.stores[channel], version, flat)

    def post(self, channel: str, rows: list[tuple[int, int, api.Arrays]]) -> None:
        """Rows of a board: (writer, number, row)."""
        layout = self._plan.groups[channel]
        assert isinstance(layout, BoardLayout)
        for writer, number, row in rows:
            board.place(self._arena, layout, writer, number, row)
