"""Versioned parameters: never torn, never blocking the writer, lockstep."""

from __future__ import annotations

import pytest
import torch
from channels import plan_of, session_of

from shoal import api
from shoal.local import processes
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.shm import store
from shoal.shm.arena import Arena
from shoal.shm.layout import STOP, Plan
from shoal.shm.session import Session
from shoal.shm.store import StoreReader, StoreWriter

pytestmark = pytest.mark.timeout(60)

SPEC = {"weight": api.Field((300, 100)), "count": api.Field((), "int64"), "flag": api.Field((3,), "bool")}


def values(n: int) -> api.Tensors:
    return {
        "weight": torch.full((300, 100), float(n)),
        "count": torch.tensor(n),
        "flag": torch.full((3,), bool(n % 2)),
    }


def made() -> tuple[Session, Plan]:
    plan = plan_of(Channel("params", "params", SPEC), readers=2)
    return session_of(plan), plan


def publish(arena: Arena, plan: Plan) -> None:
    writer = StoreWriter(Session(arena, Recorder()), plan.stores["params"])
    while not arena.words[STOP // 8]:
        writer.publish(values(arena.words[plan.stores["params"].control // 8] + 1))


def test_readers_never_see_a_torn_version() -> None:
    session, plan = made()
    process = processes.start(publish, (session.arena, plan), "writer")
    reader = StoreReader(session, plan.stores["params"])
    last, distinct = 0, 0
    while distinct < 300:
        found = reader.latest(newer_than=last)
        if found is None:
            continue
        version, params = found
        assert version > last
        last, distinct = version, distinct + 1
        assert torch.equal(params["weight"], torch.full((300, 100), float(version)))
        assert params["count"] == version
        assert params["flag"].tolist() == [bool(version % 2)] * 3
    session.arena.words[STOP // 8] = 1
    process.join()


def test_latest_newer_than_and_private_copies() -> None:
    session, plan = made()
    writer, reader = StoreWriter(session, plan.stores["params"]), StoreReader(session, plan.stores["params"])
    assert store.read(session.arena, plan.stores["params"]) is None
    assert not reader.ready()
    assert writer.publish(values(1)) == 1
    version, params = reader.latest() or (0, {})
    assert version == 1
    assert writer.publish(values(2)) == 2
    assert float(params["weight"][0, 0]) == 1.0
    assert reader.latest(newer_than=2) is None
    assert (reader.latest(newer_than=1) or (0,))[0] == 2
    last = store.read(session.arena, plan.stores["params"])
    assert last is not None
    assert last["count"] == 2


def test_what_is_published_again_is_read_again_and_other_tensors_are_checked() -> None:
    session, plan = made()
    writer, reader = StoreWriter(session, plan.stores["params"]), StoreReader(session, plan.stores["params"])
    params = values(1)
    writer.publish(params)
    params["weight"].fill_(7.0)  # in place, as optimisers do
    writer.publish(params)
    assert float((reader.latest() or (0, {}))[1]["weight"][0, 0]) == 7.0
    params["weight"] = torch.full((300, 100), 8.0)  # another tensor in the same dictionary
    writer.publish(dict(reversed(params.items())))
    assert float((reader.latest() or (0, {}))[1]["weight"][0, 0]) == 8.0
    with pytest.raises(api.UsageError, match=r"'weight': expected shape \[300, 100\], got \[3\]"):
        writer.publish({**params, "weight": torch.zeros(3)})
    for wrong in ({**params, "more": torch.zeros(3)}, {"weight": params["weight"], "count": params["count"]}):
        with pytest.raises(api.UsageError, match="takes the parameters"):
            writer.publish(wrong)
    assert writer.publish(params) == 4


def test_a_killed_publish_leaves_the_latest_intact() -> None:
    session, plan = made()
    layout = plan.stores["params"]
    writer, reader = StoreWriter(session, layout), StoreReader(session, layout)
    writer.publish(values(1))
    with pytest.raises(api.UsageError, match="'flag': expected shape"):
        writer.publish({**values(9), "flag": torch.zeros(2)})  # weight is already overwritten
    version, params = reader.latest() or (0, {})
    assert (version, int(params["count"])) == (1, 1)
    assert StoreWriter(session, layout).publish(values(2)) == 2
    assert (reader.latest() or (0,))[0] == 2


def test_lockstep_waits_for_something_newer() -> None:
    session, plan = made()
    layout = plan.stores["params"]
    writer, reader = StoreWriter(session, layout), StoreReader(session, layout, 0, lockstep=True)
    writer.publish(values(1))
    assert reader.ready()
    reader.latest()
    assert not reader.ready()
    # a successor reads version 1 again, unless an item made with it was delivered
    assert StoreReader(session, layout, 0, lockstep=True).ready()
    reader.delivered()
    assert not StoreReader(session, layout, 0, lockstep=True).ready()
    assert StoreReader(session, layout, 1, lockstep=True).ready()
    writer.publish(values(2))
    assert reader.ready()
    session.arena.words[STOP // 8] = 1
    reader.latest()
    with pytest.raises(api.Stopped):
        reader.latest()


def test_lockstep_of_several_items_is_delivered_with_the_last() -> None:
    session, plan = made()
    layout = plan.stores["params"]
    writer, reader = StoreWriter(session, layout), StoreReader(session, layout, 0, lockstep=2)
    writer.publish(values(1))
    reader.latest()
    reader.delivered()
    assert StoreReader(session, layout, 0, lockstep=2).ready()  # a successor makes both items again
    reader.latest()
    reader.delivered()
    assert not StoreReader(session, layout, 0, lockstep=2).ready()


def test_wrong_names_are_refused() -> None:
    session, plan = made()
    with pytest.raises(api.UsageError, match="takes the parameters"):
        StoreWriter(session, plan.stores["params"]).publish({"weight": torch.zeros(300, 100)})
