"""Counts, bounds and edges of replay tables: who waits at which number, what a tree and a heap do at every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from present import present
from test_replay_sampling import chain, filled, spec_of

from shoal.api import Field, WiringError
from shoal.replay import RateLimiter, Ratio, SequenceSpec, TableSpec, check, sampling_kernels as kernels
from shoal.replay.layout import tree_offsets


# --------------------------------------------------------------------------------------- who waits
@pytest.mark.parametrize("per_insert,slack", [(2.0, 7.0), (0.5, 7.0), (1.0, 12.5)])
@pytest.mark.parametrize("items,batch", [(1, 1), (4, 3)])
def test_both_sides_wait_exactly_where_the_ratio_says(per_insert: float, slack: float, items: int, batch: int) -> None:
    """``|per_insert * (inserted - min_size) - sampled| <= slack`` after the step, from ``min_size`` items on."""
    ratio = Ratio(10, per_insert, slack)
    limiter = RateLimiter(ratio, items)
    for inserted in range(40):
        for sampled in range(60):
            after = inserted + items - 10
            assert limiter.can_insert(inserted, sampled) == (after <= 0 or per_insert * after - sampled <= slack)
            may = inserted >= 10 and per_insert * (inserted - 10) - (sampled + batch) >= -slack
            assert limiter.can_sample(inserted, inserted, sampled, batch) == may
            rate = sampled / (inserted - 10) if inserted > 10 else None
            assert limiter.samples_per_insert(inserted, sampled) == rate


def test_a_table_is_sampled_from_its_first_item_on() -> None:
    """Whatever was inserted, an empty table cannot be sampled; without a ratio nobody waits for the other."""
    free = RateLimiter(Ratio())
    assert free.can_sample(1, 1, 10**6, 512) and not free.can_sample(0, 0, 0, 1) and not free.can_sample(0, 5, 0, 1)
    assert free.can_insert(10**6, 0)
    waits = RateLimiter(Ratio(3))
    assert not waits.can_sample(2, 2, 0, 1) and waits.can_sample(3, 3, 0, 1) and waits.can_sample(1, 3, 0, 1)
    assert RateLimiter(Ratio(3, 1.0, 4.0)).items_per_insert == 1 and Ratio().min_size == 1


def test_a_slack_is_met_where_rounding_would_miss_it() -> None:
    """0.1 * 3 is a little more than 0.3: both sides meet there."""
    limiter = RateLimiter(Ratio(1, 0.1, 0.3))
    assert 0.1 * 3 > 0.3 and limiter.can_insert(3, 0) and not limiter.can_insert(4, 0)
    many = RateLimiter(Ratio(1, 1 / 3, 1.0))
    inserted = 3 * 10**7 + 1
    assert many.can_insert(inserted + 2, 10**7) and not many.can_insert(inserted + 3, 10**7)


@pytest.mark.parametrize(
    "ratio,batch,capacity,told",
    [
        (Ratio(10), 0, None, "at least 1, got 0 and 10"), (Ratio(0), 1, None, "at least 1, got 1 and 0"),
        (Ratio(11), 1, 10, "wait for 11 items, but the table holds 10"), (Ratio(10), 1, 10, ""),
        (Ratio(1, 0.0), 1, None, "must be positive"), (Ratio(1, 2.0, 9.0), 8, None, ""),
        (Ratio(1, 2.0, 8.9), 8, None, "at least 9"), (Ratio(1, 2.0, 8.0), 1, None, ""),
        (Ratio(1, 2.0, 7.9), 1, None, "at least 8"),
    ],
)  # fmt: skip
def test_ratios_are_refused_at_their_bounds(ratio: Ratio, batch: int, capacity: int | None, told: str) -> None:
    """5 items an insertion."""
    if not told:
        check(ratio, batch, 5, capacity)
        return
    with pytest.raises(WiringError, match=told):
        check(ratio, batch, 5, capacity)


# ----------------------------------------------------------------------------------- trees and heaps
SIZES = [1, 7, 8, 9, 63, 64, 65, 513]


def rng(seed: int = 0) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(4, np.uint64)


def tree_of(weights: np.ndarray, alpha: float, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    offsets = tree_offsets(len(weights))
    tree = np.zeros(int(offsets[-1]))
    kernels.tree_set(tree, offsets, np.arange(len(weights), dtype=np.int32), weights, alpha, largest)
    return tree, offsets


def check_tree(tree: np.ndarray, offsets: np.ndarray, leaves: np.ndarray, reduce: Any) -> None:
    np.testing.assert_allclose(tree[: len(leaves)], leaves, rtol=1e-6)
    assert offsets[-1] - offsets[-2] == 8, "the top has 8 nodes"
    below = tree[offsets[0] : offsets[1]]
    for level in range(1, len(offsets) - 1):
        nodes = reduce(below.reshape(-1, 8), axis=1)
        here = tree[offsets[level] : offsets[level + 1]]
        np.testing.assert_allclose(here[: len(nodes)], nodes, rtol=1e-12)
        assert not here[len(nodes) :].any()
        below = here


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("largest", [False, True])
def test_every_node_of_a_tree_is_that_of_its_children(size: int, largest: bool) -> None:
    """Set, set again with duplicates (the last wins), and cleared."""
    rand = np.random.default_rng(size)
    weights = rand.uniform(0.1, 4.0, size).astype(np.float32)
    tree, offsets = tree_of(weights, 0.5, largest)
    reduce = np.max if largest else np.sum
    power = 1.0 if largest else 0.5
    check_tree(tree, offsets, weights.astype(np.float64) ** power, reduce)
    rows = np.array([size - 1, 0, size // 2, 0], np.int32)
    values = np.array([9.0, 5.0, 0.25, 0.01], np.float32)
    kernels.tree_set(tree, offsets, rows, values, 0.5, largest)
    for row, value in zip(rows, values, strict=True):
        weights[row] = value
    check_tree(tree, offsets, weights.astype(np.float64) ** power, reduce)
    kernels.tree_clear(tree, offsets, np.array([size - 1], np.int32), largest)
    leaves = weights.astype(np.float64) ** power
    leaves[size - 1] = 0.0
    check_tree(tree, offsets, leaves, reduce)


@pytest.mark.parametrize("size", SIZES)
def test_a_draw_descends_to_the_leaf_at_its_cumulative_weight(size: int) -> None:
    """Everywhere: a little before and after the edge of each leaf; never in one without weight."""
    weights = np.random.default_rng(size).integers(0, 4, size).astype(np.float64)
    weights[size // 2] = 3.0
    tree, offsets = tree_of(weights, 1.0, False)
    edges = np.cumsum(weights)
    draws = np.unique(np.concatenate([edges - 0.25, edges + 0.25, edges, [0.0]]))
    draws = draws[(draws >= 0) & (draws < edges[-1])]
    rows = np.empty(len(draws), np.int32)
    kernels._descend(tree, offsets, draws.copy(), rows)
    assert rows.tolist() == np.searchsorted(edges, draws, side="right").tolist()
    over, rows = np.array([edges[-1], edges[-1] + 1.0]), np.empty(2, np.int32)
    kernels._descend(tree, offsets, over, rows)  # rounding may bring it there
    assert set(rows.tolist()) == {int(np.flatnonzero(weights)[-1])}


@pytest.mark.parametrize("size", SIZES)
def test_one_draw_in_each_equal_part(size: int) -> None:
    weights = np.random.default_rng(size).uniform(0.5, 2.0, size)
    tree, offsets = tree_of(weights, 1.0, False)
    rows, probs, state = np.empty(32, np.int32), np.empty(32, np.float32), rng()
    edges = np.concatenate([[0.0], np.cumsum(weights)])
    seen = set()
    for _ in range(20):
        total = kernels.tree_draw(tree, offsets, state, rows, probs)
        assert total == pytest.approx(edges[-1])
        np.testing.assert_allclose(probs, weights[rows] / edges[-1], rtol=1e-6)
        parts = np.arange(32) * (edges[-1] / 32)
        assert (edges[rows + 1] > parts - 1e-9).all() and (edges[rows] < parts + edges[-1] / 32 + 1e-9).all()
        seen.add(tuple(rows.tolist()))
    assert len(seen) > 1 or size == 1


def test_items_are_taken_once_each() -> None:
    tree, offsets = tree_of(np.arange(1.0, 41.0), 1.0, False)
    rows = np.empty(40, np.int32)
    kernels.tree_take(tree, offsets, rng(), rows)
    assert sorted(rows.tolist()) == list(range(40)) and not tree.any() and rows.tolist() != sorted(rows.tolist())


@pytest.mark.parametrize("n", [1, 5, 20, 47])
def test_the_largest_come_first_and_then_again(n: int) -> None:
    weights = np.random.default_rng(1).permutation(np.arange(1.0, 21.0))
    tree, offsets = tree_of(weights, 1.0, True)
    before, rows, saved = tree.copy(), np.empty(n, np.int32), np.empty(n)
    kernels.tree_top(tree, offsets, 20, rows, saved)
    order = np.argsort(-weights)
    assert rows.tolist() == [int(order[i % 20]) for i in range(n)]
    np.testing.assert_array_equal(tree, before)


def test_a_uniform_draw_is_of_the_ring_of_live_items() -> None:
    """Which wraps around; every one of them, and no other."""
    order, counters = np.arange(100, 110, dtype=np.int32), np.array([7, 6])
    rows, probs = np.empty(500, np.int32), np.empty(500, np.float32)
    kernels.uniform_draw(order, counters, rng(), rows, probs)
    assert set(rows.tolist()) == {107, 108, 109, 100, 101, 102} and set(probs.tolist()) == {np.float32(1 / 6)}


class Heap:
    def __init__(self, places: int) -> None:
        self.heap, self.where = np.full((2, places), -1, np.int32)
        self.weight, self.counts = np.zeros(places, np.float32), np.zeros(2, np.int64)
        self.live: dict[int, float] = {}

    def set(self, rows: list[int], values: list[float], new: bool) -> None:
        arrays = np.array(rows, np.int32), np.array(values, np.float32)
        kernels.heap_set(self.heap, self.where, self.weight, self.counts, *arrays, new)
        self.live.update(zip(rows, arrays[1].tolist(), strict=True))
        self.check()

    def clear(self, rows: list[int]) -> None:
        kernels.heap_clear(self.heap, self.where, self.weight, self.counts, np.array(rows, np.int32))
        for row in rows:
            del self.live[row]
        self.check()

    def check(self) -> None:
        size = int(self.counts[0])
        heap = self.heap[:size].tolist()
        assert sorted(heap) == sorted(self.live)
        assert [int(self.where[row]) for row in heap] == list(range(size))
        weights = [self.live[row] for row in heap]
        assert all(weights[(i - 1) // 2] >= weights[i] for i in range(1, size))


def test_a_heap_keeps_its_order_whatever_changes() -> None:
    """And counts what has, until it is sorted."""
    rand, heap, changes = np.random.default_rng(3), Heap(40), 0
    heap.set(list(range(30)), rand.uniform(0, 9, 30).tolist(), True)
    for _ in range(60):
        rows = rand.choice(sorted(heap.live), 3, replace=False).tolist()
        heap.set(rows, rand.uniform(0, 9, 3).tolist(), False)
        gone = rand.choice(sorted(heap.live), 2, replace=False).tolist()
        heap.clear(gone)
        heap.set(gone, rand.uniform(0, 9, 2).tolist(), True)
        changes += 7
        assert int(heap.counts[1]) == 30 + changes and int(heap.counts[0]) == 30
    kernels.heap_sort(heap.heap, heap.where, heap.weight, heap.counts)
    heap.check()
    ranked = [heap.live[row] for row in heap.heap[:30].tolist()]
    assert ranked == sorted(ranked, reverse=True) and heap.counts[1] == 0
    heap.clear(sorted(heap.live))
    assert heap.counts[0] == 0


@pytest.mark.parametrize("size,n", [(1, 4), (7, 7), (20, 3), (20, 64)])
def test_a_draw_by_ranks_is_one_in_each_segment(size: int, n: int) -> None:
    mass = np.concatenate([[0.0], np.cumsum(np.arange(1, 31.0) ** -0.7)])
    heap, rows, probs, state = np.arange(30, dtype=np.int32)[::-1].copy(), np.empty(n, np.int32), np.empty(n), rng()
    total = mass[size]
    for _ in range(30):
        kernels.heap_draw(heap, mass, np.array([size, 0]), state, rows, probs)
        ranks = 29 - rows  # from 0
        assert (ranks >= 0).all() and (ranks < size).all()
        np.testing.assert_allclose(probs, (mass[ranks + 1] - mass[ranks]) / total)
        begin = np.arange(n) * total / n
        assert (mass[ranks + 1] > begin - 1e-9).all() and (mass[ranks] < begin + total / n + 1e-9).all()


def test_ranks_are_sorted_anew_after_as_many_changes_as_there_are_places() -> None:
    table = filled(TableSpec(20, sampler="rank"), 20)
    sampler: Any = table.sampler
    places = len(sampler.heap)
    assert len(sampler.cumulative) == places + 1 and sampler.cumulative[0] == 0.0 and sampler.cumulative[1] == 1.0
    sampler.sort()
    keys = present(table.sample(1).keys).numpy().copy()
    for change in range(1, places + 1):
        table.reprioritise(keys, np.array([float(change)], np.float32))
        assert int(sampler.counts[1]) == change % places, "with the last of them"


@pytest.mark.parametrize("items", [1, 8, 9, 70])
def test_the_mass_is_the_sum_of_all_weights(items: int) -> None:
    table = filled(TableSpec(items, sampler="proportional", alpha=0.5, eps=1.0), items)
    keys = np.unique(present(table.sample(512).keys).numpy())
    table.reprioritise(keys, np.arange(len(keys), dtype=np.float32))
    live = table._r.key >= 0
    assert table.mass() == pytest.approx((table._priority[live].astype(np.float64) ** 0.5).sum())
    assert filled(TableSpec(items), items).mass() == items


# ------------------------------------------------------------------------------------- sizes and specs
def test_the_fields_of_a_batch_are_what_is_sampled() -> None:
    unroll = chain([0.0] * 8, [0.0] * 8, [0.0] * 8)
    unroll["extra"] = np.zeros((8, 1, 3), np.uint8)
    spec = TableSpec(6)
    table = spec.build(spec_of(unroll), 1, 0)
    table.add(unroll)
    fields = spec.batch(spec_of(unroll), 5)
    found = table.sample(5).items
    assert {name: (f.shape, f.dtype) for name, f in fields.items()} == {
        name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in found.items()
    }
    assert {f.axis for f in fields.values()} == {0} and "extra" in fields and "next/obs" in fields


@pytest.mark.parametrize(
    "options,rows",
    [
        (dict(), 800 + 800 // 8 + 12 + 2 * 3 * (1 + 2)), (dict(n_step=5), 800 + 100 + 12 + 6 * 7),
        (dict(stack=4), 800 + 100 + 12 + 6 * 9), (dict(evict_every=50), 800 + 100 + 50 + 12 + 18),
        (dict(evict="proportional"), 1_600 + 200 + 12 + 18),
    ],
)  # fmt: skip
def test_rows_are_those_of_the_items_and_the_open_windows(options: dict[str, Any], rows: int) -> None:
    """Unrolls of 4 steps of 3 environments, of two writers."""
    spec = TableSpec(800, **options)
    lead = (4, 3)
    fields = {"obs": Field((*lead, 2)), "action": Field(lead, "int64"), "reward": Field(lead)}
    fields |= {name: Field(lead, "bool") for name in ("terminated", "truncated", "valid", "first")}
    assert spec.rows(spec.layout(fields), 2) == rows
    assert spec.items_per_insert(fields) == 12
    wide = {**fields, "obs": Field((*lead, 300))}
    assert spec.rows(spec.layout(wide), 2) == rows - (rows_extra := (1_600 if "evict" in options else 800)) // 8 + (
        rows_extra // 64
    )
    both = {**fields, "final/obs": Field((*lead, 2))}
    assert spec.rows(spec.layout(both), 2) == rows + 12, "each of the steps may end an episode"


def test_a_table_has_at_most_so_many_rows_as_its_links_can_name() -> None:
    fields = spec_of(chain([0.0], [0.0], [0.0]))
    with pytest.raises(WiringError, match=r"at most 2\*\*31 - 1 rows"):
        TableSpec(2**31 - 1).arrays(fields)


@pytest.mark.parametrize("steps,stride,items", [(8, 4, 2), (9, 4, 3), (1, 40, 1), (40, 40, 1), (41, 40, 2)])
def test_sequences_that_an_insertion_brings(steps: int, stride: int, items: int) -> None:
    fields = {name: Field((steps, 3, *f.shape[2:]), f.dtype) for name, f in spec_of(chain([0.0], [0.0], [0.0])).items()}
    assert SequenceSpec(10, 80, stride).items_per_insert(fields) == 3 * items


@pytest.mark.parametrize("burn_in,stack,wanted", [(3, 1, 3), (3, 3, 5), (0, 2, 1), (0, 1, 0), (2, 2, 3)])
def test_after_a_gap_a_sequence_begins_behind_its_burn_in_and_a_whole_stack(
    burn_in: int, stack: int, wanted: int
) -> None:
    """A stream that does not begin with an episode: nothing is known of the frames before."""
    steps = 30
    unroll = chain([0.0] * steps, [0.0] * steps, [0.0] * steps)
    unroll["first"][0] = False
    unroll["obs"] = np.arange(steps, dtype=np.float32)[:, None, None, None, None] * np.ones((1, 1, 1, 2, 2), np.float32)
    spec = SequenceSpec(50, 4, 4, burn_in, n_step=1, stack=stack, sampler="uniform")
    table = spec.build(spec_of(unroll), 1, 0)
    table.add(unroll)
    found = table.sample(256).items
    assert float(found["obs"][burn_in, :, -1, 0, 0].min()) == wanted
    assert float(found["obs"][0].min()) == wanted - burn_in - (stack - 1) == 0.0, "from the first frame there is"


def stream(steps: int, envs: int, **more: Field) -> dict[str, Field]:
    lead = (steps, envs)
    out = {"obs": Field((*lead, 2)), "action": Field(lead, "int64"), "reward": Field(lead)}
    return out | {name: Field(lead, "bool") for name in ("terminated", "truncated", "valid", "first")} | more


@pytest.mark.parametrize("width,part", [(253, 8), (254, 8), (255, 64)])
def test_rows_above_a_kilobyte_get_fewer_extra_ones(width: int, part: int) -> None:
    """4 * 254 bytes of an observation and 8 of an action are one KB."""
    fields = {**stream(4, 3), "obs": Field((4, 3, width))}
    spec = TableSpec(6_400)
    assert spec.rows(spec.layout(fields), 1) == 6_400 + 6_400 // part + 12 + 3 * 3


SAMPLERS = {
    "uniform": {},
    "proportional": {"tree": "float64", "offsets": "int64"},
    "rank": {"heap": "int32", "where": "int32", "weight": "float32", "counts": "int64"},
}


def shapes(arrays: Any, *groups: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (shape, _) in arrays.items() if name.startswith(groups)}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("same_step", [False, True])
def test_arrays_of_transitions_are_as_large_as_what_they_hold(sampler: str, same_step: bool) -> None:
    """Two writers with 3 environments, unrolls of 4 steps, windows of 5 steps, stacks of 2: 6 streams, 12 steps."""
    fields = stream(4, 3, **({"final/obs": Field((4, 3, 2)), "final/q_max": Field((4, 3))} if same_step else {}))
    spec = TableSpec(80, 5, stack=2, sampler=sampler, evict="proportional")
    arrays, rows = spec.arrays(fields, 2), spec.rows(spec.layout(fields), 2)
    assert rows == 160 + 20 + (24 if same_step else 12) + 6 * (5 + 4)
    assert arrays["rows/data"] == ((rows, 16), "uint8") and arrays["counters"] == ((8,), "int64")
    assert set(shapes(arrays, "rows/").values()) == {(rows, 16), (rows,)}
    of_streams = {name.partition("/")[2]: shape for name, shape in shapes(arrays, "streams/").items()}
    assert of_streams == {
        **dict.fromkeys(("pushed", "held", "length", "known", "ended"), (6,)), "generation": (2,),
        **dict.fromkeys(("hold", "reward", "q"), (6, 7)),
    }  # fmt: skip
    scratch = shapes(arrays, "scratch/")
    news = {scratch.pop(f"scratch/{name}") for name in ("new_rows", "new_deltas")}
    assert news == {(12 + 3 * 5,)} and scratch.pop("scratch/victims") == (rows,)
    assert set(scratch.values()) == {(12,)} and len(scratch) == 10
    nodes = int(tree_offsets(rows)[-1])
    assert shapes(arrays, "evictor/") == {"evictor/tree": (nodes,), "evictor/offsets": tree_offsets(rows).shape}
    found = {name.partition("/")[2]: dtype for name, (_, dtype) in arrays.items() if name.startswith("sampler/")}
    assert found == SAMPLERS[sampler]
    if sampler == "rank":
        assert {arrays[f"sampler/{name}"][0] for name in ("heap", "where", "weight")} == {(rows,)}
        assert arrays["sampler/counts"][0] == (2,)
    assert spec.nbytes(fields, 2) == sum(
        int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in arrays.values()
    )


@pytest.mark.parametrize("probes", [False, True])
@pytest.mark.parametrize("same_step", [False, True])
def test_arrays_of_sequences_are_as_large_as_what_they_hold(same_step: bool, probes: bool) -> None:
    """Sequences of 6 steps, one every 4, behind 5 to burn in: 12 rows of a batch, and at most 4 of a stream open."""
    state = {"state/h": Field((4, 3, 5)), "state/c": Field((4, 3, 2), "int32")}
    fields = stream(4, 3, **state, **({"final/obs": Field((4, 3, 2))} if same_step else {}))
    spec = SequenceSpec(30, 6, 4, 5, stack=2, probes=probes, initial="max")
    assert (spec.steps, spec.open, spec.hold, spec.state_bytes(fields)) == (12, 4, 14, 28)
    layout, unroll = spec.layout(fields), 24 if same_step else 12
    assert spec.appended(layout) == unroll and layout.row_bytes == 16
    rows, slots = 30 * 4 + unroll + 6 * 14 + 12, 30 + 6 * 4 + 12 * (1 + 1)
    arrays = spec.arrays(fields, 2)
    assert arrays["rows/data"] == ((rows, 16), "uint8") and arrays["counters"] == ((10,), "int64")
    assert set(shapes(arrays, "rows/").values()) == {(rows, 16), (rows,)}
    items = shapes(arrays, "items/")
    assert items.pop("items/states") == (slots, 84 if probes else 28) and set(items.values()) == {(slots,)}
    of_streams = {name.partition("/")[2]: shape for name, shape in shapes(arrays, "streams/").items()}
    assert of_streams == {
        **dict.fromkeys(("pushed", "held", "length", "known", "ended", "begun", "done"), (6,)), "generation": (2,),
        "hold": (6, 14), "open": (6, 4),
    }  # fmt: skip
    scratch = shapes(arrays, "scratch/")
    assert {scratch.pop(f"scratch/{name}") for name in ("new", "new_priorities")} == {(unroll,)}
    assert scratch.pop("scratch/victims") == (slots,) and scratch.pop("scratch/window") == (12,)
    assert set(scratch.values()) == {(12,)} and len(scratch) == 13
    assert shapes(arrays, "sampler/")["sampler/tree"] == (int(tree_offsets(slots)[-1]),)


@pytest.mark.parametrize("probes", [False, True])
@pytest.mark.parametrize("stack", [1, 3])
def test_the_fields_of_a_batch_of_sequences_are_what_is_sampled(probes: bool, stack: int) -> None:
    state = {"state/h": Field((4, 3, 5)), "state/c": Field((4, 3, 2), "int32")}
    fields = {**stream(4, 3, extra=Field((4, 3, 6), "uint8"), **state), "obs": Field((4, 3, 1, 2, 4), "uint8")}
    spec = SequenceSpec(30, 3, 2, 2, stack=stack, probes=probes, initial="max")
    table: Any = spec.build(fields, 1, 0)
    unroll = {name: np.zeros(f.shape, f.dtype) for name, f in fields.items()}
    unroll["valid"][:] = unroll["first"][0] = True
    while not table.size:
        table.add(unroll)
        unroll["first"][:] = False
    found = table.sample(7).items
    given = spec.batch(fields, 7)
    assert {name: (f.shape, f.dtype) for name, f in given.items()} == {
        name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in found.items()
    }
    assert given["obs"].shape == (6, 7, stack, 2, 4)
    assert {name for name, f in given.items() if f.axis == 0} == {name for name in given if "/" in name}


@pytest.mark.parametrize("rows,sizes", [(1, [8]), (8, [8]), (9, [16, 8]), (64, [64, 8]), (65, [72, 16, 8])])
def test_a_tree_has_eight_children_a_node(rows: int, sizes: list[int]) -> None:
    assert np.diff(tree_offsets(rows)).tolist() == sizes and tree_offsets(rows)[0] == 0


BOUNDS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (TableSpec, dict(capacity=1, n_step=1, stack=1, batches=1), dict(capacity=0)),
    (TableSpec, {}, dict(n_step=0)), (TableSpec, {}, dict(stack=0)), (TableSpec, {}, dict(batches=0)),
    (TableSpec, dict(stack=100), dict(stack=101)), (TableSpec, dict(eps=1e-9), dict(eps=0.0)),
    (TableSpec, dict(evict_every=0), dict(evict_every=-1)), (SequenceSpec, dict(length=1, stride=1), dict(length=0)),
    (SequenceSpec, dict(length=3, stride=3), dict(length=3, stride=4)), (SequenceSpec, dict(stride=1), dict(stride=0)),
    (SequenceSpec, dict(burn_in=0), dict(burn_in=-1)), (SequenceSpec, dict(eta=0.0), dict(eta=-0.1)),
    (SequenceSpec, dict(eta=1.0), dict(eta=1.1)), (SequenceSpec, dict(rescale=0.0), dict(rescale=-0.1)),
    (SequenceSpec, dict(rescale=None, eps=1e-9), dict(eps=0.0)), (SequenceSpec, dict(stack=100), dict(stack=101)),
    (SequenceSpec, dict(length=29_960), dict(length=29_961)),
]  # fmt: skip


@pytest.mark.parametrize("spec,good,bad", BOUNDS)
def test_options_are_refused_from_their_bounds_on(spec: Any, good: dict[str, Any], bad: dict[str, Any]) -> None:
    spec(**{"capacity": 10, **good})
    with pytest.raises(WiringError):
        spec(**{"capacity": 10, **bad})


def test_columns_lie_one_after_the_other() -> None:
    """Observations first, then what is returned as it is; a row is a multiple of 8 bytes."""
    lead = (4, 3)
    fields = stream(4, 3, extra=Field((*lead, 3), "uint8"))
    fields |= {"obs": Field((*lead, 5), "uint8"), "obs/side": Field((*lead, 2), "int32")}
    layout = TableSpec(9).layout(fields)
    found = {c.name: (c.offset, c.nbytes, c.shape, c.dtype) for c in layout.obs + layout.rest}
    assert found == {
        "obs": (0, 5, (5,), "uint8"), "obs/side": (5, 8, (2,), "int32"), "action": (13, 8, (), "int64"),
        "extra": (21, 3, (3,), "uint8"),
    }  # fmt: skip
    assert layout.row_bytes == 24 and (layout.steps, layout.envs) == (4, 3)
    assert not layout.same_step and not layout.final_q
    assert TableSpec(9).layout({**fields, "more": Field(lead, "bool")}).row_bytes == 32
    values = {name: Field(lead) for name in ("q_taken", "q_max")}
    assert "q_max" in {c.name for c in TableSpec(9).layout({**fields, **values}).rest}
    assert "q_max" not in {c.name for c in TableSpec(9, initial="given").layout({**fields, **values}).rest}
    finals = {"final/obs": fields["obs"], "final/obs/side": fields["obs/side"]}
    same = TableSpec(9).layout({**fields, **finals})
    assert same.same_step and not same.final_q and same.row_bytes == 24
    assert TableSpec(9).layout({**fields, **finals, "final/q_max": Field(lead)}).final_q


@pytest.mark.parametrize(
    "wrong,told",
    [
        ({"obs": None, "final/obs": None}, r"needs the fields \['obs'\]"), ({"valid": None}, r"\['valid'\]"),
        ({"action": None}, r"\['action'\]"), ({"final/obs": None, "final/obs/x": Field((4, 3, 2))}, "final/obs'"),
        ({"reward": None}, "it has no 'reward'|'reward'"), ({"extra": Field((4, 2))}, r"start with \[4, 3\]"),
        ({"extra": Field((3, 3))}, r"start with \[4, 3\]"), ({"final/obs": Field((4, 3, 3))}, "dtype of 'obs'"),
        ({"final/obs": Field((4, 3, 2), "uint8")}, "shape and dtype of 'obs'"),
    ],
)  # fmt: skip
def test_streams_that_cannot_be_stored_are_refused(wrong: dict[str, Any], told: str) -> None:
    fields = {**stream(4, 3), "final/obs": Field((4, 3, 2))}
    TableSpec(9).layout(fields)
    with pytest.raises(WiringError, match=told):
        TableSpec(9).layout({name: f for name, f in (fields | wrong).items() if f is not None})
