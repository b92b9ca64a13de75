"""The laws of the samplers, the worked numbers of PER and Ape-X, and the table under random and concurrent use."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
from counting import Counting, Evict, Initial, check_batch, sampler_of, unroll_spec
from hypothesis import example, given, settings, strategies as st
from present import present
from scipy import stats

from shoal.api import Arrays, Field, ShoalError, WiringError
from shoal.replay import RateLimiter, Ratio, SequenceSpec, TableSpec, check, rows as rows_module
from shoal.replay.samplers import Proportional, Rank, live_rows
from shoal.replay.table import Table

FLAGS = ("terminated", "truncated", "valid", "first")


def chain(rewards: list[float], q_taken: list[float], q_max: list[float]) -> dict[str, np.ndarray]:
    """One open-ended stream; its ``obs`` is the step."""
    n = len(rewards)
    out: Arrays = {"obs": np.arange(n, dtype=np.float32)[:, None, None], "action": np.zeros((n, 1), np.int64)}
    for name, values in (("reward", rewards), ("q_taken", q_taken), ("q_max", q_max)):
        out[name] = np.array(values, np.float32)[:, None]
    out |= {name: np.zeros((n, 1), bool) for name in FLAGS}
    out["valid"][:] = True
    out["first"][0] = True
    return out


def spec_of(unroll: dict[str, np.ndarray]) -> dict[str, Field]:
    return {name: Field(a.shape, str(a.dtype)) for name, a in unroll.items()}


def filled(table_spec: TableSpec, items: int, seed: int = 0) -> Table:
    unroll = chain([0.0] * (items + table_spec.n_step), *[[0.0] * (items + table_spec.n_step)] * 2)
    table = table_spec.build(spec_of(unroll), 1, seed)
    table.add(unroll)
    return table


def live_keys(table: Table) -> np.ndarray:
    return table._r.key[live_rows(table._r.order, table._counters)].copy()


def drawn(table: Table, batches: int, n: int) -> dict[int, int]:
    counts = dict.fromkeys(live_keys(table).tolist(), 0)
    for _ in range(batches):
        for key in present(table.sample(n).keys).tolist():
            counts[key] += 1
    return counts


def assert_law(counts: list[int], law: np.ndarray) -> None:
    assert stats.chisquare(counts, law * sum(counts)).pvalue > 1e-3


def law_of(table: Table, keys: np.ndarray) -> np.ndarray:
    spec = table.spec
    p = table._r.priority[keys % len(table._r.key)].astype(np.float64)
    if spec.sampler == "uniform":
        weight = np.ones(len(p))
    elif spec.sampler == "proportional":
        weight = p**spec.alpha
    else:  # the heap's own order is the approximate rank
        weight = (sampler_of(table, Rank).where[keys % len(table._r.key)] + 1.0) ** -spec.alpha
    return weight / weight.sum()


@pytest.mark.parametrize("sampler", ["uniform", "proportional", "rank"])
@pytest.mark.parametrize("evict", ["fifo", "proportional"])
def test_sampling_law(sampler: str, evict: Evict) -> None:
    """Before and after updates and eviction. Single draws: strata make batches more even than chance."""
    table = filled(TableSpec(100, sampler=sampler, evict=evict, evict_every=10**4), 150, seed=5)
    rng = np.random.default_rng(1)
    for stage in range(3):
        keys = live_keys(table)
        assert len(keys) == (150 if stage < 2 else 100)
        counts = drawn(table, 10_000, 1)
        assert_law([counts[key] for key in keys.tolist()], law_of(table, keys))
        batch = table.sample(64)
        expected = law_of(table, present(batch.keys).numpy()) / law_of(table, present(batch.keys).numpy()).sum()
        assert np.allclose(present(batch.probs) / present(batch.probs).sum(), expected, rtol=1e-4)
        everything = dict(zip(keys.tolist(), law_of(table, keys), strict=True))
        assert np.allclose(present(batch.probs), [everything[key] for key in present(batch.keys).tolist()], rtol=1e-4)
        table.reprioritise(keys, rng.gamma(0.5, size=len(keys)).astype(np.float32))
        if stage == 1:
            assert table.evict() == 50
    assert table.check_valid() == (True, "")


@pytest.mark.parametrize("sampler", ["proportional", "rank"])
def test_batches_are_stratified(sampler: str) -> None:
    """A batch of k takes one item of every k-th of the mass: equal priorities, k = N: every item once (one apart)."""
    table = filled(TableSpec(64, sampler=sampler, alpha=0.0), 64)
    for _ in range(20):
        assert len(set(present(table.sample(64).keys).tolist())) == 64


def test_rank_sorts_and_greedy_returns_the_largest() -> None:
    priorities = np.random.default_rng(0).permutation(200).astype(np.float32)
    table = filled(TableSpec(200, sampler="rank"), 200)
    table.reprioritise(live_keys(table), priorities)
    rank = sampler_of(table, Rank)
    rank.sort()
    assert table._r.priority[rank.heap[:200]].tolist() == sorted((priorities + 0.01).tolist(), reverse=True)
    assert table.check_valid() == (True, "")
    table = filled(TableSpec(200, sampler="greedy"), 200)
    keys = live_keys(table)
    table.reprioritise(keys, priorities)
    batch = table.sample(10)
    assert (
        present(batch.keys).tolist() == keys[np.argsort(-priorities)[:10]].tolist()
        and (present(batch.probs) == 1).all()
    )
    table.reprioritise(present(batch.keys).numpy()[:3], np.zeros(3, np.float32))
    assert present(table.sample(1).keys).tolist() == keys[np.argsort(-priorities)[3:4]].tolist()
    assert len(set(present(table.sample(300).keys).tolist())) == 200
    assert table.check_valid() == (True, "")


def test_worked_numbers_of_prioritised_replay() -> None:
    """dqn-family 4.1-4.3."""
    table = filled(TableSpec(3, sampler="proportional", alpha=0.6, eps=0.01), 3)
    keys = live_keys(table)
    table.reprioritise(keys, np.array([-1.0, 0.5, 0.1], np.float32))
    assert sampler_of(table, Proportional).tree[:3] == pytest.approx([1.005988, 0.667640, 0.265972], rel=1e-5)
    batch = table.sample(64)
    probs = dict(zip(present(batch.keys).tolist(), present(batch.probs).tolist(), strict=True))
    p = np.array([probs[key] for key in keys.tolist()])
    assert p == pytest.approx([0.518658, 0.344215, 0.137127], rel=1e-5)
    weights = (batch.size * p) ** -0.4
    assert weights == pytest.approx([0.837914, 0.987233, 1.4266], rel=1e-4)
    assert weights / weights.max() == pytest.approx([0.587350, 0.692018, 1.0], rel=1e-4)
    table = filled(TableSpec(4, sampler="rank", alpha=0.7), 4)
    for scale in (1.0, 1000.0):
        keys = live_keys(table)
        table.reprioritise(keys, np.array([1, 4, 2, 3], np.float32) * scale)
        sampler_of(table, Rank).sort()
        batch = table.sample(64)
        probs = dict(zip(present(batch.keys).tolist(), present(batch.probs).tolist(), strict=True))
        expected = [0.154164, 0.406841, 0.188556, 0.250440]
        assert [probs[key] for key in keys.tolist()] == pytest.approx(expected, rel=1e-4)


def test_worked_numbers_of_apex() -> None:
    """apex 4.2, 4.3, 4.5."""
    spec = TableSpec(8, n_step=3, gamma=0.99, sampler="proportional", initial="given", alpha=0.6, eps=1e-9)
    unroll = chain([1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 3])
    table = spec.build(spec_of(unroll), 1, 0)
    assert table.add(unroll) == 1
    assert sampler_of(table, Proportional).tree[0] == pytest.approx(2.259626, rel=1e-6)
    batch = table.sample(1)
    assert float(batch.items["reward"]) + float(batch.items["discount"]) * 3 == pytest.approx(4.890997, rel=1e-6)
    assert float(batch.items["obs"]) == 0 and float(batch.items["next/obs"]) == 3
    unroll = chain([1, 2, 0], [2, 2, 0], [7, 7, 7])
    unroll["terminated"][1], unroll["valid"][2] = True, False
    table = spec.build(spec_of(unroll), 1, 0)
    assert table.add(unroll) == 2
    assert table._r.priority[0] == pytest.approx(0.98) and table._r.discount[:2].tolist() == [0, 0]
    assert table._r.reward[0] == pytest.approx(2.98) and table._r.reward[1] == 2
    table = filled(TableSpec(3, evict="proportional", alpha_evict=-0.4, eps=1e-9, evict_every=100), 3)
    table.reprioritise(live_keys(table), np.array([1, 0.1, 0.01], np.float32))
    tree = present(table._evictor).tree[:3]
    assert tree / tree.sum() == pytest.approx([0.101818, 0.255755, 0.642427], rel=1e-4)


def test_bulk_eviction_prefers_low_priorities_and_keeps_the_totals() -> None:
    """apex 4.8."""
    table = filled(
        TableSpec(100, sampler="proportional", evict="proportional", alpha_evict=-2.0, evict_every=10**4), 300
    )
    keys, priorities = live_keys(table), np.repeat([0.1, 1.0, 10.0], 100).astype(np.float32)
    table.reprioritise(keys, priorities)
    assert (table.size, table.evict(), table.size, table.evicted) == (300, 200, 100, 200)
    left = np.isin(keys, live_keys(table)).reshape(3, 100).sum(1)
    assert left[2] > 90 and left[0] < 5
    sampler = sampler_of(table, Proportional)
    tree, offsets = sampler.tree, sampler.offsets
    live = table._r.priority[live_rows(table._r.order, table._counters)].astype(np.float64)
    assert tree[offsets[-2] :].sum() == pytest.approx((live**0.6).sum(), rel=1e-9)
    assert not np.isin(present(table.sample(512).keys).numpy(), keys[~np.isin(keys, live_keys(table))]).any()


@pytest.mark.parametrize("initial", ["given", "max"])
def test_new_data_without_errors_gets_its_share_and_no_more(initial: Initial) -> None:
    """apex 4.9; with ``max``, the single-machine rule, new items get more than their share."""
    n = 1001
    spec = TableSpec(4000, n_step=1, sampler="proportional", initial=initial)
    old, new = chain([1.0] * n, [0.0] * n, [0.0] * n), chain([0.0] * n, [0.0] * n, [0.0] * n)
    table = spec.build(spec_of(old), 1, 0)
    table.add(old)
    table.reprioritise(live_keys(table), np.ones(1000, np.float32))
    table.add(new)
    fresh = present(table.sample(4096).keys).numpy() // len(table._r.key) >= 1000
    expected = 0.01**0.6 / (0.01**0.6 + 1.01**0.6) if initial == "given" else 0.5
    assert fresh.mean() == pytest.approx(expected, abs=0.001)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sampler=st.sampled_from(["uniform", "proportional", "rank", "greedy"]),
    evict=st.sampled_from(["fifo", "proportional"]),
    same_step=st.booleans(),
    stack=st.sampled_from([1, 3]),
)
def test_random_operations_keep_the_table_valid(
    seed: int, sampler: str, evict: Evict, same_step: bool, stack: int
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    spec = TableSpec(
        int(rng.integers(20, 200)), n, 0.9, stack, sampler=sampler, evict=evict, evict_every=int(rng.integers(0, 80))
    )
    lives = {i: Counting(i, 4, 2, same_step, True, i, mean=float(rng.integers(2, 12))) for i in range(2)}
    generation = [0, 1]
    table = spec.build(lives[0].spec, 2, seed)
    old = np.zeros(0, np.int64)
    for i in range(300):
        writer = int(rng.integers(2))
        match int(rng.integers(5)):
            case 0 | 1:
                if rng.random() < 0.05:
                    generation[writer] = life = len(lives)
                    lives[life] = Counting(life, 4, 2, same_step, True, life)
                table.add(lives[generation[writer]].unroll(), writer, generation[writer])
            case 2 if table.size:
                batch = table.sample(int(rng.choice([1, 4, 16])))
                check_batch(batch, lives, n, 0.9, stack)
                old = np.concatenate([old[-100:], present(batch.keys).numpy()])
            case 3:
                keys = rng.choice(old, 8) if len(old) else old
                table.reprioritise(keys, rng.normal(size=len(keys)).astype(np.float32))
            case 4 if rng.random() < 0.1:
                table.evict()
        if i % 10 == 0:
            assert table.check_valid() == (True, "")
    assert table.check_valid() == (True, "")


@pytest.mark.parametrize("evict", ["fifo", "proportional"])
def test_threads_may_share_a_table(evict: Evict) -> None:
    """The contract of ``Table``: any thread, any method; batches of one size belong to one thread."""
    lives = {i: Counting(i, 8, 4, False, True, seed=i) for i in range(2)}
    unrolls = {i: [life.unroll() for _ in range(40)] for i, life in lives.items()}
    table = TableSpec(200, 3, 0.9, 4, sampler="proportional", evict=evict, evict_every=50).build(lives[0].spec, 2, 0)
    table.add(unrolls[0].pop(0), 0)
    done = threading.Event()
    keys: list[np.ndarray] = [present(table.sample(16).keys).numpy().copy()]

    def write(writer: int) -> None:
        for unroll in unrolls[writer]:
            table.add(unroll, writer)

    def read(n: int) -> None:
        while not done.is_set():
            batch = table.sample(n)
            check_batch(batch, lives, 3, 0.9, 4)
            keys.append(present(batch.keys).numpy().copy())

    def update() -> None:
        rng = np.random.default_rng(0)
        while not done.is_set():
            batch = keys[int(rng.integers(len(keys)))]
            table.reprioritise(batch, rng.random(len(batch)).astype(np.float32))
            table.evict()

    with ThreadPoolExecutor(5) as pool:
        others = [pool.submit(read, 16), pool.submit(read, 32), pool.submit(update)]
        writers = [pool.submit(write, 0), pool.submit(write, 1)]
        wait(writers, timeout=60)
        done.set()
    for future in (*writers, *others):
        future.result()
    assert table.check_valid() == (True, "")
    assert table.inserted == sum(life.items(3) for life in lives.values())


@pytest.mark.parametrize("sampler", ["uniform", "proportional", "rank", "greedy"])
def test_a_restored_table_goes_on_identically(sampler: str) -> None:
    spec = TableSpec(80, 3, stack=2, sampler=sampler, evict="proportional" if sampler == "rank" else "fifo")
    life = Counting(0, 6, 3, True, True, seed=0)
    table = spec.build(life.spec, 1, 0)
    for at in range(24):
        table.add(life.unroll())
        if at in (2, 20):  # before and after rows are reused
            state = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in table.state().items()}
            json.dumps({k: v for k, v in state.items() if not isinstance(v, np.ndarray)})
            other = spec.build(life.spec, 1, 99)
            other.add(life.unroll())
            other.restore(state)
            assert other.check_valid() == (True, "")
            assert (other.inserted, other.sampled, other.size) == (table.inserted, table.sampled, table.size)
            for _ in range(5):
                unroll = life.unroll()
                for one in (table, other):
                    one.add(unroll)
                a, b = table.sample(16), other.sample(16)
                assert (
                    present(a.keys).tolist() == present(b.keys).tolist()
                    and present(a.probs).tolist() == present(b.probs).tolist()
                )
                assert all((a.items[name] == b.items[name]).all() for name in a.items)
                for one, batch in ((table, a), (other, b)):
                    one.reprioritise(present(batch.keys).numpy(), np.linspace(0, 1, 16).astype(np.float32))
    with pytest.raises(ShoalError, match="shape"):
        TableSpec(81, 3, stack=2, sampler=sampler).build(life.spec, 1, 0).restore(state)


def test_a_restored_table_draws_by_ranks_with_its_own_alpha() -> None:
    """As of a run that goes on with another ``priority_exponent``."""
    before, now = (filled(TableSpec(4, sampler="rank", alpha=alpha), 4) for alpha in (0.7, 0.1))
    now.restore({k: np.copy(v) for k, v in before.state().items()})
    probs = np.unique(present(now.sample(64).probs).numpy())
    law = np.arange(4, 0, -1.0) ** -0.1
    assert probs == pytest.approx(law / law.sum())


@pytest.mark.parametrize("unrolls", [0, 1, 3, 40], ids=["empty", "below min_size", "odd", "full"])
def test_writers_and_reader_go_on_after_a_restore(unrolls: int) -> None:
    """Whatever had been inserted and sampled, one side may always move, and the ratio is held from there."""
    life = Counting(0, 6, 3, True, True, seed=0)
    spec, ratio, batch, items = TableSpec(80, 3, stack=2), Ratio(25, 2.0, 60.0), 7, 18
    limiter = RateLimiter(ratio, items)

    def go_on(table: Table, rounds: int) -> None:
        for _ in range(rounds):
            may_sample = limiter.can_sample(table.size, table.inserted, table.sampled, batch)
            assert may_sample or limiter.can_insert(table.inserted, table.sampled)
            if may_sample:
                table.sample(batch)
            else:
                table.add(life.unroll())

    table = spec.build(life.spec, 1, 0)
    go_on(table, unrolls)
    restored = spec.build(life.spec, 1, 1)
    restored.restore({k: np.copy(v) for k, v in table.state().items()})
    assert (restored.inserted, restored.sampled) == (table.inserted, table.sampled)
    go_on(restored, 100)
    assert abs(2.0 * (restored.inserted - 25) - restored.sampled) <= 60.0


def test_an_empty_table_cannot_be_sampled() -> None:
    with pytest.raises(ShoalError, match="before"):
        TableSpec(4).build(unroll_spec(2, 1, False, False), 1, 0).sample(1)


@example(min_size=4, ratio=0.01, batch=1, items=12, extra=0.0, prefer=False)  # the least slack: rounding decides
@given(
    min_size=st.integers(1, 50),
    ratio=st.floats(0.01, 20),
    batch=st.integers(1, 64),
    items=st.integers(1, 64),
    extra=st.floats(-40, 40),
    prefer=st.booleans(),
)
def test_a_checked_ratio_never_deadlocks_and_holds(
    min_size: int, ratio: float, batch: int, items: int, extra: float, prefer: bool
) -> None:
    r = Ratio(min_size, ratio, (batch + ratio * items) / 2 + extra)
    try:
        check(r, batch, items)
    except WiringError:
        refused = True
    else:
        refused = False
    assert refused == (r.slack < max((batch + ratio * items) / 2, ratio * (items - 1)))
    if refused:
        return
    limiter, inserted, sampled = RateLimiter(r, items), 0, 0
    for _ in range(200):
        may = limiter.can_insert(inserted, sampled), limiter.can_sample(inserted, inserted, sampled, batch)
        assert any(may)
        if may[0] and (prefer or not may[1]):
            inserted += items
        else:
            sampled += batch
        if inserted >= min_size:
            assert abs(ratio * (inserted - min_size) - sampled) <= r.slack + 1e-6


def test_the_insertion_that_reaches_min_size_is_counted_with_all_its_items() -> None:
    """As in Reverb: 8 items at 90 of 100 are free; 8 at 96 bring 4 beyond it, worth 8 samples of a slack of 7."""
    limiter = RateLimiter(Ratio(100, 2.0, 7.0), 8)
    assert limiter.can_insert(90, 0) and limiter.can_insert(92, 0) and limiter.can_insert(95, 0)
    assert not limiter.can_insert(96, 0) and not limiter.can_insert(99, 0)
    check(Ratio(100, 2.0, 14.0), 8, 8)
    with pytest.raises(WiringError, match="at least 14"):  # 7 items beyond it
        check(Ratio(100, 2.0, 13.9), 8, 8)


def test_the_largest_priority_falls_when_errors_do() -> None:
    life = Counting(0, 6, 3, True, True, seed=0)
    table = TableSpec(80, 3, stack=2, sampler="proportional").build(life.spec, 1, 0)
    while table.size < 80:
        table.add(life.unroll())
    slots = len(table._key)

    def learn(error: float, times: int) -> None:
        for _ in range(times):
            table.reprioritise(present(table.sample(16).keys).numpy(), np.full(16, error, np.float32))

    def of_new_items() -> float:
        before = table.inserted
        while table.inserted == before:
            table.add(life.unroll())
        return float(table._priority[table._key == table._key.max()].max())

    learn(50.0, 1)
    assert of_new_items() == pytest.approx(50.0 + table.spec.eps)
    learn(0.5, 2 * slots // 16 + 2)
    assert of_new_items() == pytest.approx(0.5 + table.spec.eps)
    state = {k: np.copy(v) if isinstance(v, np.ndarray) else v for k, v in table.state().items()}
    other = TableSpec(80, 3, stack=2, sampler="proportional").build(life.spec, 1, 0)
    other.restore(state)
    assert (other._changed, other._recent) == (table._changed, table._recent) and table._changed > 0


def test_the_largest_priority_is_that_of_the_last_changes() -> None:
    """Of as many as there are slots, with the very last of them; until then, of all there were, and 1 before any."""
    table = filled(TableSpec(8, sampler="proportional", eps=0.5), 8)
    slots, keys = len(table._key), live_keys(table)
    assert set(table._priority[keys % slots].tolist()) == {1.0} == {float(table._largest[0])}
    changed = 0
    while changed < slots - 1:
        table.reprioritise(keys[:1], np.array([0.25], np.float32))
        changed += 1
        assert (table._changed, table._recent, table._largest[0]) == (changed, 0.75, 1.0)
    table.reprioritise(keys[:1], np.array([0.0], np.float32))
    assert (table._changed, table._recent, table._largest[0]) == (0, 0.0, 0.75)
    table.reprioritise(keys[:1], np.array([3.0], np.float32))
    assert (table._changed, table._recent, table._largest[0]) == (1, 3.5, 3.5), "at once where it is larger"


def test_given_priorities_count_among_the_last_changes() -> None:
    spec = TableSpec(8, n_step=1, sampler="proportional", initial="given", eps=0.5)
    unroll = chain([3.0, 1.0, 0.0], [0.0] * 3, [0.0] * 3)
    table = spec.build(spec_of(unroll), 1, 0)
    table.add(unroll)
    assert (table._changed, table._recent, table._largest[0]) == (2, 3.5, 3.5)
    table.add(chain([0.25, 0.0, 0.0], [0.0] * 3, [0.0] * 3))
    assert (table._changed, table._recent, table._largest[0]) == (4, 3.5, 3.5)


@pytest.mark.parametrize("unrolls", [1, 2, 100])
@pytest.mark.parametrize("spec", [TableSpec(20), SequenceSpec(5, 2, 2, 0)])
def test_rows_that_were_never_used_are_not_saved(spec: TableSpec | SequenceSpec, unrolls: int) -> None:
    unroll = chain([0.0] * 3, [0.0] * 3, [0.0] * 3)
    table: Any = spec.build(spec_of(unroll), 1, 0)
    for _ in range(unrolls):
        table.add(unroll)
    state = table.state()
    assert len(state["rows/data"]) == min(3 * unrolls, len(table._data))
    assert not [name for name in state if name.startswith("scratch/")] and "rng" in state


@pytest.mark.parametrize("spec", [TableSpec(20, sampler="proportional"), SequenceSpec(20, 2, 2, 0)])
def test_a_key_below_zero_is_nobodys(spec: TableSpec | SequenceSpec) -> None:
    """Also where the slot that it would name is free, as its own key is then -1."""
    unroll = chain([0.0] * 5, [0.0] * 5, [0.0] * 5)
    table: Any = spec.build(spec_of(unroll), 1, 0)
    table.add(unroll)
    before, largest = table._priority.copy(), float(table._largest[0])
    assert table._key[-1] == -1
    table.reprioritise(np.array([-1, -2]), np.array([5.0, 6.0], np.float32))
    assert np.array_equal(before, table._priority) and table._largest[0] == largest


def test_a_value_after_the_end_of_an_episode_is_not_looked_at() -> None:
    """What the actor's network says there may be anything; elsewhere what is not finite is no error."""
    unroll = chain([2.0, 0.0, 1.0, 1.0], [0.5, 0.0, 0.25, 0.0], [0.0, np.nan, 0.0, np.inf])
    unroll["terminated"][0], unroll["valid"][1], unroll["first"][2] = True, False, True
    table = TableSpec(8, sampler="proportional", initial="given", eps=1.0).build(spec_of(unroll), 1, 0)
    assert table.add(unroll) == 2
    assert table._priority[table._r.order[:2]].tolist() == [2.5, 1.0]


@pytest.mark.parametrize("at", ["newest", "oldest", "middle"])
def test_an_item_that_goes_leaves_a_whole_ring(at: str) -> None:
    """Where the ring of live items wraps around its end."""
    table = filled(TableSpec(20, evict="proportional", evict_every=100), 2)
    places = len(table._order)
    while int(table._counters[0]) < places - 3:  # the head goes on as the oldest are removed
        table.add(chain([0.0] * 3, [0.0] * 3, [0.0] * 3))
        live = live_rows(table._order, table._counters)[:-1].astype(np.int32)
        for sampler in (present(table._evictor), table.sampler):
            sampler.remove(live)
        rows_module.remove(table._r, live, table._counters)
    for _ in range(4):
        table.add(chain([0.0] * 3, [0.0] * 3, [0.0] * 3))
    table._count()
    assert table.check_valid() == (True, "")
    live = live_rows(table._order, table._counters)
    assert int(table._counters[0]) + len(live) > places
    victim = live[[{"newest": -1, "oldest": 0, "middle": 1}[at]]].astype(np.int32)
    present(table._evictor).remove(victim)
    table.sampler.remove(victim)
    rows_module.remove(table._r, victim, table._counters)
    table._count()
    assert table.check_valid() == (True, "")
    left = live_rows(table._order, table._counters)
    assert sorted(left.tolist()) == sorted(set(live.tolist()) - set(victim.tolist()))


def test_only_laws_with_weights_have_a_mass() -> None:
    for sampler in ("rank", "greedy"):
        with pytest.raises(ShoalError, match=f"The {sampler} sampler does not draw in proportion"):
            filled(TableSpec(4, sampler=sampler), 4).mass()


def test_one_priority_per_key() -> None:
    table = filled(TableSpec(4, sampler="proportional"), 4)
    for keys, values in ((2, 3), (3, 2)):
        with pytest.raises(ShoalError, match=rf"one priority per key, got \({keys},\) and \({values},\)"):
            table.reprioritise(np.arange(keys), np.ones(values, np.float32))
    with pytest.raises(ShoalError, match="one priority per key"):
        table.reprioritise(np.zeros((2, 2), np.int64), np.ones((2, 2), np.float32))
    uniform = filled(TableSpec(4), 4)
    uniform.reprioritise(live_keys(uniform), np.full(4, 9.0, np.float32))
    assert not uniform._priority.any(), "a uniform table has none"


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_batch_stays_until_as_many_follow(batches: int) -> None:
    table = filled(TableSpec(50, batches=batches), 50)
    first = table.sample(4)
    assert first.keys is not None
    kept = present(first.keys).tolist()
    for n in range(1, batches):
        table.sample(4)
        table.sample(5)
        assert present(first.keys).tolist() == kept, n
    memory = {present(table.sample(4).keys).data_ptr() for _ in range(7)}
    assert len(memory) == batches


def test_ratios_that_cannot_work_are_refused() -> None:
    check(Ratio(100, None), 64, 64)
    for ratio, batch, capacity in ((Ratio(1, 8.0, 10.0), 64, None), (Ratio(1, 0.0), 8, None), (Ratio(9), 1, 8)):
        with pytest.raises(WiringError):
            check(ratio, batch, 8, capacity)
    limiter = RateLimiter(Ratio(10, None))
    assert limiter.can_insert(10**9, 0) and not limiter.can_sample(9, 9, 0, 1) and limiter.can_sample(10, 10, 999, 1)
