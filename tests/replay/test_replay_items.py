"""What a replay table makes of streams: every sampled item is checked against the environments that made it."""

from __future__ import annotations

import numpy as np
import pytest
from counting import Counting, Evict, Pad, check_batch, priority, sampler_of, unroll_spec
from present import present
from test_replay_sampling import chain, spec_of

from shoal.api import Field, WiringError
from shoal.replay import TableSpec
from shoal.replay.samplers import Proportional
from shoal.replay.table import Table

GAMMA = 0.9


def valid(table: Table) -> None:
    ok, why = table.check_valid()
    assert ok, why


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("steps", [1, 7])
def test_every_item_is_true_and_every_complete_one_is_there(n: int, same_step: bool, steps: int) -> None:
    spec = TableSpec(100_000, n_step=n, gamma=GAMMA, sampler="proportional", initial="given", eps=1e-3, alpha=1.0)
    lives = {i: Counting(i, steps, 3, same_step, False, seed=i) for i in range(2)}
    table = spec.build(lives[0].spec, 2, seed=1)
    total = 0
    for _ in range(280 // steps):
        for writer in (0, 1):
            total += table.add(lives[writer].unroll(), writer)
            assert table.inserted == table.size == total == sum(life.items(n) for life in lives.values())
    valid(table)
    seen = set()
    for _ in range(3):
        batch = table.sample(1024)
        check_batch(batch, lives, n, GAMMA)
        where, keys = batch.items["obs/where"].tolist(), present(batch.keys).tolist()
        assert len(set(keys)) == len({tuple(w) for w in where})
        seen |= set(keys)
        sampler = sampler_of(table, Proportional)
        raw = present(batch.probs).numpy().astype(np.float64) * sampler.tree[sampler.offsets[-2] :].sum()
        for w, p in zip(where, raw, strict=True):
            expected = priority(lives[w[0]], w, n, GAMMA)
            assert expected is None or p == pytest.approx(expected + 1e-3, rel=1e-3)
    assert len(seen) > 0.5 * total
    assert "q_taken" not in batch.items and "valid" not in batch.items and table.sampled == 3 * 1024


@pytest.mark.parametrize("pad", ["repeat", "zero"])
@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("evict", ["fifo", "proportional"])
def test_stacks_are_rebuilt_bit_for_bit(pad: Pad, same_step: bool, evict: Evict) -> None:
    spec = TableSpec(400, n_step=3, gamma=GAMMA, stack=4, pad=pad, evict=evict)
    lives = {0: Counting(0, 5, 4, same_step, True, seed=3, mean=10)}
    table = spec.build(lives[0].spec, 1, seed=1)
    for _ in range(60):
        table.add(lives[0].unroll())
        if table.size:
            check_batch(table.sample(64), lives, 3, GAMMA, stack=4, pad=pad)
    assert table.sample(8).items["obs"].shape == (8, 4, 2, 3) and table.evicted > 400
    assert table.size == 400 or evict == "proportional"
    valid(table)


@pytest.mark.parametrize("same_step", [False, True])
def test_two_lives_of_a_writer_are_never_joined(same_step: bool) -> None:
    table = TableSpec(5000, n_step=3, gamma=GAMMA, stack=3).build(unroll_spec(4, 2, same_step, True), 1, 0)
    lives = {}
    for life in range(30):
        lives[life] = Counting(life, 4, 2, same_step, True, seed=life, mean=20)
        for _ in range(1 + life % 4):
            table.add(lives[life].unroll(), 0, generation=life)
    check_batch(table.sample(1024), lives, 3, GAMMA, stack=3)
    assert table.inserted == sum(life.items(3) for life in lives.values())
    valid(table)


@pytest.mark.parametrize("same_step", [False, True])
def test_a_lost_unroll_breaks_the_stream_where_it_shows(same_step: bool) -> None:
    """After a gap in the middle of an episode (here: a new generation, as the owner would announce it) no item shows a
    stack that reaches into the gap."""
    life = Counting(0, 5, 4, same_step, True, seed=0, mean=30)
    table = TableSpec(5000, n_step=2, gamma=GAMMA, stack=4).build(life.spec, 1, 0)
    for i in range(60):
        unroll = life.unroll()
        if i % 3 != 2:
            table.add(unroll, 0, generation=i // 3)
    check_batch(table.sample(1024), {0: life}, 2, GAMMA, stack=4)
    assert 0 < table.inserted < life.items(2)
    valid(table)


def test_a_first_observation_without_an_end_before_it_breaks_the_stream() -> None:
    life = Counting(0, 4, 1, False, False, seed=0, mean=1e9)
    table = TableSpec(100, n_step=3).build(life.spec, 1, 0)
    unroll = life.unroll()
    assert table.add(unroll) == 1
    assert table.add(unroll) == 1  # starts with ``first`` again: the three open windows are dropped
    valid(table)


@pytest.mark.parametrize("evict", ["fifo", "proportional"])
@pytest.mark.parametrize("same_step", [False, True])
def test_rows_run_out_before_the_capacity_does(evict: Evict, same_step: bool) -> None:
    """Episodes of one or two steps need more rows than items: adding evicts early and never fails."""
    life = Counting(0, 8, 4, same_step, True, seed=0, mean=1.3)
    table = TableSpec(2000, n_step=3, gamma=GAMMA, stack=4, evict=evict, evict_every=100).build(life.spec, 1, 0)
    for _ in range(260):
        table.add(life.unroll())
    check_batch(table.sample(512), {0: life}, 3, GAMMA, stack=4)
    assert table.evicted > 1000 and table.size > 800
    valid(table)


def test_fifo_keeps_the_newest() -> None:
    life = Counting(0, 5, 2, True, False, seed=0)
    table = TableSpec(64, evict_every=200).build(life.spec, 1, 0)
    sizes = [table.size for _ in range(300) if table.add(life.unroll()) >= 0]
    assert max(sizes) > 200 and max(sizes) <= 64 + 200 + 12
    table.evict()
    assert table.size == 64
    keys = np.unique(present(table.sample(4096).keys).numpy() // len(table._r.key))
    assert keys.tolist() == list(range(table.inserted - 64, table.inserted))


def test_a_restored_table_removes_its_surplus_as_soon_as_the_one_that_was_saved() -> None:
    life = Counting(0, 5, 2, True, False, seed=0, mean=1e9)
    options = TableSpec(10, evict_every=32)
    table = options.build(life.spec, 1, 0)
    for _ in range(2):
        table.add(life.unroll())  # 8 items, and 10 from then on
    again = options.build(life.spec, 1, 0)
    again.restore(table.state())
    assert table.size == again.size == 18, "the surplus of 8 stays until 32 were inserted"
    sizes = []
    for _ in range(3):
        unroll = life.unroll()
        table.add(unroll)
        again.add(unroll)
        sizes.append((table.size, again.size))
    assert sizes == [(28, 28), (10, 10), (20, 20)]


def test_priorities_of_items_that_are_gone_are_ignored() -> None:
    life = Counting(0, 5, 2, True, False, seed=0)
    table = TableSpec(20, sampler="proportional", alpha=1.0, eps=0.5).build(life.spec, 1, 0)
    for _ in range(4):
        table.add(life.unroll())
    keys = np.unique(present(table.sample(4096).keys).numpy())
    for _ in range(40):
        table.add(life.unroll())
    tree = sampler_of(table, Proportional).tree
    before = tree.copy()
    table.reprioritise(keys, np.full(len(keys), 9.0, np.float32))
    assert np.array_equal(before, tree) and table._largest[0] == 1.0
    key = present(table.sample(1).keys).numpy().repeat(3)
    table.reprioritise(np.array([*key, -1, 10**12]), np.array([5, 7, -2, 9, 9], np.float32))  # the last one wins
    assert tree[key[0] % len(table._r.key)] == 2.5 and table._largest[0] == 7.5
    table.reprioritise(key[:1], np.array([np.nan], np.float32))
    assert tree[key[0] % len(table._r.key)] == 2.5
    valid(table)


def test_shorter_and_read_only_unrolls_and_wrong_ones() -> None:
    life = Counting(0, 6, 2, False, False, seed=0)
    table = TableSpec(1000, n_step=2, gamma=GAMMA).build(life.spec, 1, 0)
    for _ in range(20):
        whole = life.unroll()
        for part in (slice(0, 2), slice(2, 6)):
            unroll = {name: a[part] for name, a in whole.items()}
            for a in unroll.values():
                a.flags.writeable = False
            table.add(unroll)
    assert table.inserted == life.items(2)
    check_batch(table.sample(512), {0: life}, 2, GAMMA)
    with pytest.raises(WiringError, match="'reward' of shape"):
        table.add({**whole, "reward": whole["reward"][:, :1]})
    with pytest.raises(WiringError, match="as int64"):
        table.add({**whole, "action": whole["action"].astype(np.int32)})
    with pytest.raises(WiringError, match="writer 1"):
        table.add(whole, 1)


def test_memory_is_what_was_said() -> None:
    for spec in (
        TableSpec(1000, n_step=3, stack=4, sampler="proportional"),
        TableSpec(1000, sampler="rank", evict="proportional", evict_every=50),
    ):
        unroll = unroll_spec(8, 4, False, True)
        table = spec.build(unroll, 3, 0)
        assert sum(a.nbytes for a in table._arrays.values()) == spec.nbytes(unroll, 3)
    atari = TableSpec(1_000_000, n_step=3, stack=4, sampler="proportional")
    unroll = unroll_spec(64, 16, False, False) | {"obs": Field((64, 16, 1, 84, 84), "uint8")}
    assert atari.nbytes(unroll, 16) < 7.5e9


def test_batches_stay_valid_as_long_as_asked() -> None:
    life = Counting(0, 6, 2, False, False, seed=0)
    table = TableSpec(1000, batches=2).build(life.spec, 1, 0)
    table.add(life.unroll())
    first, second, third = table.sample(4), table.sample(4), table.sample(4)
    assert present(first.keys).data_ptr() == present(third.keys).data_ptr() != present(second.keys).data_ptr()
    assert first.items["obs"].data_ptr() != second.items["obs"].data_ptr()


def test_specs_that_cannot_work_are_refused() -> None:
    spec = unroll_spec(4, 2, False, False, q=False)
    with pytest.raises(WiringError, match="q_taken"):
        TableSpec(10, initial="given").build(spec, 1, 0)
    with pytest.raises(WiringError, match="reward"):
        TableSpec(10).nbytes({k: f for k, f in spec.items() if k != "reward"})
    with pytest.raises(WiringError, match="capacity"):
        TableSpec(0)


@pytest.mark.parametrize("how", ["terminated", "truncated"])
@pytest.mark.parametrize(
    "ended,valid,first,begins",
    [
        (True, False, False, [0, 1, 2, 3, 5, 6, 7]), (True, True, True, [0, 1, 4, 5, 6, 7]),
        (True, True, False, [0, 1, 4, 5, 6, 7]), (True, False, True, [0, 1, 5, 6, 7]),
        (False, True, False, [0, 1, 2, 3, 4, 5, 6, 7]), (False, True, True, [0, 1, 4, 5, 6, 7]),
        (False, False, False, [0, 1, 5, 6, 7]), (False, False, True, [0, 1, 5, 6, 7]),
    ],
)  # fmt: skip
def test_only_an_ignored_row_after_an_end_is_the_last_observation(
    how: str, ended: bool, valid: bool, first: bool, begins: list[int]
) -> None:
    """Row 4 of ten, of windows of two steps; row 3 ended an episode or not. Whatever else follows an end, or is
    ignored, begins anew."""
    unroll = chain([1.0] * 10, [0.0] * 10, [0.0] * 10)
    unroll[how][3], unroll["valid"][4], unroll["first"][4] = ended, valid, first
    table = TableSpec(20, 2).build(spec_of(unroll), 1, 0)
    table.add(unroll)
    valid_table, live = table.check_valid(), table._r.order[: table.size]
    assert valid_table == (True, "") and table._data[live, :4].copy().view(np.float32).ravel().tolist() == begins


@pytest.mark.parametrize("same_step", [False, True])
def test_one_row_is_the_last_observation_of_an_episode(same_step: bool) -> None:
    """Further rows that an environment ignores, as after a life that was lost as the game ended, are nothing."""
    unroll = chain([1.0] * 10, [0.0] * 10, [0.0] * 10)
    unroll["terminated"][3], unroll["valid"][4:6] = True, False
    if same_step:
        unroll["final/obs"] = unroll["obs"] + 100
    table = TableSpec(20, 2).build(spec_of(unroll), 1, 0)
    assert table.add(unroll) == 6 and table.check_valid() == (True, "")
    live = table._r.order[: table.size]
    begins, ends = (table._data[rows, :4].copy().view(np.float32).ravel() for rows in (live, table._r.end[live]))
    last = 103.0 if same_step else 4.0
    assert begins.tolist() == [0, 1, 2, 3, 6, 7] and ends.tolist() == [2, 3, last, last, 8, 9]


@pytest.mark.parametrize("stack,n_step", [(1, 1), (2, 1), (4, 1), (3, 2)])
def test_after_a_gap_an_item_begins_behind_a_whole_stack(stack: int, n_step: int) -> None:
    """A stream that does not begin with an episode: nothing is known of the frames before."""
    unroll = chain([1.0] * 9, [0.0] * 9, [0.0] * 9)
    unroll["first"][0], unroll["obs"] = False, np.arange(9, dtype=np.float32)[:, None, None, None, None]
    table = TableSpec(20, n_step, stack=stack).build(spec_of(unroll), 1, 0)
    assert table.add(unroll) == 9 - n_step - (stack - 1)
    assert float(table.sample(200).items["obs"][:, -1].min()) == stack - 1
