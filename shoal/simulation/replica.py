"""A simulated replica: where it is, what it does, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shoal.simulation.behaviour import Behaviour

Phases = tuple[tuple[str, float], ...]  # name and share of the time


@dataclass(eq=False)
class Replica:
    """version: of the parameters that it has; fresh: whether its last look found newer ones; published: versions that
    it has made; waits: the port that it waits for, or ""; phases: of what it does now, since ``since``; booked: seconds
    by phases; lags: gradient steps that parameters were behind, and how often."""

    role: str
    index: int
    node: int
    behaviour: Behaviour
    random: Random
    ends: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    fresh: bool = True
    published: int = 0
    waits: str = ""
    phases: Phases = ()
    since: float = 0.0
    booked: dict[Phases, float] = field(default_factory=dict)
    lags: Counter[float] = field(default_factory=Counter)

    def received(self, versions: Sequence[int]) -> None:
        """Note how old the parameters are that a batch was made with, where this replica makes them."""
        if self.published:
            for version in versions:
                if version:
                    self.behind(self.published - version)

    def newest(self) -> int:
        """The newest version of the parameters that it reads, where it is; 0: none."""
        return next((end.newest() for end in self.ends.values() if hasattr(end, "newest")), 0)

    def behind(self, versions: int) -> None:
        """Note by how many versions something was behind."""
        self.lags[versions * self.behaviour.steps_per_update] += 1

    def begin(self, now: float, phases: Phases, port: str = "") -> None:
        self.phases, self.since, self.waits = phases, now, port

    def end(self, now: float) -> None:
        if self.phases:
            self.booked[self.phases] = self.booked.get(self.phases, 0.0) + now - self.since
        self.phases, self.waits, self.since = (), "", now

    def clear(self, now: float) -> None:
        """Measure from now on."""
        self.booked, self.lags, self.since = {}, Counter(), now

    def seconds(self, now: float) -> Mapping[str, float]:
        """Seconds of each phase, with what goes on."""
        booked = dict(self.booked)
        if self.phases:
            booked[self.phases] = booked.get(self.phases, 0.0) + now - self.since
        out: dict[str, float] = {}
        for phases, seconds in booked.items():
            for name, share in phases:
                out[name] = out.get(name, 0.0) + seconds * share
        return out
