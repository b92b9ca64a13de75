"""The driver's side of one node: the handle of its agent, and a thread that keeps asking it for news."""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import ray

from shoal.local.replica import Replica
from shoal.local.telemetry import Message
from shoal.program import RoleSpec
from shoal.ray_runtime.insistent import RETRY_SECONDS, tell
from shoal.ray_runtime.news import News

NODE_TIMEOUT_SECONDS = 30.0  # seconds without an answer after which a node counts as lost


class Station:
    """A node with an agent. ``ready``: a reference of Ray's to the ``facts`` that the agent tells when it is there."""

    def __init__(self, node: str, name: str, agent: Any, ready: Any) -> None:
        self.node, self.name, self.agent, self.ready = node, name, agent, ready
        self.gone, self._closing = False, False
        self.latest: News | None = None
        self.sent: dict[str, tuple[int, int]] | None = None  # what ``traffic`` is, once it is known to the end
        self._thread: threading.Thread | None = None

    def traffic(self) -> dict[str, tuple[int, int]]:
        """channel -> messages and bytes that the node has sent to others, as far as is known."""
        if self.sent is not None:
            return self.sent
        return self.latest.traffic if self.latest is not None else {}

    def listen(
        self,
        control: Callable[[], np.ndarray],
        heard: Callable[[Station, News], None],
        lost: Callable[[Station, str], None],
    ) -> None:
        """Ask for news again and again, until ``close``. ``heard`` is called with all of it, in a thread; ``lost``
        once, with the reason, when there will be no more."""

        def ask() -> None:
            last, number = time.monotonic(), 0  # of the last event heard of
            while not self._closing:
                try:
                    news: News = ray.get(self.agent.exchange.remote(control(), number), timeout=NODE_TIMEOUT_SECONDS)
                except ray.exceptions.GetTimeoutError:
                    why = f"it has not answered for {NODE_TIMEOUT_SECONDS:.0f} s"
                except ray.exceptions.ActorUnavailableError:  # a connection that broke: it may come back
                    if time.monotonic() - last < NODE_TIMEOUT_SECONDS:
                        time.sleep(RETRY_SECONDS)
                        continue
                    why = f"it has been out of reach for {NODE_TIMEOUT_SECONDS:.0f} s"
                except ray.exceptions.RayTaskError as error:
                    why = f"its agent failed: {error.cause}"
                except Exception as error:  # noqa: BLE001 - whatever Ray raises where a node or its head is gone
                    why = _reason(error)
                else:
                    self.latest, last, number = news, time.monotonic(), news.number
                    heard(self, news)
                    continue
                if not self._closing:
                    self.gone = True
                    lost(self, why)
                return

        self._thread = threading.Thread(target=ask, name=f"shoal-{self.name}", daemon=True)
        self._thread.start()

    def tell(self, method: str, *args: Any) -> None:
        """Call a method of the agent, which may be told twice; does not wait for it."""
        call = partial(getattr(self.agent, method).remote, *args)
        tell(call, ray.exceptions.ActorUnavailableError, lambda: self.gone or self._closing)

    def close(self) -> None:
        """Stop listening, end the node's processes and its agent."""
        self._closing = True
        if not self.gone:
            with contextlib.suppress(Exception):  # whether a node that is being left answers does not matter
                ray.get(self.agent.close.remote(), timeout=5.0)
        with contextlib.suppress(Exception):
            ray.kill(self.agent)
        if self._thread is not None:
            self._thread.join(5.0)


def _reason(error: Exception) -> str:
    """One line of what Ray says of an actor that is gone."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    wanted = [line for line in lines if "node" in line.lower() and any(w in line for w in ("died", "dead", "lost"))]
    return (wanted or lines or [type(error).__name__])[0].partition(". ")[0][:200]


class RemoteProcess:
    """A replica's process on some node, as far as a supervisor asks."""

    def __init__(self, station: Station, role: str, index: int, generation: int) -> None:
        self._station, self._life = station, (role, index, generation)
        self.pid: int | None = None
        self.exitcode: int | None = None
        self.sentinel = -1
        self.dead = threading.Event()

    @property
    def station(self) -> Station:
        return self._station

    def is_alive(self) -> bool:
        return not self.dead.is_set()

    def kill(self) -> None:
        if not self._station.gone:
            self._station.tell("kill", *self._life)

    def join(self) -> None:
        self.dead.wait(5.0)

    def close(self) -> None:
        return


def _nowhere(replica: Replica, pipe: Connection) -> RemoteProcess:
    raise NotImplementedError("a remote replica is started by its agent")


class RemoteReplica(Replica):
    """A replica on whatever node it has been placed. ``launch`` starts a life there, or returns None where it has no
    place at the moment; it is then asked again ``RETRY`` seconds later."""

    RETRY = 2.0

    def __init__(
        self,
        role: RoleSpec,
        index: int,
        launch: Callable[[RemoteReplica], float | RemoteProcess],
        news: selectors.BaseSelector,
    ) -> None:
        super().__init__(role, index, _nowhere, news)
        self._begin = launch
        self._mail: deque[Message] = deque()

    def start(self) -> None:
        self.restart_at, self.cause, self.repeats, self.users = None, "", False, False
        begun = self._begin(self)
        if isinstance(begun, RemoteProcess):
            self.process = begun
            if begun.station.gone:  # since it was chosen: whoever told of that saw no process yet
                self.died(None, f"its node was lost ({begun.station.name})")
        else:
            self.restart_at = begun
            self.generation -= 1  # which the next attempt raises again

    def hear(self, message: Message) -> None:
        """A message of its present life."""
        self._mail.append(message)

    def died(self, exitcode: int | None, cause: str) -> None:
        """Its present life has ended; nothing more will be heard of it."""
        process = self.process
        if isinstance(process, RemoteProcess):
            self.cause = self.cause or cause
            process.exitcode = exitcode
            process.dead.set()

    def receive(self) -> list[Message]:
        messages = list(self._mail)
        for _ in messages:
            self._mail.popleft()
        return messages

    def reap(self) -> int | None:
        process = self.process
        assert process is not None, "there is a process to collect"
        process.join()
        self.process = None
        return process.exitcode

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
