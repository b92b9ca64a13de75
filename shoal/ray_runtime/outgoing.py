"""What leaves a node: for each route a thread, which looks at the node's arena and sends what is new to the other.

Nothing here grows without bound: of each ring one parcel is under way, of parameters one version, of a board one look.
The rest waits in the arena, where full rings hold their writers back.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.ray_runtime.insistent import ask, tell
from shoal.ray_runtime.parcels import Parcels
from shoal.ray_runtime.routes import Route
from shoal.shm import board, futex
from shoal.shm.arena import Arena
from shoal.shm.group_layout import BoardLayout
from shoal.shm.layout import ALIGN, Plan
from shoal.shm.ring import Consumer
from shoal.shm.session import Session
from shoal.shm.store import StoreReader

BOARD_EVERY = 0.005  # seconds between two looks at a board, which has no bell
Peer = Any  # the handle of another node's ``agent.Agent``


class Outgoing:
    """The routes that begin on one node.

    failed: told of a thread that ends by an error. put: makes an object that several peers fetch. gone: what a call of
    a peer raises whose node is lost; unreachable: what it raises, among those, where the connection broke, so that the
    call may or may not have arrived. traffic: channel -> messages and bytes sent so far.
    """

    def __init__(
        self,
        arena: Arena,
        plan: Plan,
        failed: Callable[[str], None],
        put: Callable[[np.ndarray], Any],
        gone: type[Exception],
        unreachable: type[Exception],
    ) -> None:
        self._arena, self._plan, self._failed, self._put = arena, plan, failed, put
        self._gone, self._unreachable = gone, unreachable
        self._started: set[Route] = set()
        self._editions: dict[str, _Edition] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.traffic: dict[str, tuple[int, int]] = {}

    def start(self, route: Route, peer: Peer, here: Collection[int]) -> None:
        """Send along a route from now on; does nothing the second time. ``here``: the channel's writers that are on
        this node."""
        if route in self._started:
            return
        self._started.add(route)
        if route.kind == "params":
            self._editions.setdefault(route.channel, _Edition(self._put))
        work: Callable[[], None] = {
            "queue": partial(self._queue, route, peer),
            "params": partial(self._params, route, peer),
            "board": partial(self._board, route, peer, here),
        }[route.kind]
        name = f"shoal-{route.kind}-{route.channel}"
        thread = threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Returns when nothing is sent any more; the run must have been told to stop."""
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (api.Stopped, self._gone):  # the other node is gone: the driver knows what that means
            pass
        except Exception:  # noqa: BLE001 - told to the driver
            self._failed(traceback.format_exc())

    def _session(self) -> Session:
        return Session(self._arena, Recorder())  # a recorder books the time of one thread

    def _count(self, channel: str, nbytes: int) -> None:
        with self._lock:
            messages, before = self.traffic.get(channel, (0, 0))
            self.traffic[channel] = messages + 1, before + nbytes

    # ------------------------------------------------------------------------------ queues, replays
    def _queue(self, route: Route, peer: Peer) -> None:
        layout = self._plan.rings[route.channel]
        session = self._session()
        consumer, parcels = Consumer(session, layout, route.end), Parcels(layout)
        under_way: set[int] = set()
        bell = layout.bells + route.end * ALIGN

        def ready() -> bool:
            return any(ring not in under_way for ring in consumer.ready())

        def arrived(ring: int, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, self._gone):
                self._failed(str(error))
            under_way.discard(ring)
            words = self._arena.words
            words[bell // 8] = (words[bell // 8] + layout.writers) & 0xFFFFFFFF
            futex.wake(self._arena.base + bell)

        while True:
            consumer.wait(ready)
            for ring in [r for r in consumer.ready() if r not in under_way]:
                items: list[np.ndarray] = []
                while len(items) < layout.channel.capacity and ring in consumer.ready():
                    items.append(parcels.pack(consumer, ring))
                    consumer.release(ring)
                under_way.add(ring)
                self._count(route.channel, sum(item.nbytes for item in items))
                call = partial(peer.deliver.remote, route.channel, consumer.writers[ring], items)
                tell(call, self._unreachable, session.stopping, partial(arrived, ring))

    # ---------------------------------------------------------------------------------- parameters
    def _params(self, route: Route, peer: Peer) -> None:
        session = self._session()
        reader = StoreReader(session, self._plan.stores[route.channel], route.end, lockstep=1)
        edition = self._editions[route.channel]
        while True:
            found = reader.latest()
            assert found is not None, "a lockstep reader waits for what is newer"
            version, reference = edition.of(found[0], reader.flat)
            self._count(route.channel, reader.flat.nbytes)
            call = partial(peer.publish.remote, route.channel, version, reference)
            ask(call, self._unreachable, session.stopping)

    # -------------------------------------------------------------------------------------- boards
    def _board(self, route: Route, peer: Peer, here: Collection[int]) -> None:
        layout, session = self._plan.groups[route.channel], self._session()
        assert isinstance(layout, BoardLayout)
        sent = dict.fromkeys(here, 0)
        while not session.stopping():
            rows = board.read(self._arena, layout)
            new = {w: int(rows.puts[w]) for w in here if rows.puts[w] > sent[w]}
            if new:
                found = [(w, n, {name: a[w].copy() for name, a in rows.values.items()}) for w, n in new.items()]
                self._count(route.channel, sum(a.nbytes for _, _, row in found for a in row.values()))
                ask(partial(peer.post.remote, route.channel, found), self._unreachable, session.stopping)
                sent |= new
            time.sleep(BOARD_EVERY)


class _Edition:
    """The newest version of some parameters as one object, whichever thread put it there."""

    def __init__(self, put: Callable[[np.ndarray], Any]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._version, self._reference = 0, None  # type: int, Any

    def of(self, version: int, flat: np.ndarray) -> tuple[int, Any]:
        """(version, reference) of ``version`` or a newer one."""
        with self._lock:
            if version > self._version:
                self._version, self._reference = version, self._put(flat)
            return self._version, self._reference
