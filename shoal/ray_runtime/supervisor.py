"""The driver of a run on a cluster: the local runtime's supervisor, whose replicas are on other nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import psutil
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal import api
from shoal.held import rules
from shoal.local import checkpoint_commit as checkpointer
from shoal.local.failures import Failures
from shoal.local.replica import Replica
from shoal.local.supervisor import Supervisor
from shoal.program import Program, RoleSpec
from shoal.ray_runtime import news as of_nodes, routes
from shoal.ray_runtime.agent import Agent, Life, Orders
from shoal.ray_runtime.control import Control
from shoal.ray_runtime.head import Head
from shoal.ray_runtime.news import DIED, News
from shoal.ray_runtime.places import Places
from shoal.ray_runtime.station import RemoteProcess, RemoteReplica, Station
from shoal.ray_runtime.versions import compare
from shoal.runtime.launch import Launch
from shoal.shm import divided
from shoal.shm.group_layout import SharedLayout
from shoal.shm.layout import STOP, Plan
from shoal.types import Values

log = logging.getLogger("shoal.runtime")

READY = 180.0  # seconds that an agent has to come up, with its imports
ASKED, LAST_ANSWER_SECONDS = 30.0, 10.0  # seconds that an agent has to answer; the same, at the very end


class RaySupervisor(Supervisor):
    """One launch of a program on the nodes that ``places`` names."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        launch: Launch,
        failures: Failures,
        grace: float,
        hang_timeout: float,
        places: Places,
    ) -> None:
        self._places, self._hang_timeout = places, hang_timeout
        self._where = dict(places.where)
        self._stations: dict[str, Station] = {}
        self._coming: dict[str, Station] = {}  # whose agents were begun while the run goes on
        self._head: Head | None = None
        self._rings: dict[tuple[str, int], dict[str, bool]] = {}  # see ``routes.rings``
        self._store = "", 0  # where their members meet
        self._waiting: set[str] = set()  # labels of replicas that were said to wait for a place
        super().__init__(program, plan, launch, failures, grace, hang_timeout)
        self._control = Control(self._arena, plan)
        self._of = {(r.role.name, r.index): r for r in self._replicas if isinstance(r, RemoteReplica)}

    # ------------------------------------------------------------------------------------ the nodes
    def _prepare(self) -> None:
        """Constants are filled on the nodes."""

    def _go(self) -> Any:
        try:
            self._settle(sorted(set(self._where.values())))
            self._rings = routes.rings(self._program, self._plan, self._where)
            if self._rings:
                first = self._stations[self._where[min(self._rings)]]
                self._store = self._ask(first, ASKED, lambda s: s.agent.host.remote())
            self._aggregator.begin()
            self._head = Head()
            return super()._go()
        finally:
            if self._head is not None:
                self._head.close()
            self._say_traffic()
            for station in [*self._stations.values(), *self._coming.values()]:
                station.close()

    def _settle(self, nodes: list[str]) -> None:
        """Start an agent on each of these nodes, and tell all what crosses between them."""
        new = [self._station(node) for node in nodes]
        for station in new:
            facts = self._ask(station, READY, lambda s: s.ready)
            compare(station.name, facts["versions"])
            if not facts["sees"]:
                raise api.UsageError(
                    f"{station.name} does not see the run directory '{self._launch.run_dir}': "
                    "--run-dir expects a path on a file system that all nodes share"
                )
        self._stations |= {station.node: station for station in new}
        self._route()
        for station in new:
            station.listen(self._control.copy, self._hear, self._lose)

    def _station(self, node: str) -> Station:
        """A new one, or one that was begun before."""
        if node in self._coming:
            return self._coming.pop(node)
        name = self._places.name(node)
        options = {
            "num_cpus": 0,  # what its replicas need is reserved by the placement group
            "max_concurrency": 16 + sum(r.writers for r in self._plan.rings.values()),
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        agent = ray.remote(Agent).options(**options).remote(self._orders(), sys.path)
        return Station(node, name, agent, agent.facts.remote())

    def _orders(self) -> bytes:
        launch = self._launch
        savers = frozenset(r.name for r in self._program.roles if checkpointer.saves(r))
        limits = launch.stop.steps, launch.stop.updates
        orders = Orders(
            self._program, self._plan, self._blobs, savers, launch.seed, limits, launch.run_dir, launch.spans,
            launch.saving, launch.resume, self._hang_timeout, rules(),
        )  # fmt: skip
        pickled: bytes = cloudpickle.dumps(orders)
        return pickled

    def _route(self) -> None:
        """Tell every agent what it sends to whom; what they know already changes nothing."""
        alive = {node: s for node, s in self._stations.items() if not s.gone}
        found = routes.routes(self._program, self._plan, self._where)
        channels = {r.channel for r in found}
        where = {name: routes.members(self._program, self._plan, name, self._where) for name in channels}
        peers = {node: station.agent for node, station in alive.items()}
        for node, station in alive.items():
            mine = [r for r in found if r.source == node and r.target in alive]
            if mine:
                with self._unless_lost():
                    self._ask(station, ASKED, partial(_tell_routes, mine, peers, where))

    @contextlib.contextmanager
    def _unless_lost(self) -> Iterator[None]:
        """Once the run has begun, a node that does not answer does not end it: it hears what was asked later, or its
        station soon finds that it is lost."""
        try:
            yield
        except api.ShoalError as error:
            if self._head is None:
                raise
            log.warning("%s", error)

    def _ask(self, station: Station, seconds: float, call: Callable[[Station], Any]) -> Any:
        """The answer of an agent. ShoalError that names the node if there is none."""
        try:
            return ray.get(call(station), timeout=seconds)
        except ray.exceptions.RayTaskError as error:
            raise api.ShoalError(f"the agent of {station.name} failed: {error}") from error
        except ray.exceptions.GetTimeoutError:
            raise api.ShoalError(f"{station.name} has not answered for {seconds:.0f} s") from None
        except ray.exceptions.RayError as error:
            raise api.ShoalError(f"{station.name} was lost: {error}") from error

    # ----------------------------------------------------------------------- what the nodes tell
    def _hear(self, station: Station, news: News) -> None:
        """In the thread of a station."""
        self._control.take(news.control, [key for key, node in self._where.items() if node == station.node])
        for role, index, generation, (kind, content) in news.events:
            replica = self._of[role, index]
            if generation != replica.generation:
                continue
            if kind != DIED:
                replica.hear((kind, content))
            elif self._where[role, index] == station.node:
                replica.died(*content)
        if news.stop:
            self._arena.words[STOP // 8] = 1
        if news.events or news.stop:
            self._wake()

    def _lose(self, station: Station, why: str) -> None:
        """In the thread of a station: its replicas are gone."""
        log.warning("%s was lost: %s", station.name, why)
        for key, node in self._where.items():
            replica = self._of[key]
            if node == station.node and replica.process is not None:
                replica.died(None, f"its node was lost ({station.name}: {why})")
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full: the supervisor looks anyway
            os.write(self._wake_write, b".")

    def _wait(self, timeout: float) -> list[Replica]:
        super()._wait(timeout)
        return self._replicas

    def _ring_bells(self) -> None:
        for station in self._stations.values():
            if not station.gone:
                station.tell("order", self._control.stop, self._control.checkpoint)

    def _look(self) -> None:
        """Who hangs is seen where it runs."""
        if self._head is not None:
            self._head.check()
        self._watch.look_for_deadlock(self._replicas)

    # -------------------------------------------------------------------------------- the replicas
    def _replica(self, role: RoleSpec, index: int) -> Replica:
        return RemoteReplica(role, index, self._begin, self._news)

    def _begin(self, replica: RemoteReplica) -> float | RemoteProcess:
        """Start a life of a replica where it belongs; or say when to try again, if its node is gone and Ray has not
        found another."""
        key = replica.role.name, replica.index
        station = self._stations[self._where[key]]
        if station.gone:
            found = self._moved(replica, station)
            if found is None:
                return time.monotonic() + replica.RETRY
            station = found
        process = RemoteProcess(station, *key, replica.generation)
        again = replica.role.on_failure == "restore" and bool(replica.failures)
        found_at = self._newest(replica) if again else self._launch.resume
        life = Life(replica.generation, next(self._lives), found_at, again, self._places.gpus.get(key))
        station.tell("start", *key, life, self._control.copy(), self._store, self._rings.get(key, {}))
        return process  # what becomes of it is heard of with the news

    def _moved(self, replica: RemoteReplica, station: Station) -> Station | None:
        """Return where a replica goes on whose node is gone; None: nowhere yet."""
        key = replica.role.name, replica.index
        if any(map(routes.is_known_there_alone, replica.role.ports.values())):
            raise api.RoleFailed(
                *key, replica.generation, None,
                f"its node was lost ({station.name}), with what it alone knew of: it cannot go on elsewhere",
            )  # fmt: skip
        node = self._places.again(key)
        if node is None or (node in self._stations and self._stations[node].gone):
            if replica.label not in self._waiting:
                log.warning("%s waits until another node has room for it", replica.label)
                self._waiting.add(replica.label)
            return None
        if node not in self._stations and not self._has_come(node):
            return None
        self._waiting.discard(replica.label)
        self._places.settled(key)
        log.warning("%s goes on on %s", replica.label, self._places.name(node))
        self._where[key] = node
        if node in self._stations:
            self._route()
        else:
            self._settle([node])
        return self._stations[node]

    def _abandon(self) -> None:
        """Agents end the replicas of a driver that is gone; the processes of an instance of its own are killed here."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _has_come(self, node: str) -> bool:
        """Return whether the agent of a node that joins the run is there; does not wait for it."""
        self._coming[node] = self._station(node)
        there, _ = ray.wait([self._coming[node].ready], timeout=0)
        return bool(there)

    # ------------------------------------------------------------------------------------- figures
    def _fill(self) -> dict[str, float]:
        return of_nodes.fill(self._latest())

    def _items_moved(self) -> dict[str, int]:
        return of_nodes.items_moved(self._latest())

    def _used(self) -> int:
        return sum(news.used for news in self._latest()) + int(psutil.Process().memory_info().rss)

    def _latest(self) -> list[News]:
        return [s.latest for s in self._stations.values() if s.latest is not None and not s.gone]

    def _groups(self) -> api.State:
        out: api.State = {}
        groups = self._plan.groups.values()
        alone = any(isinstance(group, SharedLayout) for group in groups)  # known to one node; rows are known to all
        for station in self._alive() if groups else ():
            with contextlib.nullcontext() if alone else self._unless_lost():
                for part, state in self._ask(station, ASKED, lambda s: s.agent.groups.remote()).items():
                    out[part] = _newer(out[part], state) if part in out and "rows" in state else state
        return out

    def _params(self) -> dict[str, api.Tensors]:
        out: dict[str, api.Tensors | None] = {}
        written: dict[str, list[str]] = {}
        for name in [*self._plan.stores, *(n for n, g in self._plan.groups.items() if isinstance(g, SharedLayout))]:
            node = routes.written(self._program, self._plan, name, self._where)
            written.setdefault(node, []).append(name)
        for station in self._alive():
            if names := written.get(station.node):
                found = self._ask(station, ASKED, partial(_ask_params, names))
                for name, arrays in found.items():
                    out[name] = {key: torch.from_numpy(np.array(a)) for key, a in arrays.items()}
        return divided.join(self._plan, out)

    def _alive(self) -> list[Station]:
        return [station for station in self._stations.values() if not station.gone]

    def traffic(self) -> dict[str, tuple[int, int]]:
        """channel -> messages and bytes that have crossed between nodes."""
        out: dict[str, tuple[int, int]] = {}
        for station in self._stations.values():
            for name, (messages, nbytes) in station.traffic().items():
                name = routes.whole(self._plan, name)
                before = out.get(name, (0, 0))
                out[name] = before[0] + messages, before[1] + nbytes
        return out

    def _say_traffic(self) -> None:
        for station in self._alive():  # what it has sent since its last news
            try:
                station.sent = self._ask(station, LAST_ANSWER_SECONDS, lambda s: s.agent.traffic.remote())
            except api.ShoalError as error:
                log.warning("between nodes: %s, and what it has sent since its last news is not counted", error)
        steps = max(self._aggregator.steps, 1)
        for name, (messages, nbytes) in self.traffic().items():
            log.info("between nodes: channel '%s', %d messages, %d bytes, %.1f bytes per step",
                     name, messages, nbytes, nbytes / steps)  # fmt: skip


def _tell_routes(found: list[routes.Route], peers: Values, where: Values, station: Station) -> Any:
    return station.agent.route.remote(found, peers, where)


def _ask_params(channels: list[str], station: Station) -> Any:
    return station.agent.params.remote(channels)


def _newer(one: api.State, other: api.State) -> api.State:
    """Of two boards' states, each writer's latest row."""
    later = other["puts"] > one["puts"]
    rows = {}
    for name, mine in one["rows"].items():
        rows[name] = mine.copy()
        rows[name][later] = other["rows"][name][later]
    return {"rows": rows, "puts": np.maximum(one["puts"], other["puts"])}
