"""Divided and shared channels in shared memory, and how their ends sleep and are woken, in one process and worked out
by hand."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from channels import plan_of, session_of
from programs import Wired

from shoal import api
from shoal.api import PART, Field, Stopped
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.shm import bells, divided, futex, layout, ports, shared_params
from shoal.shm.group_layout import SharedLayout
from shoal.shm.layout import STOP, Plan
from shoal.shm.session import Session
from shoal.shm.shared_params import SharedEnd, SharedReader

pytestmark = pytest.mark.timeout(20)


def ends(session: Session, plan: Plan, program: Wired, role: int, name: str) -> list[Any]:
    spec = program.roles[role]
    return [ports.build(session, plan, spec, index, 0, 0)[name] for index in range(spec.replicas)]


def wired(channel: Channel, writers: int, readers: int) -> tuple[Session, Plan, list[Any], list[Any]]:
    program = Wired()
    program.channel(channel)
    program.role("writer", None, replicas=writers, out=channel.writer())
    program.role("reader", None, replicas=readers, inp=channel.reader())
    plan = layout.plan(program)
    session = session_of(plan)
    return session, plan, ends(session, plan, program, 0, "out"), ends(session, plan, program, 1, "inp")


# ---------------------------------------------------------------------------------------- divided
QUEUE = Channel("c", "queue", {"g": Field((75,), axis=0)}, capacity=1, divided=16)  # cut between its 48th and 49th


def test_a_divided_item_is_cut_where_its_unit_ends() -> None:
    _, _, (writer,), readers = wired(QUEUE, 1, 2)
    writer.put({"g": np.arange(75, dtype=np.float32)}, [7, 8])
    parts = [reader.get() for reader in readers]
    assert [part.items["g"].tolist() for part in parts] == [list(range(48)), list(range(48, 75))]
    assert [part.versions for part in parts] == [(7,), (8,)]


def test_a_part_for_one_reader_fills_its_ring_alone() -> None:
    _, _, (writer,), readers = wired(QUEUE, 1, 2)
    writer.put_part(1, {"g": np.ones(27, np.float32)}, 5)
    assert not writer.ready(), "one of the rings is full"
    assert [reader.ready() for reader in readers] == [False, True] and readers[1].get().versions == (5,)
    readers[1].release()
    assert writer.ready()


def test_who_is_stopped_before_all_readers_have_room_has_sent_nothing() -> None:
    session, _, (writer,), readers = wired(QUEUE, 1, 2)
    writer.put_part(1, {"g": np.ones(27, np.float32)})
    session.arena.words[STOP // 8] = 1
    with pytest.raises(Stopped):
        writer.put({"g": np.zeros(75, np.float32)}, [0, 0])
    assert not readers[0].ready()


def test_parameters_in_parts_are_as_old_as_the_oldest_of_them() -> None:
    channel = Channel("c", "params", {"w": Field((5,), axis=0), "b": Field((20,), axis=0)}, divided=16)
    session, plan, writers, (reader,) = wired(channel, 2, 1)
    assert divided.read(session.arena, plan) == {} and not reader.ready()
    values = [torch.arange(32.0), torch.arange(32.0, 48.0)]  # of 3 units of 16 elements: w has one, b has two
    writers[0].publish({PART: values[0]})
    assert divided.read(session.arena, plan) == {} and not reader.ready(), "the other part is missing"
    for part, count in ((1, 1), (0, 2)):
        for _ in range(count):
            writers[part].publish({PART: values[part]})
    version, params = reader.latest()
    assert (version, reader.versions, reader.newest()) == (1, (3, 1), 1)
    wanted = {"w": [0.0, 1.0, 2.0, 3.0, 4.0], "b": [float(n) for n in range(16, 36)]}
    assert {name: tensor.tolist() for name, tensor in params.items()} == wanted
    assert {name: tensor.tolist() for name, tensor in divided.read(session.arena, plan)["c"].items()} == wanted
    assert reader.latest(newer_than=1) is None and reader.latest(newer_than=2) is None, "nothing has changed"
    assert reader.latest(newer_than=0) is not None, "1 is newer"
    writers[0].publish({PART: -values[0]})
    version, params = reader.latest(newer_than=1)
    assert version == 1 and params["w"].tolist() == [0.0, -1.0, -2.0, -3.0, -4.0], "a part has changed"


# ----------------------------------------------------------------------------------------- shared
class Momentum:
    """m = m + g; w = w - lr m."""

    def statistics(self, spec: api.Spec) -> api.Spec:
        return spec

    def apply(self, params: api.Tensors, statistics: api.Tensors, gradient: api.Tensors, lr: float) -> None:
        for name, tensor in params.items():
            statistics[name] += gradient[name]
            tensor -= lr * statistics[name]


def shared(workers: int = 2) -> tuple[Session, SharedLayout, list[SharedEnd], SharedReader]:
    program = Wired()
    channel = program.channel(Channel("c", "shared", {"w": Field((2,))}, rule=Momentum()))
    program.role("worker", None, replicas=workers, end=channel.member())
    plan = layout.plan(program)
    session, group = session_of(plan), plan.groups["c"]
    assert isinstance(group, SharedLayout)
    return session, group, [SharedEnd(session, group, k) for k in range(workers)], SharedReader(session, group)


def w(*values: float) -> api.Tensors:
    return {"w": torch.tensor(values)}


def test_shared_parameters_are_those_offered_first_and_count_the_steps_of_all() -> None:
    _, _, (one, two), reader = shared()
    assert not reader.ready() and reader.newest() == 0
    one.offer(w(1.0, 2.0))
    two.offer(w(9.0, 9.0))
    assert reader.newest() == 1 and two.copy()[1]["w"].tolist() == [1.0, 2.0]
    assert [one.add(w(1.0, 0.0), 0.5), two.add(w(1.0, 1.0), 0.5), two.add(w(0.0, 0.0), 0.25)] == [1, 2, 3]
    # the sums of gradients are (1, 0), (2, 1), (2, 1): 1 - 0.5 - 1 - 0.5, and 2 - 0 - 0.5 - 0.25
    steps, params = one.copy()
    assert (steps, params["w"].tolist()) == (3, [-1.0, 1.25]) and two.copy()[0] == 3
    version, params = reader.latest(newer_than=3) or (0, {})
    assert (version, params["w"].tolist()) == (4, [-1.0, 1.25])
    assert reader.latest(newer_than=4) is None


def test_shared_parameters_go_on_with_their_statistics_and_steps() -> None:
    session, group, (one, two), _ = shared()
    assert shared_params.state_dict(session.arena, group)["version"] == 0
    one.offer(w(1.0, 2.0))
    for end in (one, two, two):
        end.add(w(1.0, 0.0), 0.5)
    state = shared_params.state_dict(session.arena, group)
    assert (state["version"], state["steps"]) == (4, [1, 2])
    session, group, (one, two), reader = shared()
    shared_params.load_state_dict(session.arena, group, state)
    assert reader.newest() == 4 and two.add(w(0.0, 1.0), 1.0) == 4
    # w was 1 - 0.5 - 1 - 1.5 = -2; the sum of gradients is (3, 1) now
    assert one.copy()[1]["w"].tolist() == [-5.0, 1.0]
    one.offer(w(7.0, 7.0))
    assert reader.newest() == 5 and one.copy()[1]["w"].tolist() == [-5.0, 1.0], "there are some already"


def test_who_waits_for_shared_parameters_is_woken_by_the_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(futex, "wake", woken.append)
    session, group, (one, _), reader = shared()
    session.tick = lambda: one.offer(w(1.0, 2.0))  # is called where it falls asleep
    assert (reader.latest() or (0,))[0] == 1
    assert woken == [session.arena.base + group.control]


# ------------------------------------------------------------------------------ sleeping and waking
class Sleeps(Session):
    """Notes where its ends would sleep, and ends their wait."""

    def __init__(self, arena: Any) -> None:
        super().__init__(arena, Recorder())
        self.at: list[int] = []

    def wait(self, phase: str, address: int, seen: int) -> None:
        self.at.append(address)
        raise Stopped(phase)


def test_everyone_who_sleeps_is_woken_where_a_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"x": Field((1,), axis=0)}
    program = Wired()
    queue = program.channel(Channel("queue", "queue", one, 1))
    params = program.channel(Channel("params", "params", one))
    total = program.channel(Channel("total", "reduce", one))
    common = program.channel(Channel("common", "shared", one, rule=Momentum()))
    program.role("a", None, replicas=5, out=queue.writer(), total=total.member(), common=common.member())
    program.role("b", None, replicas=2, inp=queue.reader(), params=params.reader(), common=common.reader())
    program.role("c", None, params=params.writer())
    plan = layout.plan(program)
    session = Sleeps(session_of(plan).arena)
    readers = [ports.build(session, plan, program.roles[1], index, 0, 0) for index in range(2)]
    workers = [ports.build(session, plan, program.roles[0], index, 0, 0) for index in range(5)]
    waits = [wait for end in readers for wait in (end["inp"].get, end["params"].latest, end["common"].latest)]
    for wait in waits:
        with pytest.raises(Stopped):
            wait()
    item = {"x": np.zeros(1, np.float32)}
    for end in workers:
        end["out"].put(item)  # all that it has room for
    for end in workers[:4]:
        end["total"].put(item)  # the last one does not
    for wait in (*(end["out"].reserve for end in workers), *(end["total"].get for end in workers[:4])):
        with pytest.raises(Stopped):
            wait()
    woken: list[int] = []
    monkeypatch.setattr(futex, "wake", woken.append)
    bells.ring(session.arena, plan)
    assert len(set(session.at)) == 5 + 2 + 1 + 1 + 1, "writers, readers, parameters, the sum, and the common ones"
    assert set(session.at) <= set(woken)


def test_a_role_is_saved_where_a_port_waits_before_any_port_has_done_anything_in_its_step() -> None:
    plan = plan_of(Channel("c", "queue", {"x": Field((1,))}))
    session, saved, looks = session_of(plan), [], []
    session.at_rest, session.tick = lambda: saved.append(session.fresh), lambda: looks.append(len(saved))
    assert session.fresh
    session.look("wait:c")
    session.fresh = False
    session.look("wait:c")
    assert saved == [True] and looks == [0, 1] and not session.stopping()
    session.arena.words[STOP // 8] = 1
    assert session.stopping()
    with pytest.raises(Stopped, match="the run ended during wait:c"):
        session.wait("wait:c", session.arena.base, 1)
    assert looks == [0, 1]


def test_a_rest_is_time_that_a_role_waits_and_reports_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(plan_of(Channel("c", "queue", {"x": Field((1,))})))
    phases, ticks = list[str](), list[str]()
    session.metrics.show = phases.append
    session.tick = lambda: ticks.append(phases[-1])
    session.rest(0.001)
    assert ticks == ["wait:rest"] and session.metrics.drain().phases["wait:rest"] >= 0.001


def test_a_sleep_ends_after_50_ms_and_a_wake_is_for_all_sleepers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda *given, **more: SimpleNamespace(syscall=lambda *c: calls.append(c)))
    wait, wake = futex._linux(202)
    wait(4096, 7)
    wake(4096)
    (number, address, operation, seen, timeout, *_), woken = calls
    assert (number.value, address.value, operation.value, seen.value) == (202, 4096, 0, 7)
    assert (timeout._obj.seconds, timeout._obj.nanoseconds) == (0, 50_000_000)
    assert [getattr(value, "value", value) for value in woken[:4]] == [202, 4096, 1, 2**31 - 1]


def test_without_futexes_a_word_is_looked_at_until_its_32_bits_change(monkeypatch: pytest.MonkeyPatch) -> None:
    word, clock = ctypes.c_uint64(2**40 + 5), [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if 0.0195 < clock[0] < 0.0205:
            word.value += changes

    monkeypatch.setattr(futex, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    wait, _ = futex._portable()
    for changes, seconds in ((0, 0.05), (2**33, 0.05), (1, 0.02)):
        clock[0] = 0.0
        wait(ctypes.addressof(word), 2**35 + 5)
        assert clock[0] == pytest.approx(seconds, abs=0.0015), changes
    wait(ctypes.addressof(word), 7)
    assert clock[0] == pytest.approx(0.02, abs=0.0015), "it was another already"


@pytest.mark.parametrize("looks, changed", [(1, True), (100, True), (101, False)])
def test_before_it_sleeps_an_end_looks_a_hundred_times(looks: int, changed: bool) -> None:
    class Words:
        left = looks

        def __getitem__(self, at: int) -> int:
            self.left -= 1
            return int(self.left == 0)

    assert futex.soon(Words(), 3, 0) == changed  # type: ignore[arg-type]
