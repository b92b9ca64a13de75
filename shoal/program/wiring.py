"""What a program is wired with: channels, their ends, and roles. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shoal.api import Arrays, ReplaySpec, Role, Rule, Spec
from shoal.replay.limiter import Ratio

OnFailure = Literal["stop", "restart", "ignore", "restore"]


@dataclass(frozen=True)
class Channel:
    """Typed connection between roles. ``capacity`` counts items per writer (queue and replay input). A ``constant`` is
    one read-only item: ``fill`` makes it once, before any role is built, and all readers of a machine share it.

    A ``divided`` channel is cut into nearly equal parts, at multiples of that number. Of a queue, each reader gets its
    part of every item, along the first axis of each field. Of parameters, each writer owns and publishes a part of the
    vector that holds all of them (``api.places``), as the field ``part``; readers get them whole.
    """

    name: str
    kind: Literal["queue", "replay", "params", "constant", "reduce", "board", "shared"]
    spec: Spec
    capacity: int = 2
    ratio: Ratio = Ratio()  # noqa: RUF009 - it is frozen
    table: ReplaySpec | None = None  # replay only
    lag: int = 0  # params, serial runtime: readers see the version this many publications old
    fill: Callable[[Arrays], None] | None = None  # constant only
    mean: bool = False  # reduce: everyone gets the mean instead of the sum
    rule: Rule | None = None  # shared: how a gradient moves the parameters
    divided: int = 0  # queue or params: cut into parts; 0: not
    used: str = ""  # queue: the int64 field of shape [1] that says how many entries of the others are, along their axis

    def writer(self, first: bool = False) -> Port:
        """Return a write end; with ``first``, replica 0 only writes."""
        return Port(self, "write", first=first)

    def member(self) -> Port:
        """Return a port that both reads and writes: of a reduce channel, a board, or shared parameters."""
        return Port(self, "both")

    def reader(self, count: int = 1, each: bool = False, lockstep: int = 0) -> Port:
        """A read end. queue: ``count`` items per ``get``, from any writer, or, with ``each``, one from every writer in
        order. replay: ``count`` sampled items; each of several readers has a table of its own, which writers ``i``,
        ``i + readers``, ... fill. params with ``lockstep``: ready so many times for each version."""
        return Port(self, "read", count, each, int(lockstep))


@dataclass(frozen=True)
class Port:
    """A directed end of a channel, given to a role by keyword."""

    channel: Channel
    direction: Literal["read", "write", "both"]
    count: int = 1
    each: bool = False
    lockstep: int = 0
    first: bool = False

    def of(self, replicas: int) -> int:
        """Return how many of a role's replicas have this end; the port of the others is None."""
        return 1 if self.first else replicas


@dataclass(frozen=True)
class RoleSpec:
    """A role of a program: ``make(ctx, **ports)`` builds each replica where it runs.

    on_failure: what a runtime with processes does when a replica fails. ``stop``: the run fails. ``restart``: another
        life begins; the run fails once a replica fails too often. ``ignore``: the same, but the run then goes on
        without it. ``restore``: as ``restart``, but the new life begins with the state and the parameters of the newest
        checkpoint, if there is one (replay tables are filled anew). Such a runtime saves the states of roles that
        ``stop`` or ``restore`` only: one that may begin anew at any time has none worth keeping. The serial runtime
        saves every state, and there any failure ends the run.
    threads: of each replica's process (OpenMP and torch).
    device: what ``make`` computes on; a runtime checks that it is there, and moves nothing.
    background: a process of low priority that takes a small share of the processors.
    memory: bytes that each replica holds beside its channels, such as a replay of its own.
    """

    name: str
    make: Callable[..., Role]
    ports: dict[str, Port]
    replicas: int = 1
    on_failure: OnFailure = "stop"
    threads: int = 1
    device: str = "cpu"
    background: bool = False
    memory: int = 0
