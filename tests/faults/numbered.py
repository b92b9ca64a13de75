"""A program whose items prove that nothing was lost, repeated or torn: each carries its life, its number and bytes
that follow from them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal import api
from shoal.program import Channel, Program

SIZE = 4096
SPEC = {"who": api.Field((3,), "int64", 0), "data": api.Field((SIZE,), "uint8", 0)}  # who: writer, generation, number


def content(who: np.ndarray) -> np.ndarray:
    return np.random.default_rng(who.tolist()).integers(0, 256, SIZE, np.uint8)


class Numbered:
    """Sends item after item; tells its process id in ``pids/INDEX``."""

    def __init__(self, ctx: api.Context, out: Any, pids: Path, pause: float = 0.0) -> None:
        self.ctx, self.out, self.number, self.pause = ctx, out, 0, pause
        (pids / f".{ctx.index}").write_text(str(os.getpid()))
        os.replace(pids / f".{ctx.index}", pids / str(ctx.index))

    def step(self) -> None:
        who = np.array([self.ctx.index, self.ctx.generation, self.number])
        with self.out.slot() as slot:
            slot["who"][:] = who
            slot["data"][:] = content(who)
        self.number += 1
        self.ctx.metrics.count("env_steps")
        if self.pause:
            time.sleep(self.pause)


class Checker:
    """Raises for an item that is torn, repeated or missing; writes what it has seen to ``told`` at the end. An
    update is an item of writer 0 in its life ``life`` or a later one."""

    def __init__(self, ctx: api.Context, items: Any, told: Path, life: int = 0, pause: float = 0.0) -> None:
        self.ctx, self.items, self.told, self.life, self.pause = ctx, items, told, life, pause
        self.next: dict[int, tuple[int, int]] = {}  # writer -> generation, number expected

    def step(self) -> None:
        item = self.items.get().items
        who = item["who"].numpy()
        assert np.array_equal(item["data"].numpy(), content(who)), f"torn: {who}"
        writer, generation, number = who.tolist()
        life, expected = self.next.get(writer, (0, 0))
        if generation > life:
            life, expected = generation, 0
        assert (generation, number) == (life, expected), f"writer {writer}: {generation, number}, not {life, expected}"
        self.next[writer] = life, number + 1
        if writer == 0 and generation >= self.life:
            self.ctx.metrics.count("updates")
        if self.pause:
            time.sleep(self.pause)

    def close(self) -> None:
        self.told.write_text(json.dumps(self.next))


def program(
    pids: Path,
    told: Path,
    *,
    writers: int = 3,
    life: int = 0,
    pause: float | Sequence[float] = 0.0,
    slow: float = 0.0,
    capacity: int = 4,
) -> Program:
    """``pause``: seconds that each writer (or all of them) waits after an item; ``slow``: that the reader waits."""
    pauses = [pause] * writers if isinstance(pause, float) else list(pause)
    p = Program("numbered")
    items = p.channel(Channel("items", "queue", SPEC, capacity=capacity))
    p.role(
        "actor", lambda ctx, out: Numbered(ctx, out, pids, pauses[ctx.index]), replicas=writers, on_failure="restart",
        out=items.writer(),
    )  # fmt: skip
    p.role("learner", lambda ctx, items: Checker(ctx, items, told, life, slow), items=items.reader())
    return p
