"""One table of several, and the learner's end of all of them: what is sent, counted, remembered and saved."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Reducers, Writer, context

from shoal.api import Batch, Field, Rows
from shoal.roles.replay_shard import (
    BOARD_BATCHES,
    KEYS,
    PROBS,
    ROUND,
    SIZE,
    USED,
    Gathered,
    ShardRole,
    learned_spec,
    masses_spec,
    part_spec,
)

BATCH, SHARDS = 6, 3
ITEMS = {"x": Field((BATCH,), "int64", 0), "sequence": Field((2, BATCH), "float32", 1)}


class Table:
    """Every draw is of other items: 100 * (number of the draw) + place."""

    def __init__(self) -> None:
        self.draws, self.total = 0, 8.0
        self.priorities: list[tuple[list[int], list[float]]] = []

    def get(self) -> Batch:
        self.draws += 1
        x = 100 * self.draws + torch.arange(BATCH)
        items = {"x": x, "sequence": torch.stack([x, -x]).float()}
        return Batch(items, x + 7, torch.full((BATCH,), 0.5), 10 + self.draws)

    def mass(self) -> float:
        return self.total

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        self.priorities.append((keys.tolist(), priorities.tolist()))


class Board:
    def __init__(self) -> None:
        self.row = {name: np.zeros(f.shape, f.dtype) for name, f in learned_spec(BATCH).items()}
        self.puts = 0

    def ready(self) -> bool:
        return True

    def put(self, row: Any) -> None:
        self.row = {name: array.copy() for name, array in row.items()}
        self.puts += 1

    def get(self) -> Rows:
        return Rows({name: array[None].copy() for name, array in self.row.items()}, np.array([self.puts]))


class Masses(Reducers):
    """The siblings have these masses and sizes, and replica 0 draws 77."""

    def __init__(self, index: int) -> None:
        super().__init__(masses_spec(SHARDS))
        self.others, self.index = np.array([8.0, 4.0, 4.0]), index

    def get(self) -> Any:
        told = super().get()
        mass = torch.from_numpy(np.where(np.arange(SHARDS) == self.index, 0.0, self.others)) + told["mass"]
        return {
            "mass": mass,
            "size": told["size"] + 40,
            "draw": told["draw"] if self.index == 0 else torch.tensor([77]),
        }


def shard(index: int = 0, **ctx: Any) -> Any:
    return ShardRole(
        context("replay", index, SHARDS, seed=5, **ctx), Table(), Masses(index), Board(),  # type: ignore[arg-type]
        Writer(part_spec(ITEMS, BATCH)), ITEMS, BATCH,
    )  # fmt: skip


def test_every_shard_tells_its_own_mass() -> None:
    roles = [shard(i) for i in range(SHARDS)]
    draws = []
    for role in roles:
        role.transitions.total = 2.0 + role.ctx.index
        for _ in range(6):
            role.step()
        for n, put in enumerate(role.masses.puts):
            assert put["mass"].tolist() == [2.0 + i if i == role.ctx.index else 0.0 for i in range(SHARDS)]
            assert put["size"].tolist() == [11 + n]
        draws.append([int(put["draw"][0]) for put in role.masses.puts])
    assert len(set(draws[0])) == len(draws[0]) > 2 and min(draws[0]) > 0, "another number for each batch"
    assert set(draws[1]) == set(draws[2]) == {0}, "of the first shard alone"


def test_a_shard_sends_its_part_of_the_batch() -> None:
    """So many as the draw that all share gives it; keys say whose they are; a candidate is sent once at most."""
    role = shard(1)
    orders = set()
    for n in range(1, 30):
        role.step()
        role.step()
        shares = np.array([8.0, 8.0, 4.0]) / 20.0
        counts = np.random.default_rng(77).multinomial(BATCH, shares)
        found = role.samples.items[-1]
        used = int(found[USED][0])
        assert used == counts[1] and 0 < used < BATCH
        x = found["x"][:used]
        assert len(set(x.tolist())) == used and set(x // 100) == {n} and (x % 100 < BATCH).all()
        assert found["sequence"][:, :used].tolist() == [x.tolist(), (-x).tolist()]
        assert found[KEYS][:used].tolist() == ((x + 7) * SHARDS + 1).tolist()
        np.testing.assert_allclose(found[PROBS][:used], 0.5 * 0.4)
        assert found[SIZE].tolist() == [40 + 10 + n] and found[ROUND].tolist() == [n]
        orders.add(tuple((x % 100).tolist()))
    assert len(orders) > 10, "other candidates of each batch: a table draws one in each part of its mass in turn"
    assert role.ctx.metrics.drain().records["replay_share"][1] == 29


def test_a_shard_without_a_part_sends_nothing_but_that() -> None:
    role = shard(1)
    role.transitions.total = 0.0
    role.samples.room = False
    role.step()
    role.step()
    assert role.samples.items[-1][USED].tolist() == [0] and role.count == -1, "which needs no room"


def test_a_part_waits_for_room() -> None:
    role = shard(1)
    role.samples.room = False
    role.step()
    role.step()
    assert not role.samples.items and role.count > 0 and role.transitions.draws == 1
    role.samples.room = True
    role.step()
    assert role.samples.items[0][USED].tolist() and role.count == -1 and role.transitions.draws == 1
    role.step()
    assert role.transitions.draws == 2


@pytest.mark.parametrize("after", range(1, 7))
def test_the_state_of_a_shard(after: int) -> None:
    first, second = shard(1, exact=True), shard(1, exact=True)
    first.samples.room = False
    for i in range(after):
        first.samples.room = i != after - 1
        first.learned.puts += 1
        first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.transitions.draws = first.transitions.draws
    second.masses.pending, second.masses.puts = first.masses.pending, copy.deepcopy(first.masses.puts)
    second.learned = copy.deepcopy(first.learned)
    first.samples.items.clear()
    first.transitions.priorities.clear()
    for role in (first, second):
        role.samples.room = True
        role.learned.puts += 1
        for _ in range(4):
            role.step()
    assert len(first.samples.items) == len(second.samples.items) > 0
    for one, two in zip(first.samples.items, second.samples.items, strict=True):
        used = int(one[USED][0])
        for name in one:
            axis = ITEMS[name].axis if name in ITEMS else 0
            np.testing.assert_array_equal(
                one[name].take(range(used if name not in (USED, SIZE, ROUND) else 1), axis),
                two[name].take(range(used if name not in (USED, SIZE, ROUND) else 1), axis),
            )
    assert first.transitions.priorities == second.transitions.priorities and first.masses.puts[-1].keys()
    assert all((first.masses.puts[-1][k] == second.masses.puts[-1][k]).all() for k in first.masses.puts[-1])


def test_a_shard_is_saved_before_it_has_drawn() -> None:
    first, second = shard(1), shard(1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.step()
    assert second.drawn is not None and second.round == 1


def test_a_part_that_is_half_sent_is_lost_where_nothing_is_exact() -> None:
    first, second = shard(1), shard(1)
    first.samples.room = False
    first.step()
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert first.count > 0 and second.count == -1 and second.round == 1


# ------------------------------------------------------------------------------------ priorities
def gathered(board: Board, samples: Any = None) -> Gathered:
    return Gathered(samples, board, ITEMS, BATCH)


def test_priorities_reach_the_shard_that_has_the_item() -> None:
    """Each batch once; of a batch with fewer keys, no others."""
    role = shard(1)
    reader = gathered(role.learned)
    role._learn()
    assert role.transitions.priorities == []
    reader.reprioritise(torch.tensor([3, 4, 7, 11, 13]), torch.tensor([0.5, 1.5, 2.5, 3.5, 4.5], dtype=torch.float64))
    reader.reprioritise(torch.tensor([1, 0]), torch.tensor([9.0, 8.0]))
    role._learn()
    assert role.transitions.priorities == [([1, 2, 4], [1.5, 2.5, 4.5]), ([0], [9.0])]
    role._learn()
    assert len(role.transitions.priorities) == 2
    reader.reprioritise(torch.tensor([5]), torch.tensor([1.0]))
    reader.reprioritise(torch.tensor([4]), torch.tensor([2.0]))
    role._learn()
    assert role.transitions.priorities[2:] == [([], []), ([1], [2.0])]


def test_priorities_that_know_their_gradient_are_taken() -> None:
    role = shard(1)
    priorities = torch.tensor([2.5], requires_grad=True)
    gathered(role.learned).reprioritise(torch.tensor([4]), priorities)
    role._learn()
    assert role.transitions.priorities == [([1], [2.5])]


def test_a_draw_is_by_the_priorities_of_then() -> None:
    """Places of the board without a key are nobody's, whatever the number of the shard."""
    for index, wanted in enumerate(([([0], [3.0])], [([2], [9.0])], [([], [])])):
        role = shard(index)
        gathered(role.learned).reprioritise(torch.tensor([0, 7]), torch.tensor([3.0, 9.0]))
        role.step()
        assert role.transitions.priorities == wanted and role.transitions.draws == 1
    spec = part_spec(ITEMS, BATCH)
    assert [spec[name].axis for name in (KEYS, PROBS, USED, SIZE, ROUND)] == [0] * 5 and spec["sequence"].axis == 1
    assert {f.axis for f in {**masses_spec(2), **learned_spec(2)}.values()} == {0}


@pytest.mark.parametrize("batches", [BOARD_BATCHES - 1, BOARD_BATCHES, BOARD_BATCHES + 1, 2 * BOARD_BATCHES + 3])
def test_as_many_batches_are_remembered_as_the_board_holds(batches: int) -> None:
    role = shard(1)
    reader = gathered(role.learned)
    for n in range(batches):
        reader.reprioritise(torch.tensor([3 * n + 1]), torch.tensor([float(n)]))
    role._learn()
    kept = range(max(0, batches - BOARD_BATCHES), batches)
    assert role.transitions.priorities == [([n], [float(n)]) for n in kept]


def test_a_later_launch_goes_on_with_the_board() -> None:
    """What shards have not yet seen of an earlier one stays on it."""
    role = shard(1)
    for x in (1, 4):
        gathered(role.learned).reprioritise(torch.tensor([x]), torch.tensor([float(x)]))
    role._learn()
    assert role.transitions.priorities == [([0], [1.0]), ([1], [4.0])]


class Samples:
    """Parts of shards, as a queue joins them."""

    def __init__(self, *rounds: tuple[tuple[int, int], ...]) -> None:
        self.rounds = list(rounds)  # of each get: (round, items) of each shard
        self.spec = part_spec(ITEMS, BATCH)
        self.memory = {
            name: torch.zeros([n * (len(rounds[0]) if a == f.axis else 1) for a, n in enumerate(f.shape)],
                              dtype=getattr(torch, f.dtype)) for name, f in self.spec.items()
        }  # fmt: skip

    def ready(self) -> bool:
        return bool(self.rounds)

    def get(self) -> Batch:
        for name in self.memory:
            self.memory[name].fill_(-99)
        for k, (round, n) in enumerate(self.rounds.pop(0)):
            x = 1_000 * k + 100 * round + torch.arange(n)
            self.memory["x"][k * BATCH : k * BATCH + n] = x
            self.memory["sequence"][:, k * BATCH : k * BATCH + n] = torch.stack([x, -x]).float()
            self.memory[KEYS][k * BATCH : k * BATCH + n] = x
            self.memory[PROBS][k * BATCH : k * BATCH + n] = 1.0 / (k + 1)
            self.memory[USED][k], self.memory[SIZE][k], self.memory[ROUND][k] = n, 50 + round, round
        return Batch(self.memory)


def expect(batch: Batch, *parts: tuple[int, int, int]) -> None:
    """The parts in the order of the shards: (shard, round, items)."""
    x = torch.cat([1_000 * k + 100 * round + torch.arange(n) for k, round, n in parts])
    assert batch.keys is not None and batch.probs is not None
    assert batch.keys.tolist() == batch.items["x"].tolist() == x.tolist()
    assert batch.items["sequence"].tolist() == [x.tolist(), (-x).tolist()]
    assert batch.probs.tolist() == pytest.approx([1.0 / (k + 1) for k, _, n in parts for _ in range(n)])
    assert batch.items.keys() == ITEMS.keys()


def test_parts_are_joined_in_the_order_of_the_shards() -> None:
    reader = gathered(Board(), Samples(((1, 2), (1, 4)), ((2, 6), (2, 0)), ((3, 1), (3, 5))))
    assert reader.ready()
    expect(batch := reader.get(), (0, 1, 2), (1, 1, 4))
    assert batch.size == 51
    expect(reader.get(), (0, 2, 6), (1, 2, 0))
    expect(reader.get(), (0, 3, 1), (1, 3, 5))
    assert not reader.ready()


def test_a_shard_that_is_ahead_waits_for_the_others() -> None:
    """And what it sent is kept, though the channel's memory is used again."""
    rounds = ((3, 2), (1, 4)), ((4, 3), (2, 1)), ((5, 1), (3, 4)), ((6, 6), (4, 3)), ((7, 2), (5, 5)), ((8, 2), (6, 0))
    reader = gathered(Board(), Samples(*rounds))
    expect(reader.get(), (0, 3, 2), (1, 3, 4))
    expect(reader.get(), (0, 4, 3), (1, 4, 3))
    expect(reader.get(), (0, 5, 1), (1, 5, 5))
    expect(reader.get(), (0, 6, 6), (1, 6, 0))


def test_the_end_is_ready_when_both_its_channels_are() -> None:
    board = Board()
    reader = gathered(board, Samples(((1, 2), (1, 4))))
    board.ready = lambda: False  # type: ignore[method-assign]
    assert not reader.ready()
