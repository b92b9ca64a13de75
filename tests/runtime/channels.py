"""One channel and its ends in this process, for the tests of rings, stores and ports."""

from __future__ import annotations

from typing import Any

import numpy as np
from programs import Wired

from shoal import api
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.shm import layout
from shoal.shm.arena import Arena
from shoal.shm.layout import Plan
from shoal.shm.ring import Consumer, Producer
from shoal.shm.session import Session

SPEC = {"tag": api.Field((4,), "int64", 0), "data": api.Field((3, 5), "float32", 1)}


def plan_of(channel: Channel, writers: int = 1, readers: int = 1, **reader: Any) -> Plan:
    program = Wired()
    program.channel(channel)
    program.role("writer", None, replicas=writers, out=channel.writer())
    program.role("reader", None, replicas=readers, inp=channel.reader(**reader))
    return layout.plan(program)


def session_of(plan: Plan) -> Session:
    return Session(Arena(plan.total), Recorder())


def queue(writers: int = 1, capacity: int = 2, readers: int = 1, **reader: Any) -> tuple[Session, Plan]:
    plan = plan_of(Channel("c", "queue", SPEC, capacity), writers, readers, **reader)
    return session_of(plan), plan


def ends(session: Session, plan: Plan, reader: int = 0) -> tuple[list[Producer], Consumer]:
    ring = plan.rings["c"]
    return [Producer(session, ring, i) for i in range(ring.writers)], Consumer(session, ring, reader)


def item(writer: int, generation: int, number: int) -> api.Arrays:
    """An item that tells whether it is whole: its last tag is a checksum, and all its data are equal."""
    tag = np.array([writer, generation, number, writer * 7 + generation * 31 + number * 101], np.int64)
    return {"tag": tag, "data": np.full((3, 5), number % 4096, np.float32)}


def check(arrays: Any) -> tuple[int, int, int]:
    """(writer, generation, number) of an item; fails if it is torn."""
    writer, generation, number, checksum = (int(x) for x in arrays["tag"])
    assert checksum == writer * 7 + generation * 31 + number * 101
    assert bool((np.asarray(arrays["data"]) == number % 4096).all())
    return writer, generation, number
