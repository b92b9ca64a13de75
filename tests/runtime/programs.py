"""Small programs for the tests of the runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal import api
from shoal.program import Channel, Program


class Wired(Program):
    """A program of which nothing is asked: the runtime's own checks are enough here."""

    def __init__(self) -> None:
        super().__init__("test")

    def validate(self) -> None:
        """Take it as it is."""


SPEC = {"number": api.Field((1,), "int64", 0), "data": api.Field((4, 2), "float32", 1)}


class Source:
    """Puts items whose data are all equal to their number; ``crash_at`` raises once, in the first life."""

    def __init__(self, ctx: api.Context, out: Any, crash_at: int = -1, always: bool = False) -> None:
        self.ctx, self.out, self.n = ctx, out, 0
        self.crash_at = crash_at if always or ctx.generation == 0 else -1

    def step(self) -> None:
        if self.n == self.crash_at:
            raise ValueError(f"boom at {self.n}")
        data = np.full((4, 2), self.n, np.float32)
        self.out.put({"number": np.array([self.n]), "data": data}, version=self.n)
        self.n += 1
        self.ctx.metrics.count("env_steps")


class Sink:
    """Checks and counts what it gets; an update each."""

    def __init__(self, ctx: api.Context, inp: Any) -> None:
        self.ctx, self.inp = ctx, inp

    def step(self) -> None:
        batch = self.inp.get()
        number = batch.items["number"].float()
        assert torch.equal(batch.items["data"].mean(0).reshape(-1, 2).mean(1), number), batch.items
        self.ctx.metrics.count("updates")
        self.ctx.metrics.record("number", float(number.mean()))


def pipeline(make: Any = Source, *, writers: int = 1, on_failure: Any = "stop", **reader: Any) -> Wired:
    program = Wired()
    items = program.channel(Channel("items", "queue", SPEC, capacity=4))
    program.role("source", make, replicas=writers, on_failure=on_failure, out=items.writer())
    program.role("sink", Sink, inp=items.reader(**reader))
    return program
