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
        self._lock = threading.Lock()

    def deliver(self, channel: str, writer: int, items: list[np.ndarray]) -> None:
        """Put packed items into a writer's ring; returns when there was room for all, or the run ends. Items of a life
        that another has followed are dropped: their node was given up, and came back."""
        layout = self._plan.rings[channel]
        for flat in items:
            producer = self._producer(channel, writer, Parcels.header(flat)[1])
            if producer is None:
                continue
            try:
                Parcels(layout).unpack(flat, producer)
            except api.Stopped:
                return

    def _producer(self, channel: str, writer: int, generation: int) -> Producer | None:
        with self._lock:
            known, producer = self._producers.get((channel, writer), (-1, None))
            if generation < known:
                return None
            if generation > known or producer is None:
                session = Session(self._arena, Recorder())
                producer = Producer(session, self._plan.rings[channel], writer, generation)
                self._producers[channel, writer] = generation, producer
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
