"""One node's part of a run: an actor of Ray's that holds the node's arena and runs the replicas placed there.

Its replicas are the processes of the local runtime. They know nothing of Ray: what they read and write lies in the
arena, and the agent brings what other nodes must see from one arena to the other (``outgoing``, ``incoming``).
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
import numpy as np
import ray

from shoal import api
from shoal.held import adopt
from shoal.local import checkpoint_commit, child, processes
from shoal.local.heartbeat import Watch
from shoal.local.processes import Process
from shoal.local.replica import Replica
from shoal.local.telemetry import Message
from shoal.metering.aggregator import Aggregator
from shoal.program import Program
from shoal.ray_runtime.collective import AllReduce, Store
from shoal.ray_runtime.control import Control
from shoal.ray_runtime.incoming import Incoming
from shoal.ray_runtime.news import DIED, Event, News
from shoal.ray_runtime.outgoing import Outgoing, Peer
from shoal.ray_runtime.routes import Route
from shoal.ray_runtime.versions import versions
from shoal.records.checkpoint import Checkpoint, SaveOptions
from shoal.runtime import memory
from shoal.shm import bells, ports, ring, shared_params, store
from shoal.shm.arena import Arena
from shoal.shm.group_layout import ReduceLayout, SharedLayout
from shoal.shm.layout import LINE, Plan
from shoal.types import Values

PERIOD = 0.1  # seconds between two reports to the driver, where nothing is urgent
# seconds without a word from the driver after which an agent ends its processes and itself
DRIVER_TIMEOUT_SECONDS = 90.0
# the same before the first word, for which the driver waits until the slowest agent is there
FIRST_CONTACT_SECONDS = 300.0


@dataclass(frozen=True)
class Orders:
    """What every agent of a run is given."""

    program: Program
    plan: Plan
    blobs: dict[str, bytes]  # role -> what its processes unpickle
    savers: frozenset[str]  # roles that save their states
    seed: int
    limits: tuple[int | None, ...]
    run_dir: Path | None
    spans: int
    saving: SaveOptions | None
    resume: Checkpoint | None
    hang_timeout: float
    links: dict[str, bool]  # see ``held.rules``


@dataclass(frozen=True)
class Life:
    """A life of a replica. number: of all starts of the run; resume, again: see ``local.child.Job``; gpu: the one that
    Ray has given it, as CUDA_VISIBLE_DEVICES calls it."""

    generation: int
    number: int
    resume: Checkpoint | None
    again: bool
    gpu: str | None


class Agent:
    """``orders``: pickled ``Orders``; ``paths``: where the driver finds modules, for what it pickled by name. Its
    methods are called from several threads at once."""

    def __init__(self, orders: bytes, paths: list[str]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        self._orders: Orders = cloudpickle.loads(orders)
        adopt(self._orders.links)
        plan = self._orders.plan
        self._arena = Arena(plan.total)
        ports.fill(self._arena, plan)
        if self._orders.resume is not None:
            checkpoint_commit.resume(self._orders.resume, self._orders.program, plan, self._arena, Aggregator())
        self._control = Control(self._arena, plan)
        self._replicas: dict[tuple[str, int], Replica] = {}
        self._lives: dict[tuple[str, int], Life] = {}
        self._joins: dict[tuple[str, int], dict[str, AllReduce]] = {}
        self._incoming = Incoming(self._arena, plan)
        lost, unreachable = ray.exceptions.RayActorError, ray.exceptions.ActorUnavailableError
        self._outgoing = Outgoing(self._arena, plan, self._fail, ray.put, lost, unreachable)
        self._watch = Watch(self._arena, plan, self._orders.hang_timeout)
        self._happened: list[Event] = []  # until the driver has heard of it
        self._number = 0  # of events so far
        self._urgent = threading.Condition()
        self._hurry, self._failure = False, ""
        self._lock = threading.RLock()  # of the replicas
        self._address, self._store = ray.util.get_node_ip_address(), None  # type: str, Store | None
        self._reduces: set[str] = set()
        self._heard, self._closed = time.monotonic() + FIRST_CONTACT_SECONDS - DRIVER_TIMEOUT_SECONDS, False
        self._wake_read, self._wake_write = os.pipe()
        self._events = selectors.DefaultSelector()
        self._events.register(self._wake_read, selectors.EVENT_READ)
        processes.prepare()
        threading.Thread(target=self._supervise, name="shoal-agent", daemon=True).start()

    def host(self) -> tuple[str, int]:
        """Hold the store in which members of reduce channels find each other; its address and port."""
        self._store = self._store or Store(self._address)
        return self._store.where

    def facts(self) -> Values:
        """Return what must be the same on every node, and whether this one sees the run's directory."""
        run_dir = self._orders.run_dir
        return {"versions": versions(), "sees": run_dir is None or (run_dir / "logs").is_dir()}

    # -------------------------------------------------------------------------------- what is asked
    def start(
        self, role: str, index: int, life: Life, control: np.ndarray, store: tuple[str, int], crosses: dict[str, bool]
    ) -> None:
        """Start a life of a replica; one that is new on this node goes on counting where ``control`` says. store,
        crosses: where the members of reduce channels meet, and which those on several nodes are (``routes.rings``)."""
        key = role, index
        with self._lock:
            if key in self._lives and self._lives[key].generation >= life.generation:
                return  # it was told before
            (spec,) = (r for r in self._orders.program.roles if r.name == role)
            if key not in self._replicas:
                self._control.take(control, [key])
                self._replicas[key] = Replica(spec, index, self._launch, self._events)
            replica = self._replicas[key]
            replica.generation, self._lives[key] = life.generation, life
            self._joins[key] = {c: AllReduce(store, self._address, spec.device, far) for c, far in crosses.items()}
            self._reduces |= crosses.keys()
            self._arena.words[self._control.status(key)] = 0
            try:
                replica.start()
            except Exception:  # noqa: BLE001 - told to the driver, which nobody else would
                replica.cause = traceback.format_exc()
                self._tell_death(replica, None)
        os.write(self._wake_write, b"!")

    def kill(self, role: str, index: int, generation: int) -> None:
        """End a life of a replica, if it is the present one."""
        with self._lock:
            replica = self._replicas.get((role, index))
            if replica is not None and replica.generation == generation:
                replica.kill()

    def route(self, routes: list[Route], peers: dict[str, Peer], where: dict[str, dict[int, str]]) -> None:
        """Send along these routes, all of which begin here. ``where``: channel -> writer -> node."""
        for r in routes:
            self._outgoing.start(r, peers[r.target], [w for w, n in where[r.channel].items() if n == r.source])

    def order(self, stop: int, checkpoint: int) -> None:
        """Pass on what the driver asks of all replicas, and wake those that wait."""
        self._control.order(stop, checkpoint)
        bells.ring(self._arena, self._orders.plan)

    def exchange(self, control: np.ndarray, heard: int) -> News:
        """Take the counts of the replicas elsewhere; answer with news, after ``PERIOD`` or when there is something
        urgent. ``heard``: the number of the last event that the driver knows of, as an answer may be lost on its way.
        """
        self._heard = time.monotonic()
        self._control.take(control, [r for r in self._control.replicas if r not in self._replicas])
        with self._urgent:
            self._urgent.wait_for(lambda: self._hurry or self._failure, PERIOD)
            if self._failure:
                raise RuntimeError(self._failure)
            begin = self._number - len(self._happened)
            del self._happened[: max(0, heard - begin)]
            events, number, self._hurry = list(self._happened), self._number, False
        rings = self._orders.plan.rings
        fill = {name: ring.fill(self._arena, r) for name, r in rings.items()}
        moved = {name: ring.moved(self._arena, r) for name, r in rings.items()}
        return News(
            self._control.copy(), self._control.stop, events, number, fill, moved, memory.used(), self.traffic()
        )  # fmt: skip

    def traffic(self) -> dict[str, tuple[int, int]]:
        """channel -> messages and bytes that this node has sent to others."""
        return dict(self._outgoing.traffic) | self._reduced()

    def _reduced(self) -> dict[str, tuple[int, int]]:
        """channel -> items and bytes that members here have sent to other nodes themselves."""
        out = {}
        for name in self._reduces:
            group, words = self._orders.plan.groups[name], self._arena.words
            assert isinstance(group, ReduceLayout)
            lines = [group.lines // 8 + m * LINE for m in range(group.members)]
            if sent := sum(words[line] for line in lines):
                out[name] = sent, sum(words[line + 1] for line in lines)
        return out

    def params(self, channels: Collection[str]) -> dict[str, api.Arrays]:
        """The parameters published last of channels whose writers are here."""
        out = {}
        for name in channels:
            group = self._orders.plan.groups.get(name)
            if isinstance(group, SharedLayout):
                found = shared_params.read(self._arena, group)
            else:
                found = store.read(self._arena, self._orders.plan.stores[name])
            if found is not None:
                out[name] = {key: tensor.numpy() for key, tensor in found.items()}
        return out

    def groups(self) -> api.State:
        """part -> state of each channel that belongs to no replica, as this node knows it."""
        return checkpoint_commit.groups_state(self._orders.plan, self._arena)

    def close(self) -> None:
        """End every process that is left."""
        self._closed = True
        with self._lock:
            for replica in self._replicas.values():
                replica.kill()

    # ----------------------------------------------------------------------- what other agents send
    def deliver(self, channel: str, writer: int, items: list[np.ndarray]) -> None:
        self._incoming.deliver(channel, writer, items)

    def publish(self, channel: str, version: int, flat: np.ndarray) -> None:
        self._incoming.publish(channel, version, flat)

    def post(self, channel: str, rows: list[tuple[int, int, api.Arrays]]) -> None:
        self._incoming.post(channel, rows)

    # -------------------------------------------------------------------------------- its processes
    def _launch(self, replica: Replica, pipe: Connection) -> Process:
        orders, name = self._orders, replica.role.name
        environ = dict(os.environ)
        if not environ.get("CUDA_VISIBLE_DEVICES", "all"):  # Ray hides the GPUs of whoever asks for none, as this does
            del environ["CUDA_VISIBLE_DEVICES"]
        life = self._lives[name, replica.index]
        if life.gpu is not None:
            environ["CUDA_VISIBLE_DEVICES"] = life.gpu
        job = child.Job(
            replica.index,
            replica.generation,
            orders.seed,
            life.number,
            orders.limits,
            orders.run_dir,
            environ,
            orders.spans,
            orders.saving if name in orders.savers else None,
            life.resume,
            life.again,
            self._joins[name, replica.index],
        )
        args = (self._arena, orders.blobs[name], job, pipe)
        return processes.start(child.main, args, f"shoal-{replica.label}")

    def _supervise(self) -> None:
        try:
            while not self._closed:
                self._look()
        except Exception:  # noqa: BLE001 - told to the driver
            self._fail(traceback.format_exc())

    def _look(self) -> None:
        if any(key.data is None for key, _ in self._events.select(PERIOD)):
            os.read(self._wake_read, 64)
        with self._lock:
            replicas = list(self._replicas.values())
            for replica in replicas:
                self._listen(replica)
                if replica.process is not None and not replica.process.is_alive():
                    self._listen(replica)
                    exitcode = replica.reap()
                    self._tell_death(replica, exitcode)
            self._watch.look_for_hangs(replicas)
        if time.monotonic() - self._heard > DRIVER_TIMEOUT_SECONDS:
            self.close()
            os._exit(1)

    def _listen(self, replica: Replica) -> None:
        for kind, content in replica.receive():
            if kind == "failed":
                replica.cause = content
                continue
            self._tell(replica, (kind, content), urgent=kind != "telemetry")

    def _tell_death(self, replica: Replica, exitcode: int | None) -> None:
        self._tell(replica, (DIED, (exitcode, replica.cause)), urgent=True)

    def _tell(self, replica: Replica, message: Message, urgent: bool) -> None:
        with self._urgent:
            self._happened.append((replica.role.name, replica.index, replica.generation, message))
            self._number += 1
            if urgent:
                self._hurried()

    def _hurried(self) -> None:
        self._hurry = True
        self._urgent.notify_all()

    def _fail(self, cause: str) -> None:
        with self._urgent:
            self._failure = self._failure or cause
            self._hurried()
