"""A replay in several tables is drawn from as if it were one, whose priorities the learner sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from modules import module_of
from test_conformance import ENVS, STEPS, STREAM, _End, arrived, connect, unroll  # noqa: F401  # connect: the fixture

import shoal
from shoal.api import Batch, Board, Context, Field, Reader, UsageError
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Program
from shoal.replay import Ratio, SequenceSpec, TableSpec
from shoal.roles.replay_shard import BOARD_BATCHES, KEYS, PROBS, ROUND, SIZE, USED, Gathered, ShardRole, part_spec
from shoal.systems import load
from shoal.topology.replay_shards import add_shards, part_of

SHARDS, BATCH = 3, 32


class Replay:
    """The ends of a replay in shards, with ``unrolls[i]`` put by writer ``i``."""

    def __init__(self, connect: Any, unrolls: tuple[int, ...], **fields: Any) -> None:  # noqa: F811
        table = TableSpec(900, gamma=1.0, **fields)
        whole = Channel("c", "replay", STREAM, 2, Ratio(), table)
        self.program = Program("test")
        replay = self.program.channel(part_of(whole, SHARDS))
        self.program.role("writer", _End, replicas=len(unrolls), out=replay.writer())
        _, ports = add_shards(self.program, replay, SHARDS, BATCH, _End)
        self.program.role("learner", _End, samples=ports["samples"], learned=ports["learned"])
        ends, items = connect(self.program), table.batch(STREAM, BATCH)
        self.shards = []
        for i in range(SHARDS):
            ctx = Context("replay", i, SHARDS, 0, 10 + i, Recorder())
            mine = {name: ends[f"replay/{i}/{name}"] for name in ("masses", "learned", "samples")}
            self.shards.append(ShardRole(ctx, ends[f"replay/{i}/table"], items=items, batch=BATCH, **mine))
        self.reader = Gathered(ends["learner/0/samples"], ends["learner/0/learned"], items, BATCH)
        for w, count in enumerate(unrolls):
            for n in range(count):
                ends[f"writer/{w}/out"].put(unroll(100 * w + n))
                arrived(self.shards[w % SHARDS].transitions)

    def batch(self) -> Any:
        """As in a run: shards are at most as far ahead as their channel lets them."""
        for _ in range(3):
            for shard in self.shards:
                if shard.count >= 0 and not shard.samples.ready():
                    continue
                shard.step()
            if self.reader.ready():
                break
        return self.reader.get()


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    expected = counts.sum() * law
    return float(((counts - expected) ** 2 / expected).sum())


def bound(freedom: int, z: float = 3.09) -> float:
    """The 99.9 % quantile of chi-square (Wilson and Hilferty 1931)."""
    return float(freedom * (1 - 2 / (9 * freedom) + z * (2 / (9 * freedom)) ** 0.5) ** 3)


@pytest.mark.parametrize("sampler", ["proportional", "uniform"])
def test_items_are_drawn_as_from_one_table(connect: Any, sampler: str) -> None:  # noqa: F811
    """Chi-square over all items of shards of different sizes and masses; of the parts, and of the whole."""
    replay = Replay(connect, (2, 3, 5), sampler=sampler, alpha=0.5)
    keys: set[int] = set()
    while len(keys) < sum((n * STEPS - 1) * ENVS for n in (2, 3, 5)):
        batch = replay.batch()
        keys.update(batch.keys.tolist())
        assert batch.size == 74 and len(batch.keys) == BATCH
        assert (batch.items["next/obs"] - batch.items["obs"] == 1).all()
        assert (batch.items["obs"].flatten() % 1000 // 400 == batch.keys % SHARDS).all(), "the key names its shard"
    order = sorted(keys)
    weights: np.ndarray = np.ones(len(order))
    if sampler == "proportional":  # the mass of shard 0 is the largest, though it has the fewest items
        priorities = np.where(np.array(order) % SHARDS == 0, 30.0, 1.0) * (1 + np.arange(len(order)) % 4)
        weights = (priorities + 0.01) ** 0.5
        for part in np.array_split(np.arange(len(order)), 3):
            replay.reader.reprioritise(torch.tensor(order)[part], torch.from_numpy(priorities[part]))
        for _ in range(6):
            replay.batch()  # drawn before they were set
    law, place = weights / weights.sum(), {key: i for i, key in enumerate(order)}
    counts = np.zeros(len(order))
    for _ in range(150):
        batch = replay.batch()
        found = [place[key] for key in batch.keys.tolist()]
        np.testing.assert_allclose(batch.probs, law[found], rtol=1e-5)
        np.add.at(counts, found, 1)
    assert chi_square(counts, law) < bound(len(law) - 1)
    shard = np.array(order) % SHARDS
    parts, masses = (np.bincount(shard, weights=x) for x in (counts, law))
    assert chi_square(parts, masses) < bound(SHARDS - 1)
    assert chi_square(parts, np.full(SHARDS, 1 / SHARDS)) > 100, "and not as many from each"


def test_priorities_of_many_batches_wait_on_the_board(connect: Any) -> None:  # noqa: F811
    """As many as it remembers are taken over at once, each by the shard that has the item; later ones win."""
    replay = Replay(connect, (1, 1, 1), sampler="proportional", alpha=1.0)
    keys = sorted(set(torch.cat([replay.batch().keys.clone() for _ in range(20)]).tolist()))
    for n in range(BOARD_BATCHES):
        replay.reader.reprioritise(torch.tensor(keys), torch.full((len(keys),), float(n)))
    replay.reader.reprioritise(torch.tensor(keys[:1]), torch.tensor([1e6]))
    for _ in range(6):
        replay.batch()
    batch = replay.batch()
    assert (batch.keys == keys[0]).float().mean() > 0.9
    expected = 1e6 / (1e6 + 0.01 + (len(keys) - 1) * (BOARD_BATCHES - 1 + 0.01))
    np.testing.assert_allclose(batch.probs[batch.keys == keys[0]], expected, rtol=1e-4)


class Parts:
    """A reader of samples: two shards, of which one is a batch ahead. An item says of which batch and shard it is."""

    def __init__(self) -> None:
        self.spec, self.round = part_spec({"x": Field((BATCH,), "int64", 0)}, BATCH), 0

    def get(self) -> Batch:
        found = {name: torch.zeros(2 * BATCH, dtype=torch.int64) for name in ("x", KEYS, PROBS)}
        rounds = torch.tensor([self.round + 1, self.round])
        found |= {ROUND: rounds, USED: torch.tensor([10, 0]) + rounds % 2 * torch.tensor([5, 0]), SIZE: rounds}
        found[USED][1] = BATCH - 10 - 5 * (self.round % 2)
        found["x"][:] = (2 * rounds + torch.arange(2)).repeat_interleave(BATCH)
        self.round += 1
        return Batch(found)


def test_shards_that_are_a_batch_apart_find_together() -> None:
    """As after a resume, when one of them had sent its part of a batch, and the others had not."""
    reader: Any = Gathered(cast(Reader, Parts()), cast(Board, None), {"x": Field((BATCH,), "int64", 0)}, BATCH)
    for round in range(1, 6):
        first = 10 + 5 * (round % 2)
        assert reader.get().items["x"].tolist() == [2 * round] * first + [2 * round + 1] * (BATCH - first)


@pytest.mark.parametrize("kind", ["transitions", "stacked", "sequences"])
def test_the_fields_of_a_batch_are_known_beforehand(kind: str) -> None:
    stream = {
        **STREAM,
        "q_taken": Field((STEPS, ENVS)),
        "q_max": Field((STEPS, ENVS)),
        "extra": Field((STEPS, ENVS, 3)),
    }
    spec: Any = TableSpec(100, n_step=1, initial="given")
    if kind == "stacked":
        stream["obs"], spec = Field((STEPS, ENVS, 1, 4, 4), "uint8"), TableSpec(100, stack=3)
    if kind == "sequences":
        stream["state/h"] = Field((STEPS, ENVS, 5))
        spec = SequenceSpec(100, length=2, stride=1, burn_in=1, n_step=1, probes=True)
    table = spec.build(stream, 1, 0)
    for n in range(3):
        item = {name: np.zeros(f.shape, f.dtype) for name, f in stream.items()}
        item["valid"][:], item["first"][0] = True, n == 0
        table.add(item)
    found = table.sample(6).items
    told = spec.batch(stream, 6)
    assert {name: (tuple(t.shape), str(t.dtype)[6:]) for name, t in found.items()} == {
        name: (f.shape, f.dtype) for name, f in told.items()
    }
    assert all(f.shape[f.axis] == 6 for f in told.values())


SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", device="cpu", hidden=(8,), envs=2, unroll=8, actors=2, replay_shards=2, batch=8,
    replay=2_000, samples_per_insert=1.0,
)  # fmt: skip
SYSTEMS: dict[str, dict[str, Any]] = {
    "apex-dqn": {"min_replay": 64},
    "r2d2": {"min_replay": 8, "sequence": 8, "overlap": 4, "burn_in": 4, "core_size": 8},
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_serial_run_is_resumed_bit_for_bit(tmp_path: Path, system: str) -> None:
    settings = {**SMALL, **SYSTEMS[system], "runtime": "serial"}
    whole = shoal.train(system, **settings, steps=500, run_dir=tmp_path / "whole")
    shoal.train(system, **settings, steps=300, run_dir=tmp_path / "parts")
    again = shoal.resume(tmp_path / "parts", steps=500)
    assert whole.report is not None and again.report is not None and again.report.updates == whole.report.updates > 5
    for name, tensor in whole.report.params["params"].items():
        assert torch.equal(tensor, again.report.params["params"][name]), name


def test_a_run_in_processes_goes_on(tmp_path: Path) -> None:
    settings = {**SMALL, **SYSTEMS["apex-dqn"], "runtime": "local"}
    run = shoal.train("apex-dqn", **settings, steps=700, run_dir=tmp_path / "run")
    assert run.report is not None and run.report.updates > 5
    more = shoal.resume(tmp_path / "run", steps=1_200)
    assert more.report is not None and more.report.updates > run.report.updates


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(actors=1), r"replay_shards \(2\) must be no more than actors \(1\)"),
        (dict(sampler="rank"), "in 2 shards is sampled uniformly or in proportion to priorities, found 'rank'"),
    ],
)
def test_what_cannot_be_sharded_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("apex-dqn").program(
            module_of("apex-dqn").Config(**{"env": "CartPole-v1", "actors": 2, "replay_shards": 2, **fields})
        )


def test_gorila_has_a_replay_for_each_learner() -> None:
    with pytest.raises(
        UsageError, match="replay_shards must be 1, found 2: a replay of all learners has replay_servers"
    ):
        load("gorila").program(module_of("gorila").Config(env="CartPole-v1", replay_shards=2))
