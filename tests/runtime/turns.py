"""Roles that do what a test says at each of their turns, in a run of the serial runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.api import Context
from shoal.metering.aggregator import Snapshot
from shoal.program import Program
from shoal.runtime.launch import Launch, Report, Stop
from shoal.serial.runtime import SerialRuntime


class Turns:
    """A role that does ``what`` at each of its turns, counts ``each`` steps, and knows how many turns it has had."""

    def __init__(self, what: Callable[[Turns], object], each: int, ctx: Context, ends: dict[str, Any]) -> None:
        self.what, self.each, self.ctx, self.ends, self.turns = what, each, ctx, ends, 0

    def step(self) -> None:
        self.what(self)
        self.turns += 1
        self.ctx.metrics.count("env_steps", self.each)

    def state_dict(self) -> dict[str, Any]:
        return {"turns": self.turns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turns = state["turns"]


class Idle(Turns):
    """Has never anything to do."""

    def due(self) -> bool:
        return False


def nothing(role: Turns) -> None:
    """At a turn of which only the count is of interest."""


def turns(what: Callable[[Turns], object] = nothing, each: int = 0, kind: type[Turns] = Turns) -> Any:
    return lambda ctx, **ends: kind(what, each, ctx, ends)


def program(*roles: Any, **more: Any) -> Program:
    """Roles a, b, ... without channels."""
    out = Program("test")
    for name, make in zip("abc", roles, strict=False):
        out.role(name, make, **more)
    return out


def run(wired: Program, steps: int | None = None, **launch: Any) -> Report:
    return SerialRuntime().launch(wired, Launch(stop=Stop(steps=steps), **launch))


class Rows:
    """An observer that notes one figure of each snapshot."""

    def __init__(self, what: Callable[[Snapshot], Any] = lambda snapshot: snapshot.steps) -> None:
        self.what, self.seen = what, list[Any]()

    def update(self, snapshot: Snapshot) -> None:
        self.seen.append(self.what(snapshot))
