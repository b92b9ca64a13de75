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


class Incoming:
    """The routes that end on one node. Each ring has one sender at a time, which waits for each answer."""

    def __init__(self, arena: Arena, plan: Plan) -> None:
        self._arena, self._plan = arena, plan
        self._producers: dict[tuple[str, int], tuple[int, Producer]] = {}  # with the generation of the writer
        self._next: dict[tuple[str, int], int] = {}  # the least sequence number of what comes next of that generation
        self._busy: dict[tuple[str, int], threading.Lock] = {}  # while items are put into a ring

    def deliver(self, channel: str, writer: int, items: list[np.ndarray]) -> None:
        """Put packed items into a writer's ring; returns when there was room for all, or the run ends. Items that have
        come before are left out, and those of a life that another has followed: their node was given up, and came
        back."""
        layout = self._plan.rings[channel]
        with self._busy.setdefault((channel, writer), threading.Lock()):  # what is sent again waits for the first time
            for flat in items:
                _, generation, sequence = Parcels.header(flat)
                producer = self._producer(channel, writer, generation, sequence)
                if producer is None:
                    continue
                try:
                    Parcels(layout).unpack(flat, producer)
                except api.Stopped:
                    return

    def _producer(self, channel: str, writer: int, generation: int, sequence: int) -> Producer | None:
        """Who puts an item into the ring; None: nobody."""
        key = channel, writer
        known, producer = self._producers.get(key, (-1, None))
        if generation < known or (generation == known and sequence < self._next[key]):
            return None
        if generation > known or producer is None:
            session = Session(self._arena, Recorder())
            producer = Producer(session, self._plan.rings[channel], writer, generation)
            self._producers[key] = generation, producer
        self._next[key] = sequence + 1
        return producer

    def publish(self, channel: str, version: int, flat: np.ndarray) -> None:
        """Make a version of parameters the latest here."""
        store.place(self._arena, self._plan.stores[channel], version, flat)

    def post(self, channel: str, rows: list[tuple[int, int, api.Arrays]]) -> None:
        """Rows of a board: (writer, number, row)."""
        layout = self._plan.groups[channel]
        assert isinstance(layout, BoardLayout)
        for writer, number, row in rows:
            board.place(self._arena, layout, writer, number, row)
