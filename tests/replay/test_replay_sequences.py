"""The table of sequences against a slow model of it, its law, its memory, and the worked numbers of R2D2."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from counting import Pad
from hypothesis import given, settings, strategies as st
from naive_sequences import NaiveSequences, Recurrent
from present import present
from scipy import stats

from shoal.api import Arrays, Field, ShoalError, WiringError
from shoal.replay import SequenceSpec, sequence_rows
from shoal.replay.samplers import live_rows
from shoal.replay.sequence_table import SequenceTable

PADS: tuple[Pad, ...] = ("repeat", "zero")


def contents(table: SequenceTable) -> dict[str, np.ndarray]:
    """Every live sequence, oldest first, as a batch would show it."""
    live = live_rows(table._i.order, table._counters)
    drawn = table._new_batch(len(live))
    drawn.slots[:] = live
    drawn.fill()
    return {**{k: v.numpy() for k, v in drawn.tensors.items()}, "key": drawn.keys}


def compare(table: SequenceTable, model: NaiveSequences, lives: dict[int, Recurrent]) -> None:
    assert table.check_valid() == (True, "")
    assert table.inserted == len(model.items)
    if not table.size:
        return
    found, o = contents(table), table.spec
    expected = model.items[len(model.items) - table.size :]
    assert (found["key"] // len(table._i.key)).tolist() == list(range(table.inserted - table.size, table.inserted))
    for name, key in (("obs/where", "where"), *[(n, n) for n in ("valid", "first", "terminated", "reward")]):
        assert np.array_equal(found[name], np.array([i[key] for i in expected]).swapaxes(0, 1)), name
    for j, item in enumerate(expected):
        assert [a for a, v in zip(found["action"][:, j].tolist(), item["valid"], strict=True) if v] == [
            a for a in item["action"] if a is not None
        ]
        assert found["state/h"][j].tolist() == item["state"] and found["state/c"][j].tolist() == item["c"]
        if o.probes:
            assert found["probe/first/h"][j].tolist() == item["probe/first"]
            assert item["probe/last"] is None or found["probe/last/h"][j].tolist() == item["probe/last"]
        if o.stack > 1:
            for t, (life, env, episode, step) in enumerate(item["where"]):
                frames = []
                for s in range(step - o.stack + 1, step + 1):
                    frame = lives[life].frame(env, episode, max(s, 0))
                    frames.append(frame if s >= 0 or o.pad == "repeat" else np.zeros_like(frame))
                assert np.array_equal(found["obs"][t, j], np.concatenate(frames))
    if o.initial == "given" and o.sampler != "uniform":
        live = live_rows(table._i.order, table._counters)
        wanted = [i["priority"] for i in expected]
        assert np.allclose(table._i.priority[live], wanted, rtol=2e-4, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), same_step=st.booleans(), stack=st.sampled_from([1, 3]), given_=st.booleans())
def test_any_streams_become_what_the_slow_model_makes_of_them(
    seed: int, same_step: bool, stack: int, given_: bool
) -> None:
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 12))
    spec = SequenceSpec(
        int(rng.choice([3, 20, 10_000])), length, int(rng.integers(1, length + 1)), int(rng.integers(0, 12)),
        int(rng.integers(1, 5)), 0.9, float(rng.random()), [None, 0.0, 1e-3, 0.1][int(rng.integers(4))], stack,
        PADS[int(rng.integers(2))], ["uniform", "proportional", "rank"][int(rng.integers(3))], 0.7,
        initial="given" if given_ else "max", probes=bool(rng.integers(2)),
    )  # fmt: skip
    steps = int(rng.choice([1, 5, 30]))
    mean = float(rng.choice([1.5, 6, 30, 300]))
    table = follow(spec, steps, mean, same_step, rng, adds=120)
    if spec.capacity == 10_000 and mean > 1.5:
        assert table.size == table.inserted > 0, "nothing was evicted while there was room"


def follow(
    spec: SequenceSpec, steps: int, mean: float, same_step: bool, rng: np.random.Generator, adds: int
) -> SequenceTable:
    """Compare the table with the slow model while two writers add unrolls, die, and lose some on the way, after which
    the same episodes go on."""
    lives: dict[int, Recurrent] = {}
    life, generation = [0, 1], [0, 1]

    def born(writer: int) -> None:
        life[writer] = len(lives)
        lives[life[writer]] = Recurrent(life[writer], steps, 2, same_step, True, int(rng.integers(2**32)), mean)
        generation[writer] += 2

    born(0)
    born(1)
    table, model = spec.build(lives[0].spec, 2, 0), NaiveSequences(spec, 2, 2, same_step)
    for i in range(adds):
        writer = int(rng.integers(2))
        if rng.random() < 0.03:
            born(writer)
        unroll = lives[life[writer]].unroll()
        if rng.random() < 0.05:  # lost on the way; whoever owns the table would say so by a new generation
            generation[writer] += 2
            continue
        assert table.add(unroll, writer, generation[writer]) == model.add(unroll, writer, generation[writer])
        assert table.size <= spec.capacity
        if i % 20 == 19:
            compare(table, model, lives)
    return table


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize(
    "length,stride,burn_in,stack,n_step",
    [(1, 1, 0, 1, 1), (1, 1, 3, 2, 2), (4, 2, 3, 3, 2), (4, 4, 0, 1, 5), (5, 2, 7, 1, 3), (3, 3, 4, 2, 1)],
)
def test_streams_are_cut_as_the_slow_model_cuts_them(
    length: int, stride: int, burn_in: int, stack: int, n_step: int, same_step: bool
) -> None:
    """Episodes shorter and longer than a sequence; strides that divide it and that do not."""
    for capacity, mean, eta in ((10_000, 9.0, 0.9), (5, 3.0, 0.3)):
        spec = SequenceSpec(
            capacity, length, stride, burn_in, n_step, 0.9, eta, 1e-3, stack, "zero" if burn_in % 2 else "repeat",
            probes=True,
        )  # fmt: skip
        follow(spec, 6, mean, same_step, np.random.default_rng(length), adds=40)


def chain(steps: int, end: bool = True, **fields: np.ndarray) -> dict[str, np.ndarray]:
    """One episode of ``steps`` steps, and the row with its last observation."""
    n = steps + 1
    out: Arrays = {"obs": np.arange(n, dtype=np.float32)[:, None], "action": np.zeros((n, 1), np.int64)}
    out |= {name: np.zeros((n, 1), np.float32) for name in ("reward", "q_taken", "q_max")}
    out |= {name: np.zeros((n, 1), bool) for name in ("terminated", "truncated", "first")}
    out["valid"] = np.ones((n, 1), bool)
    out["first"][0] = True
    if end:
        out["valid"][steps], out["terminated"][steps - 1] = False, True
    return out | fields


def spec_of(unroll: dict[str, np.ndarray]) -> dict[str, Field]:
    return {name: Field(a.shape, str(a.dtype)) for name, a in unroll.items()}


def built(spec: SequenceSpec, unroll: dict[str, np.ndarray], seed: int = 0) -> SequenceTable:
    table = spec.build(spec_of(unroll), 1, seed)
    table.add(unroll)
    return table


@pytest.mark.parametrize("steps,starts", [(200, [0, 40, 80, 120]), (190, [0, 40, 80, 120]), (80, [0]), (81, [0, 40])])
def test_where_sequences_begin(steps: int, starts: list[int]) -> None:
    """r2d2-r2d3 4.4; every step is learned from, the first ones without a burn-in."""
    found = contents(built(SequenceSpec(100, 80, 40, 40), chain(steps)))
    assert found["obs"][40].tolist() == starts
    learned = [o for o, v in zip(found["obs"][40:].ravel(), found["valid"][40:].ravel(), strict=True) if v]
    assert set(learned) == set(range(steps))
    assert found["first"][:, 0].nonzero()[0].tolist() == [40] and not found["valid"][:40, 0].any()
    if len(starts) > 1:
        assert found["valid"][:40, 1].all() and found["first"][:, 1].nonzero()[0].tolist() == [0]
    assert found["valid"][:, -1].sum() == min(40, starts[-1]) + steps - starts[-1]


def test_worked_priority_of_r2d2() -> None:
    """r2d2-r2d3 4.2 and 4.3: |delta| = [.1, .2, 2, .1] gives 1.86, and 1.748081 to the power .9."""
    q = np.array([0.1, 0.2, 2.0, 0.1, 0.0], np.float32)[:, None]
    table = built(SequenceSpec(4, 4, 4, 0, n_step=1, rescale=None, gamma=0.9, eps=1e-9), chain(4, q_taken=q))
    assert table._i.priority[0] == pytest.approx(1.86, rel=1e-6)
    assert table.sampler.tree[0] == pytest.approx(1.748081, rel=1e-6)  # type: ignore[attr-defined]
    reward = np.array([0, 1, 0, 0, 2, 0], np.float32)[:, None]
    unroll = chain(5, end=False, reward=reward, q_max=np.full((6, 1), 3, np.float32))
    unroll["q_taken"][0] = 2.5
    spec = SequenceSpec(4, 5, 5, 0, n_step=5, gamma=0.997, eta=1.0, eps=1e-9)
    by_hand = [0.834158]  # the later steps: shorter returns to the same last value, q_taken 0
    for first in range(1, 5):
        total = sum(0.997 ** (t - first) * reward[t, 0] for t in range(first, 5)) + 0.997 ** (5 - first) * 14.881172073
        by_hand.append(float(np.sqrt(total + 1) - 1 + 1e-3 * total))
    table = built(spec, unroll)
    assert table._i.priority[0] == pytest.approx(max(by_hand), rel=1e-5)
    unroll["q_taken"][1:5, 0] = by_hand[1:]  # no error but in the first step
    assert built(spec, unroll)._i.priority[0] == pytest.approx(0.834158, rel=1e-5)


def drawn(table: SequenceTable, batches: int, n: int) -> Counter[int]:
    out: Counter[int] = Counter()
    for _ in range(batches):
        out.update(present(table.sample(n).keys).tolist())
    return out


@pytest.mark.parametrize("sampler", ["uniform", "proportional", "rank"])
def test_sampling_law(sampler: str) -> None:
    """Before and after updates and eviction, sequence by sequence (a batch is stratified)."""
    unroll = chain(300)
    table = built(SequenceSpec(60, 10, 2, 4, sampler=sampler, alpha=0.9), unroll, seed=3)
    rng = np.random.default_rng(0)
    for stage in range(3):
        live = live_rows(table._i.order, table._counters)
        keys, p = table._i.key[live].copy(), table._i.priority[live].astype(np.float64)
        assert len(keys) == 60
        law = {"uniform": np.ones(60), "proportional": p**0.9}.get(sampler)
        if law is None:
            law = (table.sampler.where[live] + 1.0) ** -0.9  # type: ignore[attr-defined]
        law = law / law.sum()
        counts = drawn(table, 8_000, 1)
        assert stats.chisquare([counts[k] for k in keys.tolist()], law * sum(counts.values())).pvalue > 1e-3
        batch = table.sample(32)
        everything = dict(zip(keys.tolist(), law, strict=True))
        assert batch.keys is not None and batch.probs is not None
        assert np.allclose(batch.probs, [everything[k] for k in present(batch.keys).tolist()], rtol=1e-4)
        table.reprioritise(keys, rng.gamma(0.5, size=60).astype(np.float32))
        if stage == 1:
            table.add(chain(60))
            assert table.evicted > 20
    assert table.check_valid() == (True, "")


def test_each_frame_is_stored_once_and_bytes_are_counted_before() -> None:
    """A million frames of Atari in sequences of 120 that overlap take what a million frames take, and a few percent."""
    frame = {"obs": Field((16, 8, 1, 84, 84), "uint8"), "action": Field((16, 8), "int64"), "reward": Field((16, 8))}
    unroll = frame | {n: Field((16, 8), "bool") for n in ("terminated", "truncated", "valid", "first")}
    unroll |= {n: Field((16, 8)) for n in ("q_taken", "q_max")}
    unroll |= {f"state/{n}": Field((16, 8, 512)) for n in "hc"}
    assert 84 * 84 * 1e6 < SequenceSpec(25_000, stack=4).nbytes(unroll) < 1.05 * 84 * 84 * 1e6
    small = SequenceSpec(20, 8, 4, 4, stack=4, probes=True)
    table = small.build(unroll, 2, 0)
    assert small.nbytes(unroll, 2) == sum(a.nbytes for a in table._arrays.values())
    assert not any(a.base is not None for a in table._arrays.values())


@pytest.mark.parametrize("sampler", ["uniform", "proportional", "rank", "greedy"])
def test_a_restored_table_goes_on_identically(sampler: str) -> None:
    life = Recurrent(0, 6, 3, True, True, seed=0, mean=20)
    spec = SequenceSpec(40, 6, 3, 3, stack=2, sampler=sampler, probes=True)
    table = spec.build(life.spec, 1, 0)
    for at in range(40):
        table.add(life.unroll())
        if at in (4, 35):  # before and after rows are reused
            state = copy.deepcopy(table.state())
            other = spec.build(life.spec, 1, 99)
            other.add(life.unroll())
            other.restore(state)
            assert other.check_valid() == (True, "")
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
            counts = other.inserted, other.sampled, other.size, other.evicted
            assert counts == (table.inserted, table.sampled, table.size, table.evicted)
    json.dumps({k: v for k, v in table.state().items() if not isinstance(v, np.ndarray)})
    with pytest.raises(ShoalError, match="shape"):
        SequenceSpec(41, 6, 3, 3, stack=2, sampler=sampler, probes=True).build(life.spec, 1, 0).restore(state)


def test_priorities_of_sequences_that_are_gone_are_ignored() -> None:
    life = Recurrent(0, 8, 2, False, True, seed=0)
    table = SequenceSpec(10, 4, 2, 2, alpha=1.0, eps=0.5).build(life.spec, 1, 0)
    while not table.size:
        table.add(life.unroll())
    old = contents(table)["key"].copy()
    while table.evicted < table.inserted - 10 or table.evicted < len(old):
        table.add(life.unroll())
    before = table.sampler.tree.copy()  # type: ignore[attr-defined]
    table.reprioritise(old, np.full(len(old), 9.0, np.float32))
    assert np.array_equal(before, table.sampler.tree)  # type: ignore[attr-defined]
    key = contents(table)["key"][:1]
    table.reprioritise(np.array([*key, *key, -1]), np.array([5, -2, 9], np.float32))  # the last one wins
    assert table._i.priority[key[0] % len(table._i.key)] == 2.5


def test_rows_run_out_before_the_capacity_does() -> None:
    """Episodes a little longer than a sequence need more steps than the stride: adding evicts early, never fails."""
    spec = SequenceSpec(50, 10, 1, 0)
    table = built(spec, chain(10))
    for _ in range(200):
        table.add(chain(10))
    assert 1 <= table.size < 50 and table.check_valid() == (True, "")


@pytest.mark.parametrize(
    "fields,sentence",
    [
        (dict(length=0), "length >= 1, got 0"),
        (dict(length=10, stride=11), "stride of 11 steps would leave steps out of sequences of 10"),
        (dict(burn_in=-1), "burn_in >= 0"),
        (dict(eta=1.5), r"eta in \[0, 1\]"),
        (dict(sampler="random"), "unknown sampler 'random'"),
    ],
)
def test_options_that_cannot_work_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WiringError, match=sentence):
        SequenceSpec(10, **fields)


def test_states_of_another_shape_are_refused() -> None:
    unroll = chain(4)
    with pytest.raises(WiringError, match=r"'state/h' has shape \(3, 1, 8\), expected it to start with \[5, 1\]"):
        SequenceSpec(10).nbytes(spec_of(unroll) | {"state/h": Field((3, 1, 8))})


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1, 1.0])
def test_values_are_rescaled_as_the_paper_says(eps: float) -> None:
    """Also where eps is large, and the priorities of a real run would hide an error (Pohlen et al. 2018)."""
    model = NaiveSequences(SequenceSpec(2, rescale=eps), 1, 1, False)
    for x in (-300.0, -1.0, -0.01, 0.0, 0.3, 2.0, 1e4):
        assert sequence_rows._rescale(x, eps) == pytest.approx(model._h(x), rel=1e-9, abs=1e-12)
        assert sequence_rows._rescale_inverse(x, eps) == pytest.approx(model._inverse(x), rel=1e-7, abs=1e-12)
        assert sequence_rows._rescale_inverse(sequence_rows._rescale(x, eps), eps) == pytest.approx(
            x, rel=1e-7, abs=1e-12
        )
        assert sequence_rows._rescale(x, -1.0) == sequence_rows._rescale_inverse(x, -1.0) == x


@pytest.mark.parametrize("how", ["terminated", "truncated"])
@pytest.mark.parametrize(
    "ended,valid,first,begins",
    [
        (True, False, False, [0, 2, 5, 7]), (True, True, True, [0, 4, 6]), (True, True, False, [0, 4, 6]),
        (True, False, True, [0, 5, 7]), (False, True, False, [0, 2, 4, 6]), (False, True, True, [0, 4, 6]),
        (False, False, False, [0, 5, 7]), (False, False, True, [0, 5, 7]),
    ],
)  # fmt: skip
def test_only_an_ignored_row_after_an_end_is_the_last_observation(
    how: str, ended: bool, valid: bool, first: bool, begins: list[int]
) -> None:
    """Row 4 of a stream of sequences of two steps, whose row 3 ended an episode or not. Whatever else follows an end,
    or is ignored, begins anew."""
    unroll = chain(9, end=False)
    unroll[how][3], unroll["valid"][4], unroll["first"][4] = ended, valid, first
    table = built(SequenceSpec(20, 2, 2, 0, 1), unroll)
    assert contents(table)["obs"][0].ravel().tolist() == begins
    assert table.check_valid() == (True, "")


@pytest.mark.parametrize("same_step", [False, True])
def test_one_row_is_the_last_observation_of_an_episode(same_step: bool) -> None:
    """Further rows that an environment ignores, as after a life that was lost as the game ended, are nothing."""
    unroll = chain(9, end=False)
    unroll["terminated"][3], unroll["valid"][4:6] = True, False
    if same_step:
        unroll["final/obs"] = unroll["obs"] + 100
    table = built(SequenceSpec(20, 3, 1, 0, 1, initial="max"), unroll)
    found = contents(table)
    assert found["obs"][0].ravel().tolist() == [0, 1, 6] and table.check_valid() == (True, "")
    assert found["obs"][3].ravel().tolist() == ([3, 103, 9] if same_step else [3, 4, 9])
