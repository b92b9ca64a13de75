"""What a replica does, as plain data: steps of work between the operations on its ports, and how long work takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Kind = Literal["work", "reserve", "commit", "get", "latest", "publish", "put", "copy", "add", "offer"]


@dataclass(frozen=True)
class Times:
    """A distribution of seconds, drawn from with replacement: equally likely ``values``, or one of a ``law``.

    law: ``values`` as they are; ``exponential``, of mean ``values[0]``.
    """

    values: tuple[float, ...] = (0.0,)
    law: Literal["values", "exponential"] = "values"

    def draw(self, random: Random) -> float:
        if self.law == "exponential":
            return random.expovariate(1.0 / self.values[0])
        values = self.values
        return values[int(random.random() * len(values))] if len(values) > 1 else values[0]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation over the mean; 0 of a constant."""
        if self.law == "exponential":
            return 1.0
        mean = self.mean
        variance = sum((v - mean) ** 2 for v in self.values) / len(self.values)
        return float(variance**0.5 / mean) if mean > 0 else 0.0

    def times(self, factor: float) -> Times:
        """The distribution of ``factor`` times as much."""
        return Times(tuple(v * factor for v in self.values), self.law)


NOTHING = Times()


@dataclass(frozen=True)
class Op:
    """Work, or one operation on a port.

    do: ``work``; of a queue or replay ``reserve`` room (waits) and ``commit`` the item, or ``get``; of parameters
        ``latest`` and ``publish``; of a reduce channel ``put`` and ``get``; of a board ``put`` and ``get``; of shared
        parameters ``offer``, ``copy`` and ``add``.
    busy: seconds of a core; idle: seconds without one, such as a sleep. stale: of work after ``latest``, ``busy`` where
        that found no newer version; None: the same.
    phases: shares of the work, by the names that a profile has; they add up to 1.
    cores: on which the work is done side by side, ``busy`` on each.
    """

    do: Kind
    port: str = ""
    busy: Times = NOTHING
    idle: Times = NOTHING
    stale: Times | None = None
    phases: tuple[tuple[str, float], ...] = ()
    cores: int = 1


def work(seconds: Times | float, phase: str = "work", **fields: Any) -> Op:
    """Work of one phase."""
    busy = seconds if isinstance(seconds, Times) else Times((seconds,))
    return Op("work", busy=busy, phases=((phase, 1.0),), **fields)


@dataclass(frozen=True)
class Step:
    """One step of a role; counts: what it reports (``env_steps``, ``updates``), on average."""

    ops: tuple[Op, ...]
    counts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Behaviour:
    """The steps of a replica in turn: ``start`` once, before the first; ``first`` once; then ``cycle`` again and again.

    insert: work of a reader for each item that it takes into a replay. steps_per_update: gradient steps of an update.
    regular: False where the order of the steps had no period: each is then drawn from ``cycle``.
    preempt: (share of the replicas, share of a cycle's leading steps): a replica that has taken that share of the steps
        before the one that puts on a board goes on to it once so many of the replicas have put.
    """

    cycle: tuple[Step, ...]
    first: tuple[Step, ...] = ()
    start: tuple[Op, ...] = ()
    insert: Times = NOTHING
    steps_per_update: float = 1.0
    regular: bool = True
    preempt: tuple[float, float] | None = None


Behaviours = Mapping[str, Sequence[Behaviour]]  # role -> of replica 0, 1, ...; the last also of all later ones
