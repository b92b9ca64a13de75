"""Reduce channels, boards and parameters in shared memory, in one process: sums, counts and versions, and what of them
is saved, worked out by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from channels import plan_of, session_of
from programs import Wired

from shoal import api
from shoal.api import Field
from shoal.metering.recorder import Recorder
from shoal.program import Channel
from shoal.shm import board, futex, group_layout, layout, store
from shoal.shm.board import BoardEnd
from shoal.shm.group_layout import BoardLayout, ReduceLayout
from shoal.shm.layout import CHECKPOINT
from shoal.shm.reduce import ReduceEnd
from shoal.shm.session import Session
from shoal.shm.store import StoreReader, StoreWriter
from shoal.types import State

pytestmark = pytest.mark.timeout(20)


def members(channel: Channel, count: int) -> tuple[Session, Any]:
    """A session, and where a channel between so many equals lies."""
    program = Wired()
    program.channel(channel)
    program.role("member", None, replicas=count, end=channel.member())
    plan = layout.plan(program)
    return session_of(plan), plan.groups[channel.name]


# ----------------------------------------------------------------------------------------- reduce
FIVE = {"g": Field((5,), "float64", 0)}
PUT = [[1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0, 30.0, 40.0, 50.0], [100.0, 200.0, 300.0, 400.0, 500.0]]
SUM = [111.0, 222.0, 333.0, 444.0, 555.0]


def reducers(count: int, mean: bool = False, spec: api.Spec = FIVE) -> list[ReduceEnd]:
    """The ends of so many members, each with a session of its own in one memory."""
    first, group = members(Channel("c", "reduce", spec, mean=mean), count)
    assert isinstance(group, ReduceLayout)
    return [ReduceEnd(Session(first.arena, Recorder()), group, member) for member in range(count)]


def put(ends: list[ReduceEnd], factor: float = 1.0) -> None:
    for end, row in zip(ends, PUT, strict=False):
        end.put({"g": factor * np.array(row)})


def get(ends: list[ReduceEnd]) -> list[list[float]]:
    """What each gets. Each adds its part where another would sleep until it has."""
    found: dict[int, list[float]] = {}

    def take(member: int) -> None:
        if member not in found:
            found[member] = []
            found[member] = ends[member].get()["g"].tolist()

    for member, end in enumerate(ends):
        end._session.tick = partial(take, (member + 1) % len(ends))
    for member in range(len(ends)):
        take(member)
    return [found[member] for member in range(len(ends))]


@pytest.fixture
def shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member adds a part of the result, however small it is."""
    monkeypatch.setattr(group_layout, "SMALL_REDUCE_BYTES", 0)


def test_the_mean_is_the_sum_divided_by_the_members() -> None:
    for mean, result in ((False, SUM), (True, [37.0, 74.0, 111.0, 148.0, 185.0])):
        ends = reducers(3, mean)
        put(ends)
        assert get(ends) == [result] * 3


@pytest.mark.usefixtures("shared_out")
@pytest.mark.parametrize("mean", [False, True])
def test_the_parts_that_the_members_add_are_all_of_a_result_also_if_they_are_not_equal(mean: bool) -> None:
    """Of 5 elements 3 members add 1, 2 and 2."""
    ends = reducers(3, mean)
    assert [[len(out) for out, _ in end._parts[0]] for end in ends] == [[1], [2], [2]]
    for factor in (1.0, -1.0, 2.0):
        put(ends, factor)
        assert get(ends) == [[factor * total / (3 if mean else 1) for total in SUM]] * 3


def test_members_agree_on_the_checkpoint_that_all_of_them_knew_when_they_put() -> None:
    ends = reducers(2)
    words = ends[0]._session.arena.words
    for asked, agreed in (((0, 0), 0), ((0, 1), 0), ((1, 1), 1), ((2, 1), 1), ((2, 2), 2)):
        for end, words[CHECKPOINT // 8] in zip(ends, asked, strict=True):
            end.put({"g": np.zeros(5)})
        get(ends)
        assert [end.agreed for end in ends] == [agreed] * 2


def restored(ends: list[ReduceEnd], states: list[State]) -> None:
    for end, state in zip(ends, states, strict=True):
        end.load_state_dict(state, lambda: states)


def test_members_go_on_with_what_each_has_put_and_not_got() -> None:
    ends = reducers(2)
    put(ends)
    get(ends)
    put(ends[:1], 3.0)  # the other is still at its step
    states = [end.state_dict() for end in ends]
    again = reducers(2)
    restored(again, states)
    assert [end.pending for end in again] == [True, False]
    assert [(state["puts"], state["gets"]) for state in (end.state_dict() for end in again)] == [(2, 1), (1, 1)]
    again[1].put({"g": np.ones(5)})
    assert get(again) == [[4.0, 7.0, 10.0, 13.0, 16.0]] * 2


@pytest.mark.usefixtures("shared_out")
@pytest.mark.parametrize("parts", ["saved", "not saved"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_member_finds_the_part_of_one_that_had_got_the_round_before_it_was_saved(parts: str, rounds: int) -> None:
    """Member 0 had got the round, member 1 had not yet: what the first added is saved with it or, by an end that shares
    out no result, added again."""
    ends = reducers(2)
    for factor in range(1, rounds):
        put(ends, 7.0 * factor)
        get(ends)
    put(ends)
    behind = ends[1].state_dict()
    get(ends)
    states = [ends[0].state_dict(), behind]
    if parts == "not saved":
        states = [{**state, "parts": [[], []]} for state in states]
    again = reducers(2)
    restored(again, states)
    assert [end.pending for end in again] == [False, True]
    assert again[1].get()["g"].tolist() == [11.0, 22.0, 33.0, 44.0, 55.0]


# ------------------------------------------------------------------------------------- parameters
def versions(published: int) -> tuple[StoreWriter, StoreReader]:
    """Both ends after so many versions; each is full of its number."""
    plan = plan_of(Channel("c", "params", {"w": Field((2,))}))
    session = session_of(plan)
    writer, reader = StoreWriter(session, plan.stores["c"]), StoreReader(session, plan.stores["c"])
    for number in range(1, published + 1):
        writer.publish({"w": torch.full((2,), float(number))})
    return writer, reader


@pytest.mark.parametrize("already, number", [(0, 3), (1, 3), (2, 3), (3, 4), (7, 8)])
def test_saved_parameters_keep_their_number_unless_a_later_one_was_read(already: int, number: int) -> None:
    saved = versions(3)[0].state_dict()
    assert saved["version"] == 3
    writer, reader = versions(already)
    writer.load_state_dict(saved)
    version, params = reader.latest() or (0, {})
    assert (version, params["w"].tolist()) == (number, [3.0, 3.0]) and writer.version == number
    assert writer.publish({"w": torch.zeros(2)}) == number + 1


def test_parameters_that_were_never_published_are_none_after_all() -> None:
    writer, reader = versions(0)
    writer.load_state_dict(versions(0)[0].state_dict())
    assert writer.version == 0 and not reader.ready()


def test_a_version_of_another_arena_keeps_its_number_and_is_placed_once() -> None:
    numbers, flats = [], []
    for published in (3, 2, 3, 4):
        flats.append(np.zeros_like(versions(published)[1].flat))
        numbers.append(versions(published)[1].copy(flats[-1]))
    writer, reader = versions(0)
    arena, where, found = writer._session.arena, writer._layout, list[Any]()
    for number, flat in zip(numbers, flats, strict=True):
        store.place(arena, where, number, flat if len(found) != 2 else 0 * flat)  # the third is there already
        version, params = reader.latest() or (0, {})
        kept = store.read(arena, where) or {}
        found.append((version, params["w"].tolist(), kept["w"].tolist()))
    three, four = [3.0, 3.0], [4.0, 4.0]
    assert found == [(3, three, three)] * 3 + [(4, four, four)]


@pytest.mark.parametrize("placed", [False, True])
def test_who_waits_for_parameters_is_woken_by_the_first(placed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(futex, "wake", woken.append)
    (writer, reader), given = versions(0), np.zeros_like(versions(1)[1].flat)
    versions(1)[1].copy(given)
    session, where = writer._session, writer._layout

    def come() -> None:  # is called where it falls asleep
        if placed:
            store.place(session.arena, where, 1, given)
        else:
            writer.publish({"w": torch.ones(2)})

    session.tick = come
    assert (reader.latest() or (0, {}))[1]["w"].tolist() == [1.0, 1.0]
    assert woken == [session.arena.base + where.control]
    for _ in range(3):
        writer.publish({"w": torch.zeros(2)})
    assert len(woken) <= 2, "it does not sleep any more, which the first of these has yet to learn"


# ----------------------------------------------------------------------------------------- boards
def boards() -> tuple[Session, BoardLayout, list[BoardEnd]]:
    session, group = members(Channel("c", "board", {"n": Field((), "int64")}), 2)
    assert isinstance(group, BoardLayout)
    return session, group, [BoardEnd(session, group, row) for row in (0, 1)]


def lines(session: Session, group: BoardLayout) -> list[list[int]]:
    """Of each writer: rows put; the row begun last in either draft."""
    found: list[list[int]] = session.arena.array(group.lines, (2, layout.LINE), np.int64)[:, :3].tolist()
    return found


def test_a_board_goes_on_with_the_rows_that_were_saved_and_their_counts() -> None:
    session, group, ends = boards()
    for row, numbers in ((0, (5, 6, 7)), (1, (8, 9))):
        for number in numbers:
            ends[row].put({"n": np.array(number)})
    state = board.state_dict(session.arena, group)
    assert state["rows"]["n"].tolist() == [7, 9] and state["puts"].tolist() == [3, 2]
    session, group, ends = boards()
    board.load_state_dict(session.arena, group, state)
    assert lines(session, group) == [[3, 0, 3], [2, 2, 0]]
    rows, puts = ends[0].get()
    assert rows["n"].tolist() == [7, 9] and puts.tolist() == [3, 2]
    ends[1].put({"n": np.array(10)})
    rows, puts = ends[0].get()
    assert rows["n"].tolist() == [7, 10] and puts.tolist() == [3, 3]


def test_a_row_of_another_arena_is_written_once_and_none_that_is_older() -> None:
    """A reader may be copying the row that lies there."""
    session, group, ends = boards()
    came = []
    ends[1].put({"n": np.array(7)})
    for number, value in ((2, 20), (2, 21), (1, 10), (5, 50), (4, 40)):
        board.place(session.arena, group, 0, number, {"n": np.array(value)})
        rows, puts = ends[0].get()
        came.append((int(rows["n"][0]), int(puts[0])))
    assert came == [(20, 2), (20, 2), (20, 2), (50, 5), (50, 5)]
    assert (rows["n"].tolist(), puts.tolist()) == ([50, 7], [5, 1]), "the other writer's row is its own"
