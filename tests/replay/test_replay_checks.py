"""The self-checks of tables and samplers: each single thing that is wrong is found, and called by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counting import Counting, Evict
from naive_sequences import Recurrent

from shoal.api import ShoalError
from shoal.replay import SequenceSpec, TableSpec
from shoal.replay.samplers import live_rows
from shoal.replay.sequence_arrays import FREE, FREE_HEAD, INSERTED, SLOT_HEAD, SLOTS, STARTS
from shoal.replay.user_sampler import UserSampler

Wrong = Callable[[Any, np.ndarray], None]  # spoils a table with these live items


def sequences(sampler: str = "uniform") -> Any:
    """Some with a whole burn-in, some without, some open; rows and slots have been used before."""
    life = Recurrent(0, 6, 2, False, True, seed=0, mean=15)
    table = SequenceSpec(8, 4, 2, 2, 2, stack=2, sampler=sampler).build(life.spec, 1, 0)
    for _ in range(20):
        table.add(life.unroll())
    assert table.check_valid() == (True, "") and table.size == 8 and table.evicted > 20
    return table


def transitions(sampler: str = "uniform", evict: Evict = "fifo", capacity: int = 20) -> Any:
    life = Counting(0, 6, 2, False, True, seed=0)
    spec = TableSpec(capacity, 3, stack=3, sampler=sampler, evict=evict)
    table = spec.build(life.spec, 1, 0)
    for _ in range(capacity):
        table.add(life.unroll())
    assert table.check_valid() == (True, "") and table.size == capacity and table.evicted > 20
    return table


def names(array: str, value: Callable[[Any, np.ndarray], Any], which: int = 3) -> Wrong:
    """Put a value into an array, at a live item."""

    def spoil(table: Any, live: np.ndarray) -> None:
        getattr(table._i if hasattr(table, "_i") else table._r, array)[live[which]] = value(table, live)

    return spoil


def counter(name: int, change: int) -> Wrong:
    def spoil(table: Any, live: np.ndarray) -> None:
        table._counters[name] += change

    return spoil


def whole(table: Any, live: np.ndarray) -> int:
    """A live item with its whole burn-in, and no beginning of an episode."""
    i = table._i
    return int(live[(i.prefix[live] == 2) & (i.flags[live] & STARTS == 0)][0])


def spoiled(array: str, value: int) -> Wrong:
    def spoil(table: Any, live: np.ndarray) -> None:
        getattr(table._i, array)[whole(table, live)] = value

    return spoil


def twice(table: Any, live: np.ndarray) -> None:
    table._order[table._counters[0] % len(table._order)] = live[1]


def referenced(change: int) -> Wrong:
    def spoil(table: Any, live: np.ndarray) -> None:
        table._r.refs[table._i.end[live[0]] if hasattr(table, "_i") else live[0]] += change

    return spoil


def freed(table: Any, live: np.ndarray) -> None:
    """A row that is in use is among the free ones."""
    table._r.free[table._counters[FREE_HEAD] % len(table._r.free)] = int(np.flatnonzero(table._r.refs)[0])


def slot_freed(table: Any, live: np.ndarray) -> None:
    table._i.free[table._counters[SLOT_HEAD] % len(table._i.free)] = live[0]


def later_first(table: Any, live: np.ndarray) -> None:
    """The two oldest have each other's place in time."""
    key, places = table._i.key, len(table._i.key)
    serials = key[live[:2]] // places
    key[live[:2]] = serials[::-1] * places + live[:2]


def more(table: Any, live: np.ndarray) -> None:
    table.inserted += 1


SEQUENCES: dict[str, tuple[Wrong, str]] = {
    "no key": (names("key", lambda *_: -1), "keys are not the live items"),
    "listed twice": (twice, "keys are not the live items"),
    "another's key": (names("key", lambda t, live: t._i.key[live[3]] + 1), "a key does not name its slot"),
    "later first": (later_first, "a later one is not larger"),
    "place": (names("position", lambda t, live: t._i.position[live[3]] + 1), "not where it is said to be"),
    "no steps": (spoiled("length", 0), "longer than a sequence"),
    "a step too many": (spoiled("length", 5), "longer than a sequence"),
    "a burn-in too long": (spoiled("prefix", 3), "longer than a sequence"),
    "a burn-in too short": (spoiled("prefix", 1), "lacks steps to burn in"),
    "a reference too many": (referenced(1), "references of a row are miscounted"),
    "a reference too few": (referenced(-1), "references of a row are miscounted"),
    "a free row in use": (freed, "the free rows are not the rows without references"),
    "a free row lost": (counter(FREE, -1), "the free rows are not the rows without references"),
    "a free slot in use": (slot_freed, "a slot is neither free, open nor an item"),
    "a free slot lost": (counter(SLOTS, -1), "a slot is neither free, open nor an item"),
    "an item lost": (more, "items were lost"),
}
TRANSITIONS: dict[str, tuple[Wrong, str]] = {
    "no key": (names("key", lambda *_: -1), "keys are not the live items"),
    "listed twice": (twice, "keys are not the live items"),
    "another's key": (names("key", lambda t, live: t._r.key[live[3]] + 1), "a key does not name its row"),
    "a key to come": (
        names("key", lambda t, live: t.inserted * len(t._r.key) + live[3]), "a key does not name its row"
    ),
    "place": (names("position", lambda t, live: t._r.position[live[3]] + 1), "not where it is said to be"),
    "a reference too many": (referenced(1), "references of a row are miscounted"),
    "a reference too few": (referenced(-1), "references of a row are miscounted"),
    "a free row in use": (freed, "the free rows are not the rows without references"),
    "a free row lost": (counter(FREE, -1), "the free rows are not the rows without references"),
    "more than inserted": (counter(INSERTED, 1), "the counters disagree"),
    "another size": (lambda t, live: setattr(t, "size", t.size + 1), "the counters disagree"),
    "an item lost": (
        lambda t, live: (more(t, live), counter(INSERTED, 1)(t, live))[0],  # type: ignore[func-returns-value]
        "items were lost",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SEQUENCES)
def test_a_table_of_sequences_finds_what_is_wrong(case: str) -> None:
    table, (wrong, told) = sequences(), SEQUENCES[case]
    wrong(table, live_rows(table._order, table._counters))
    found, why = table.check_valid()
    assert not found and told in why


@pytest.mark.parametrize("case", TRANSITIONS)
def test_a_table_of_transitions_finds_what_is_wrong(case: str) -> None:
    table, (wrong, told) = transitions(), TRANSITIONS[case]
    wrong(table, live_rows(table._order, table._counters))
    found, why = table.check_valid()
    assert not found and told in why


@pytest.mark.parametrize("build", [sequences, transitions])
@pytest.mark.parametrize("sampler", ["proportional", "greedy"])
@pytest.mark.parametrize(
    "where,told", [("live", "level 1"), ("first", "level 1"), ("node", "level 1"), ("dead", "are not the live items")]
)
def test_a_tree_that_is_wrong_is_found(build: Any, sampler: str, where: str, told: str) -> None:
    """A leaf that its parent does not know, the first and another; a parent that is not that of its leaves; a leaf of
    what is no item."""
    table = build(sampler)
    tree, offsets = table.sampler.tree, table.sampler.offsets
    live = live_rows(table._order, table._counters)
    dead = np.setdiff1d(np.arange(len(table._order)), live)
    at = {"live": live[-1], "first": live[0], "node": offsets[1] + live[0] // 8, "dead": dead[-1]}[where]
    tree[at] = tree[at] * 1.5 + 9.0
    found, why = table.check_valid()
    assert not found and told in why and sampler in why
    tree[at] = 0.0
    assert not table.check_valid()[0] or where == "dead"


def test_the_top_of_a_tree_that_is_wrong_is_found() -> None:
    table = transitions("proportional", capacity=100)
    offsets = table.sampler.offsets
    assert len(offsets) == 4
    table.sampler.tree[offsets[-2]] *= 1.001
    assert f"level {len(offsets) - 2}" in table.check_valid()[1]


def heap_swapped(sampler: Any) -> None:
    sampler.heap[[0, -1 + sampler.counts[0]]] = sampler.heap[[-1 + sampler.counts[0], 0]]


@pytest.mark.parametrize(
    "wrong,told",
    [
        (lambda s: s.heap.__setitem__(0, s.heap[1]), "does not hold the live items"),
        (lambda s: s.counts.__isub__([1, 0]), "does not hold the live items"),
        (heap_swapped, "an item is not where it is said to be"),
        (lambda s: s.weight.__setitem__(s.heap[s.counts[0] - 1], 99.0), "a parent of the heap is smaller"),
        (lambda s: s.weight.__setitem__(s.heap[0], 0.0), "a parent of the heap is smaller"),
        (lambda s: s.weight.__setitem__(s.heap[1], 99.0), "a parent of the heap is smaller"),
    ],
)
def test_a_heap_that_is_wrong_is_found(wrong: Callable[[Any], None], told: str) -> None:
    table = transitions("rank")
    wrong(table.sampler)
    found, why = table.check_valid()
    assert not found and told in why


def test_the_sampler_that_evicts_is_checked_too() -> None:
    table = transitions("uniform", "proportional")
    table._evictor.tree[live_rows(table._order, table._counters)[0]] *= 2
    found, why = table.check_valid()
    assert not found and why.startswith("proportional: a node of level 1")


def test_an_item_that_is_listed_twice_is_found_by_the_uniform_sampler() -> None:
    table = transitions()
    twice(table, live_rows(table._order, table._counters))
    assert table.sampler.check_valid() == (False, "uniform: an item is listed twice")


@pytest.mark.parametrize("prob, told", [(0.0, True), (1e-9, False), (1.0, False), (1.1, True)])
def test_an_item_that_is_drawn_has_a_probability_above_0_and_at_most_1(prob: float, told: bool) -> None:
    class Said:
        def __init__(self, *given: Any) -> None: ...

        def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None: ...

        def draw(self, rows: np.ndarray, probs: np.ndarray) -> None:
            rows[:], probs[:] = 2, prob

    sampler = UserSampler(Said, {}, np.array([2, 0, 0], np.int32), np.array([0, 1]), np.zeros(4, np.uint64), 0.5)
    sampler.insert(np.array([2], np.int32), np.ones(1, np.float32))
    rows, probs = np.zeros(3, np.int32), np.zeros(3)
    if told:
        with pytest.raises(ShoalError, match=f"every probability above 0 and at most 1, found {prob:g} in probs"):
            sampler.draw(rows, probs)
        return
    sampler.draw(rows, probs)
    assert rows.tolist() == [2] * 3 and probs.tolist() == [prob] * 3
