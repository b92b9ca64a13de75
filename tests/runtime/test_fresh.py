"""Whatever an end does within a step is noted: a checkpoint that is made while the role then waits is not of a role as
it was before the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from channels import SPEC, ends, item, plan_of, queue, session_of
from programs import Wired

from shoal.api import Field
from shoal.metering.recorder import Recorder
from shoal.ops import SharedRMSProp
from shoal.program import Channel
from shoal.replay import ItemSpec, RateLimiter, Ratio
from shoal.shm import layout
from shoal.shm.board import BoardEnd
from shoal.shm.ports import ReplayReader
from shoal.shm.queue_reader import EachReader, QueueReader
from shoal.shm.reduce import ReduceEnd
from shoal.shm.session import Session
from shoal.shm.shared_params import SharedEnd
from shoal.shm.store import StoreReader, StoreWriter

W: Any = {"w": Field((2,))}
Does = Iterator[tuple[str, Session, Callable[[], object]]]


def queues() -> Does:
    made: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
        "one": ({}, QueueReader), "two": ({"count": 2}, lambda c: QueueReader(c, 2)),
        "each": ({"each": True}, EachReader),
    }  # fmt: skip
    for name, (options, reader) in made.items():
        session, plan = queue(**options)
        (producer,), consumer = ends(session, plan)
        for number in range(2):
            yield f"put {name}", session, partial(producer.put, item(0, 0, number))
        yield f"get {name}", session, reader(consumer).get
    session, plan = queue()
    (producer,), consumer = ends(session, plan)
    producer.put(item(0, 0, 0))
    yield "waiting", session, partial(QueueReader(consumer).waiting, 1)


def replays() -> Does:
    spec = {"x": Field((2, 3))}
    plan = plan_of(Channel("c", "replay", spec, table=ItemSpec(8)))
    session = session_of(plan)
    (producer,), consumer = ends(session, plan)
    table = ItemSpec(8).build(spec, 1, seed=0)
    reader = ReplayReader(consumer, table, RateLimiter(Ratio(min_size=1)), 1, Recorder())
    producer.put({"x": np.zeros((2, 3), np.float32)})
    yield "sample", session, reader.get


def params() -> Does:
    plan = plan_of(Channel("c", "params", W))
    session = session_of(plan)
    writer, reader = StoreWriter(session, plan.stores["c"]), StoreReader(session, plan.stores["c"], 0)
    yield "publish", session, lambda: writer.publish({"w": torch.zeros(2)})
    yield "latest", session, reader.latest
    yield "none newer", session, partial(reader.latest, 1)
    yield "copy", session, lambda: reader.copy(np.zeros(8, np.uint8))


def equals() -> Does:
    """Channels between equals, of which there is one."""

    def made(channel: Channel) -> tuple[Session, Any]:
        program = Wired()
        program.channel(channel)
        program.role("member", None, replicas=1, end=channel.member())
        plan = layout.plan(program)
        return session_of(plan), plan.groups["c"]

    session, group = made(Channel("c", "reduce", W))
    reducer = ReduceEnd(session, group, 0)
    yield "put", session, lambda: reducer.put({"w": np.zeros(2, np.float32)})
    yield "sum", session, reducer.get
    session, group = made(Channel("c", "board", W))
    row = BoardEnd(session, group, 0)
    yield "row", session, lambda: row.put({"w": np.zeros(2, np.float32)})
    session, group = made(Channel("c", "shared", W, rule=SharedRMSProp(decay=0.9, eps=0.1)))
    shared = SharedEnd(session, group, 0)
    shared.offer({"w": torch.zeros(2)})
    yield "shared copy", session, shared.copy
    yield "add", session, lambda: shared.add({"w": torch.ones(2)}, 0.1)


@pytest.mark.parametrize("kind", [queues, replays, params, equals])
def test_what_an_end_does_is_noted(kind: Callable[[], Does]) -> None:
    for name, session, does in kind():
        session.fresh = True
        does()
        assert not session.fresh, name


def test_the_memory_of_a_role_is_that_of_all_its_replicas() -> None:
    program = Wired()
    channel = Channel("c", "queue", SPEC)
    program.channel(channel)
    program.role("writer", None, replicas=3, memory=1_000, out=channel.writer())
    program.role("c", None, memory=10, inp=channel.reader())
    plan = layout.plan(program)
    found = layout.needed(plan)
    assert found["writer"] == 3_000 and found["c"] == plan.rings["c"].nbytes + 10, "a role is called like a channel"
