"""Measuring on a device: the rate of a step, and a learner whose updates are something else as well."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

Update = Callable[[Any], Any]


def rate(step: Callable[[], Any], seconds: float, wait: bool = False) -> tuple[float, float]:
    """(calls per second, seconds) of ``step`` after one that does not count, once the device has done it all. wait: for
    the device after each call, not only at the end."""

    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    step()
    begin, count = now(), 0
    while (now() if wait else time.perf_counter()) - begin < seconds or not count:
        step()
        count += 1
    spent = now() - begin
    return count / spent, spent


def with_updates(program: Any, of: Callable[[Any, Update], Update]) -> None:
    """Replace the updates of the program's learner by what ``of`` makes of (role, update)."""

    def changed(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(ctx: Any, **ports: Any) -> Any:
            role = make(ctx, **ports)
            role.learner.update = of(role, role.learner.update)
            return role

        return made

    program.roles = [replace(r, make=changed(r.make)) if r.name == "learner" else r for r in program.roles]
