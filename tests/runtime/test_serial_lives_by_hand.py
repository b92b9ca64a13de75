"""What the serial runtime gives each replica, and what goes on after a checkpoint, worked out by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from turns import Idle, Rows, Turns, program, run, turns

from shoal import api
from shoal.api import Context, Field
from shoal.program import Channel, Program
from shoal.records import checkpoint
from shoal.records.checkpoint import Checkpoint, SaveOptions
from shoal.runtime.seeds import life_seed
from shoal.serial import generators

pytestmark = pytest.mark.timeout(30)


def newest(path: Path) -> Checkpoint:
    return checkpoint.newest(path / "checkpoints")


# --------------------------------------------------------------------------- what a replica is given
def contexts(path: Path | None = None, **launch: Any) -> list[Context]:
    """Those of replicas a, b[0] and b[1]."""
    found: dict[str, Context] = {}

    def keep(role: Turns) -> None:
        found[f"{role.ctx.role}{role.ctx.index}"] = role.ctx

    wired = program(turns(keep, 1))
    wired.role("b", turns(keep, 1), replicas=2)
    run(wired, steps=3, seed=5, **launch)
    return [found[name] for name in sorted(found)]


def test_each_replica_has_a_seed_of_its_own_and_knows_when_the_run_ends() -> None:
    found = contexts()
    assert [ctx.seed for ctx in found] == [life_seed(5, life) for life in (0, 1, 2)]
    assert {ctx.total_steps for ctx in found} == {3} and {ctx.steps() for ctx in found} == {3}


def test_a_run_that_does_not_go_on_exactly_begins_new_lives(tmp_path: Path) -> None:
    saving = SaveOptions(tmp_path / "checkpoints", every=0.0, launch=3)
    assert [(ctx.generation, ctx.exact) for ctx in contexts()] == [(0, False)] * 3, "nothing is saved"
    assert [(ctx.generation, ctx.exact) for ctx in contexts(saving=saving)] == [(0, True)] * 3
    found = contexts(saving=saving, exact=False)
    assert [(ctx.generation, ctx.exact) for ctx in found] == [(3, False)] * 3
    assert [ctx.seed for ctx in found] == [life_seed(5, 3 * 4096 + k) for k in range(3)]
    assert not contexts(resume=newest(tmp_path))[0].exact, "what was saved is not exact"
    contexts(saving=saving)
    assert contexts(resume=newest(tmp_path))[0].exact


def test_the_third_writer_is_the_third() -> None:
    wired, found = Program("test"), list[Any]()
    queue = wired.channel(Channel("q", "queue", {"n": Field((1,), "int64", 0)}, 1))

    def put(role: Turns) -> None:
        role.ends["out"].put({"n": np.array([role.ctx.index])})

    wired.role("a", turns(put), replicas=3, out=queue.writer())
    wired.role(
        "b", turns(lambda role: found.append(role.ends["q"].get().items["n"].tolist()), 1), q=queue.reader(each=True)
    )
    run(wired, steps=2)
    assert found == [[0, 1, 2]] * 2


class Table:
    """A fake replay that knows its seed, and what came of which writer and life."""

    def __init__(self, seed: int) -> None:
        self.seed, self.came, self.sampled = seed, list[tuple[int, int]](), 0

    inserted = size = property(lambda self: len(self.came))

    def add(self, unroll: api.Arrays, writer: int = 0, generation: int = 0) -> int:
        self.came.append((int(unroll["n"][0]), generation))
        return 1

    def sample(self, n: int) -> api.Batch:
        return api.Batch({}, keys=torch.tensor(self.came[-1][:1]), size=1)

    def state(self) -> Any:
        return {"came": self.came}

    def restore(self, state: Any) -> None:
        self.came = list(state["came"])


@dataclass(frozen=True)
class TableSpec:
    made: list[Table] = field(default_factory=list)

    def nbytes(self, unroll: api.Spec, writers: int = 1) -> int:
        return 100 * writers

    def items_per_insert(self, unroll: api.Spec) -> int:
        return 1

    def build(self, unroll: api.Spec, writers: int, seed: int) -> Any:
        self.made.append(Table(seed))
        return self.made[-1]


def replay(readers: int, found: list[Any]) -> tuple[Program, TableSpec]:
    """Three writers fill the tables of so many readers."""
    wired, spec = Program("test"), TableSpec()
    channel = wired.channel(Channel("r", "replay", {"n": Field((1,), "int64", 0)}, table=spec))

    def put(role: Turns) -> None:
        role.ends["out"].put({"n": np.array([role.ctx.index])})

    def get(role: Turns) -> None:
        found.append((role.ctx.index, role.ends["r"].get().keys.tolist()))

    wired.role("a", turns(put), replicas=3, out=channel.writer())
    wired.role("b", turns(get, 1), replicas=readers, r=channel.reader())
    return wired, spec


def test_each_reader_of_a_replay_has_a_table_with_a_seed_of_its_own(tmp_path: Path) -> None:
    found: list[Any] = []
    wired, spec = replay(2, found)
    run(wired, steps=2, saving=SaveOptions(tmp_path / "c", launch=4), exact=False)
    assert found == [(0, [2]), (1, [1])]
    assert [table.came for table in spec.made] == [[(0, 4), (2, 4)], [(1, 4)]]
    assert spec.made[0].seed != spec.made[1].seed


@pytest.mark.parametrize("limit, saved", [(300, True), (299, False)])
def test_a_replay_is_saved_unless_all_its_writers_could_fill_it_beyond_the_limit(
    limit: int, saved: bool, tmp_path: Path
) -> None:
    run(replay(1, [])[0], steps=2, saving=SaveOptions(tmp_path / "checkpoints", replay_bytes=limit))
    assert newest(tmp_path).has("channel-r") == saved


def test_a_state_that_cannot_be_saved_costs_the_checkpoint_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Turns):
        def state_dict(self) -> dict[str, Any]:
            return {"turns": self.turns if self.turns < 2 else object()}

    wired = program(turns(each=5, kind=Odd))
    for steps in (5, 10):
        assert run(wired, steps=steps, saving=SaveOptions(tmp_path / "checkpoints")).steps == steps
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000000000005"]
    assert "no checkpoint at 10 steps: " in caplog.text and "'/role/turns' is a object" in caplog.text


# ------------------------------------------------------------------------------------- what goes on
def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_run_goes_on_with_its_turns_its_steps_and_its_random_numbers(first: int, tmp_path: Path) -> None:
    """In the first sweep parameters are published; a reads them twice."""
    found: list[Any] = []

    def publish(role: Turns) -> None:
        if role.turns == 0:
            role.ends["params"].publish({"w": torch.ones(1)})
        found.append(("b", role.turns, role.ctx.steps(), drawn()))

    def read(role: Turns) -> None:
        role.ends["params"].latest()
        found.append(("a", role.turns, role.ctx.steps(), drawn()))

    def wired() -> Program:
        out = Program("test")
        params = out.channel(Channel("params", "params", {"w": Field((1,))}))
        none = out.channel(Channel("none", "params", {"w": Field((1,))}))  # never published
        out.role("b", turns(publish, 10), params=params.writer(), none=none.writer())
        out.role("a", turns(read), params=params.reader(lockstep=2))
        out.role("c", turns(kind=Idle), none=none.reader())
        return out

    whole = run(wired(), steps=40)
    wanted, shown = found.copy(), Rows()
    assert [line[:3] for line in wanted] == [
        ("b", 0, 0), ("a", 0, 10), ("b", 1, 10), ("a", 1, 20), ("b", 2, 20), ("b", 3, 30)
    ]  # fmt: skip
    assert whole.params.keys() == {"params"} and len({line[3] for line in wanted}) == 6
    found.clear()
    run(wired(), steps=10 * first, saving=SaveOptions(tmp_path / "checkpoints"))
    run(wired(), steps=40, resume=newest(tmp_path), display=shown)
    assert found == wanted and shown.seen[-1] == 40


def test_all_generators_of_the_process_are_seeded_and_put_back() -> None:
    before = generators.state()
    try:
        found = []
        for seed in (7, 7 + 2**31, 7, 2**64 + 7):
            generators.seed(seed)
            found.append(drawn())
            state, following = generators.state(), drawn()
            generators.restore(state)
            assert drawn() == following
        assert found[0] == found[2] and all(x != y for x, y in zip(found[0], found[1], strict=True))
        assert found[3][:2] == found[0][:2]
    finally:
        generators.restore(before)


def test_a_run_draws_by_its_seed_and_leaves_the_generators_of_its_process_as_they_were() -> None:
    found: list[Any] = []
    before = generators.state()
    try:
        for seed, outside in ((1, 7), (2, 7), (1, 8)):
            generators.seed(outside)
            state, following = generators.state(), drawn()
            generators.restore(state)
            run(program(turns(lambda role: found.append(drawn()), 1)), steps=2, seed=seed)
            assert drawn() == following
        assert found[:2] == found[4:] and len(set(found)) == 4
    finally:
        generators.restore(before)
