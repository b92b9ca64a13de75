"""What the ends of ``reduce``, ``board`` and ``shared`` channels promise, asked of every runtime."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_conformance import ON_RAY, Ends, _End, connect, runtime  # noqa: F401  # the fixtures

from shoal import api
from shoal.api import Context, Deadlock, Field, Tensors, UsageError, WiringError
from shoal.local.runtime import LocalRuntime
from shoal.ops import SharedRMSProp
from shoal.program import Channel, Program
from shoal.program.draw import mermaid, text
from shoal.program.draw_svg import svg
from shoal.records import checkpoint
from shoal.records.checkpoint import SaveOptions
from shoal.runtime.launch import Launch, Stop
from shoal.serial.runtime import SerialRuntime
from shoal.shm import layout
from shoal.shm.group_layout import SMALL_REDUCE_BYTES, ReduceLayout

pytestmark = pytest.mark.timeout(300 if ON_RAY else 110)

SMALL = {"g": Field((3, 2)), "n": Field((), "int64")}
LARGE = {"g": Field((SMALL_REDUCE_BYTES // 4 + 7,)), "d": Field((5,), "float64", 0), "n": Field((1,), "int64", 0)}


def members(channel: Channel, count: int, make: Any = _End, **options: Any) -> Program:
    p = Program("test")
    p.channel(channel)
    p.role("rank", make, replicas=count, end=channel.member(), **options)
    return p


def ends(connect: Any, channel: Channel, count: int) -> list[Any]:  # noqa: F811
    found: Ends = connect(members(channel, count))
    return [found[f"rank/{i}/end"] for i in range(count)]


def items(spec: api.Spec, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.random(f.shape) * 20 - 10).astype(f.dtype) for name, f in spec.items()}


# ---------------------------------------------------------------------------------------- reduce
@pytest.mark.parametrize("spec", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_rank_gets_the_same_sum_in_the_order_of_the_ranks(connect: Any, spec: api.Spec, count: int) -> None:  # noqa: F811
    if count > 1 and spec is LARGE and connect.__name__ == "local":
        pytest.skip("two ranks wait for each other: see test_ranks_agree_in_every_round")
    ranks = ends(connect, Channel("c", "reduce", spec), count)
    for round in range(3):
        given = [items(spec, 10 * round + r) for r in range(count)]
        for r in reversed(range(count)):
            assert ranks[r].ready() and not ranks[r].pending
            ranks[r].put(given[r])
            assert ranks[r].pending and ranks[r].ready() == (r == 0), "the last one completes the round"
        for rank in ranks:
            assert rank.ready()
            found = rank.get()
            assert not rank.pending
            for name in spec:
                expected = given[0][name].copy()
                for other in given[1:]:
                    expected = expected + other[name]
                assert found[name].numpy().tobytes() == np.asarray(expected).tobytes()
                assert found[name].shape == spec[name].shape


def test_the_fact_sheets_gradients_are_averaged(connect: Any) -> None:  # noqa: F811
    ranks = ends(connect, Channel("c", "reduce", {"g": Field((2,), axis=0)}, mean=True), 2)
    ranks[0].put({"g": np.array([1.0, 2.0], np.float32)})
    ranks[1].put({"g": np.array([3.0, -2.0], np.float32)})
    assert [rank.get()["g"].tolist() for rank in ranks] == [[2.0, 0.0]] * 2


def test_a_rank_may_be_a_round_ahead(connect: Any) -> None:  # noqa: F811
    fast, slow = ends(connect, Channel("c", "reduce", {"n": Field((), "int64")}), 2)
    for end, n in ((fast, 1), (slow, 10)):
        end.put({"n": np.array(n)})
    assert int(fast.get()["n"]) == 11
    fast.put({"n": np.array(2)})
    assert not fast.ready() and slow.ready(), "what the slow one has not read stays as it was"
    assert int(slow.get()["n"]) == 11
    slow.put({"n": np.array(20)})
    assert [int(end.get()["n"]) for end in (fast, slow)] == [22, 22]


def test_puts_and_gets_take_turns(connect: Any) -> None:  # noqa: F811
    (rank,) = ends(connect, Channel("c", "reduce", SMALL), 1)
    with pytest.raises(UsageError, match="a get must follow a put"):
        rank.get()
    rank.put(items(SMALL, 0))
    with pytest.raises(UsageError, match="a put must follow the get"):
        rank.put(items(SMALL, 0))


def test_a_reduced_item_can_be_written_in_place(connect: Any) -> None:  # noqa: F811
    (rank,) = ends(connect, Channel("c", "reduce", SMALL), 1)
    with pytest.raises(LookupError), rank.slot() as slot:  # noqa: PT012
        slot["g"][...] = -1
        raise LookupError
    assert not rank.pending
    with rank.slot() as slot:
        slot["g"][...], slot["n"][...] = 2, 5
    found = rank.get()
    assert found["g"].tolist() == [[2.0, 2.0]] * 3 and int(found["n"]) == 5


def test_items_of_another_shape_are_refused(connect: Any) -> None:  # noqa: F811
    (rank,) = ends(connect, Channel("c", "reduce", SMALL), 1)
    with pytest.raises(UsageError, match="'g'"):
        rank.put(items(SMALL, 0) | {"g": np.zeros((2, 2), np.float32)})
    with pytest.raises(UsageError, match="got \\['g'\\]"):
        rank.put({"g": np.zeros((3, 2), np.float32)})
    assert not rank.pending


class Rank:
    """Puts random items, compares every result with the sum, and publishes a digest of all."""

    def __init__(self, ctx: Context, end: Any, log: Any, heard: Any, spec: api.Spec = LARGE) -> None:
        self.spec = spec
        self.ctx, self.end, self.log, self.heard = ctx, end, log, heard
        self.rounds, self.digest = 0, torch.zeros(6, dtype=torch.float64)

    def start(self) -> None:
        if self.log is not None:
            self.log.publish({"digest": self.digest})

    def step(self) -> None:
        if self.end.pending:
            found = self.end.get()
            for name, f in self.spec.items():
                parts = [items(self.spec, 1000 * self.rounds + r)[name] for r in range(self.ctx.replicas)]
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                mine = found[name].numpy()
                assert mine.tobytes() == np.asarray(total).astype(f.dtype).tobytes(), (self.ctx.index, self.rounds)
            self.digest = 0.9 * self.digest + found["g"].reshape(-1)[:6].double()
            self.rounds += 1
            if self.log is not None:
                self.log.publish({"digest": self.digest})
                self.ctx.metrics.count("updates")
            self.ctx.metrics.count("env_steps")
        with self.end.slot() as slot:
            for name, array in items(self.spec, 1000 * self.rounds + self.ctx.index).items():
                slot[name][...] = array

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "digest": self.digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds, self.digest = state["rounds"], state["digest"]


def ranks(count: int, make: Any = Rank, spec: api.Spec = LARGE) -> Program:
    p = Program("ranks")
    c = p.channel(Channel("c", "reduce", spec))
    log = p.channel(Channel("log", "params", {"digest": Field((6,), "float64", 0)}))
    p.role(
        "rank", partial(make, spec=spec), replicas=count, end=c.member(), log=log.writer(first=True), heard=log.reader()
    )
    return p


@pytest.mark.parametrize("spec, count", [(SMALL, 2), (SMALL, 3), (LARGE, 3)])
def test_ranks_agree_in_every_round(runtime: Any, spec: api.Spec, count: int) -> None:  # noqa: F811
    """Each rank raises where its result is not the sum in the order of the ranks, bit for bit."""
    report = runtime.launch(ranks(count, spec=spec), Launch(stop=Stop(updates=30)))
    assert report.reason == "updates" and report.updates >= 30
    expected = torch.zeros(6, dtype=torch.float64)
    for round in range(report.updates):
        total = items(spec, 1000 * round)["g"]
        for r in range(1, count):
            total = total + items(spec, 1000 * round + r)["g"]
        expected = 0.9 * expected + torch.from_numpy(total.reshape(-1)[:6]).double()
    assert torch.equal(report.params["log"]["digest"], expected)


def saved(folder: Path, steps: int) -> bool:
    """Whether a checkpoint of so many steps is complete, however long the disk takes for it."""
    return any(int(path.name.partition(".")[0]) >= steps for path in folder.glob("[0-9]*"))


@pytest.mark.parametrize("every", [0.0, 0.02], ids=["at the end", "while it runs"])
def test_a_run_of_ranks_goes_on_where_it_was_saved(runtime: Any, tmp_path: Path, every: float) -> None:  # noqa: F811
    """The ranks' states belong together, wherever each of them was when it was saved: Rank raises if they do not."""
    updates, resumed = 0, None
    for launch in range(2):
        saving = SaveOptions(tmp_path / "checkpoints", every=every, launch=launch)
        enough = updates + 30
        stop = Stop(asked=partial(saved, saving.folder, 3 * enough + 3)) if every else Stop(updates=enough)
        report = runtime.launch(ranks(3), Launch(stop=stop, saving=saving, resume=resumed))
        assert report.reason == ("observer" if every else "updates") and report.updates >= enough
        resumed = checkpoint.newest(saving.folder)
        if every:  # not the one of the end
            shutil.rmtree(resumed.path)
            resumed = checkpoint.newest(saving.folder)
        rounds = [resumed.read(f"role-rank-{r}")["role"]["rounds"] for r in range(3)]
        updates = resumed.manifest["updates"]
        assert max(rounds) - min(rounds) <= (0 if every else 1), "all after the same round; at the end, one apart"


class Dies(Rank):
    def step(self) -> None:
        if self.ctx.index == 1 and self.rounds == 3:
            raise ValueError("a rank that dies")
        super().step()


def test_the_siblings_of_a_rank_that_dies_do_not_hang() -> None:
    with pytest.raises(api.RoleFailed, match=r"rank\[1\]") as caught:
        LocalRuntime().launch(ranks(3, Dies), Launch(stop=Stop(seconds=50)))
    assert "a rank that dies" in str(caught.value)


class PutsAndGets(Rank):
    def step(self) -> None:
        self.end.put(items(LARGE, 0))
        self.end.get()


def test_a_step_that_puts_and_then_gets_is_a_deadlock_in_serial() -> None:
    with pytest.raises(Deadlock, match="may not put and then get"):
        SerialRuntime().launch(ranks(2, PutsAndGets), Launch(stop=Stop(updates=1)))


# ----------------------------------------------------------------------------------------- board
ROW = {"done": Field((), "int64"), "score": Field((2,), "float32", 0)}


def row(n: int) -> dict[str, np.ndarray]:
    return {"done": np.array(n), "score": np.array([n, n + 0.5], np.float32)}


def test_everyone_reads_all_rows_of_a_board_and_the_latest_wins(connect: Any) -> None:  # noqa: F811
    p = members(Channel("c", "board", ROW), 2)
    p.role("watcher", _End, inp=p.channels["c"].reader())
    found = connect(p)
    first, second, watcher = found["rank/0/end"], found["rank/1/end"], found["watcher/0/inp"]
    assert first.ready() and watcher.ready()
    assert watcher.get().puts.tolist() == [0, 0] and watcher.get().values["done"].tolist() == [0, 0]
    for n in (3, 4, 5):
        second.put(row(n))
    first.put(row(7))
    for end in (first, second, watcher):
        rows = end.get()
        assert rows.puts.tolist() == [1, 3]
        assert rows.values["done"].tolist() == [7, 5]
        assert rows.values["score"].tolist() == [[7.0, 7.5], [5.0, 5.5]]
    kept = watcher.get()
    first.put(row(9))
    assert kept.values["done"].tolist() == [7, 5], "a copy"


def test_who_only_reads_a_board_cannot_put(connect: Any) -> None:  # noqa: F811
    p = members(Channel("c", "board", ROW), 1)
    p.role("watcher", _End, inp=p.channels["c"].reader())
    with pytest.raises(UsageError, match="only reads"):
        connect(p)["watcher/0/inp"].put(row(0))


def test_a_row_of_another_shape_is_refused(connect: Any) -> None:  # noqa: F811
    (end,) = ends(connect, Channel("c", "board", ROW), 1)
    for wrong in ({"done": np.array(1)}, row(1) | {"score": np.zeros(3, np.float32)}):
        with pytest.raises(UsageError, match="score"):
            end.put(wrong)
    assert end.get().puts.tolist() == [0]


class Poster:
    """Puts its count, and checks that nobody's count ever falls and that no row is torn."""

    def __init__(self, ctx: Context, end: Any) -> None:
        self.ctx, self.end, self.seen = ctx, end, np.zeros(ctx.replicas, np.int64)

    def step(self) -> None:
        rows = self.end.get()
        assert (rows.values["done"] >= self.seen).all()
        assert (rows.values["done"] == rows.puts).all()
        assert (rows.values["score"][:, 0] == rows.values["done"]).all()
        self.seen = rows.values["done"]
        count = int(rows.puts[self.ctx.index]) + 1
        self.end.put({"done": np.array(count), "score": np.array([count, 0.0], np.float32)})
        self.ctx.metrics.count("env_steps")


def test_rows_are_whole_and_go_on_after_a_resume(runtime: Any, tmp_path: Path) -> None:  # noqa: F811
    p, steps = members(Channel("c", "board", ROW), 3, Poster), 0
    for launch in (0, 1):
        saving = SaveOptions(tmp_path / "checkpoints", every=0, launch=launch)
        found = checkpoint.newest(saving.folder) if launch else None
        report = runtime.launch(p, Launch(stop=Stop(steps=steps + 300), saving=saving, resume=found))
        steps = report.steps
        saved = checkpoint.newest(saving.folder).read("channel-c")
        assert int(np.sum(saved["puts"])) == steps, "every put counts, before and after"
        assert np.array_equal(saved["rows"]["done"], saved["puts"])


# ---------------------------------------------------------------------------------------- shared
PARAMS = {"w": Field((2,), axis=0), "b": Field((1, 3))}
RULE = SharedRMSProp(decay=0.99, eps=0.1)
SHARED = Channel("params", "shared", PARAMS, rule=RULE)


def gradient(number: float) -> Tensors:
    return {name: torch.full(f.shape, number) for name, f in PARAMS.items()}


def test_workers_move_the_same_parameters_and_share_their_statistics(connect: Any) -> None:  # noqa: F811
    """The fact sheet of A3C, 4.3: the second step sees the first one's average, though another worker took it."""
    p = members(SHARED, 2)
    p.role("evaluator", _End, params=SHARED.reader())
    found = connect(p)
    one, two, reader = found["rank/0/end"], found["rank/1/end"], found["evaluator/0/params"]
    assert not one.ready() and not two.ready() and not reader.ready() and reader.newest() == 0
    one.offer(gradient(0.0))
    two.offer(gradient(5.0))
    assert one.ready() and two.ready() and reader.ready()
    assert one.copy()[0] == 0 and one.copy()[1]["w"].tolist() == [0.0, 0.0], "the first offer counts"
    assert reader.latest()[0] == 1
    assert one.add(gradient(1.0), 7e-4) == 1
    torch.testing.assert_close(two.copy()[1]["b"], torch.full((1, 3), -0.00211058), atol=5e-9, rtol=0)
    mine = one.copy()[1]
    assert two.add(gradient(2.0), 7e-4) == 2
    version, params = reader.latest(newer_than=1)
    assert version == reader.newest() == 3 and reader.latest(newer_than=3) is None
    torch.testing.assert_close(params["w"], torch.full((2,), -0.00211058 - 0.00361599), atol=1e-8, rtol=0)
    assert float(mine["w"][0]) > -0.003, "a copy"


def test_tensors_of_another_shape_are_refused(connect: Any) -> None:  # noqa: F811
    (end,) = ends(connect, SHARED, 1)
    with pytest.raises(UsageError, match="'params'"):
        end.offer({"w": torch.zeros(2)})
    end.offer(gradient(0.0))
    with pytest.raises(UsageError, match="'w'"):
        end.add(gradient(0.0) | {"w": torch.zeros(3)}, 0.1)


class Racer:
    """Adds steps of one sign; one that dies leaves the count of its steps."""

    def __init__(self, ctx: Context, end: Any) -> None:
        self.ctx, self.end, self.last = ctx, end, -1

    def start(self) -> None:
        if self.ctx.index == 0:
            self.end.offer(gradient(0.0))

    def step(self) -> None:
        before, params = self.end.copy()
        assert all(bool(torch.isfinite(t).all()) for t in params.values())
        assert before >= self.last, "counts never fall"
        self.last = self.end.add(gradient(1.0), 1e-3)
        assert self.last > before
        self.ctx.metrics.count("env_steps")
        if self.ctx.index == 1 and self.ctx.generation == 0 and self.last > 40 and not self.ctx.exact:
            raise ValueError("a worker that dies")


def test_the_count_of_steps_is_exact_and_survives(runtime: Any, tmp_path: Path) -> None:  # noqa: F811
    p, steps = members(SHARED, 3, Racer, on_failure="restart"), 0
    for launch in (0, 1):
        saving = SaveOptions(tmp_path / "checkpoints", every=0, launch=launch)
        found = checkpoint.newest(saving.folder) if launch else None
        report = runtime.launch(p, Launch(stop=Stop(steps=steps + 300), saving=saving, resume=found))
        steps = report.steps
        saved = checkpoint.newest(saving.folder).read("params-params")
        version, params = saved["version"], saved["tensors"]
        assert steps <= version - 1 <= steps + 1, "the step before its death is counted by the channel alone"
        assert all(bool((t < 0).all()) for t in params.values())
        assert torch.equal(params["w"], report.params["params"]["w"])


def test_one_worker_is_the_optimiser_itself() -> None:
    torch.manual_seed(0)
    params = {name: torch.randn(f.shape) for name, f in PARAMS.items()}
    statistics = {name: torch.zeros(f.shape) for name, f in RULE.statistics(PARAMS).items()}
    leaves = [torch.nn.Parameter(t.clone()) for t in params.values()]
    from shoal.ops import RMSProp

    optimiser = RMSProp(leaves, lr=7e-4, decay=0.99, eps=0.1)
    for _ in range(5):
        step = {name: torch.randn(t.shape) for name, t in params.items()}
        RULE.apply(params, statistics, step, 7e-4)
        for leaf, g in zip(leaves, step.values(), strict=True):
            leaf.grad = g.clone()
        optimiser.step()
    for leaf, t in zip(leaves, params.values(), strict=True):
        assert torch.equal(leaf.detach(), t)


# --------------------------------------------------------------------- plain data: valid, drawn, counted
def whole() -> Program:
    p = ranks(2)
    board = p.channel(Channel("board", "board", ROW))
    p.channel(SHARED)
    p.role("worker", _End, replicas=3, board=board.member(), params=SHARED.member(), on_failure="restart")
    p.role("watcher", _End, board=board.reader(), params=SHARED.reader())
    return p


def test_bytes_are_counted_before_anything_runs() -> None:
    p = whole()
    p.validate()
    item, row_bytes, params = (api.spec_nbytes(spec) for spec in (LARGE, ROW, PARAMS))
    memory = p.memory()
    assert memory["c"] == 2 * (2 + 1) * item and memory["board"] == 2 * 3 * row_bytes and memory["params"] == 2 * params
    plan = layout.plan(p)
    for name, nbytes in layout.needed(plan).items():
        assert memory[name] <= nbytes <= memory[name] + 64 * 40, "but for the padding to cache lines"
    reduce = plan.groups["c"]
    assert isinstance(reduce, ReduceLayout) and reduce.shared_out
    assert plan.total >= sum(group.nbytes for group in plan.groups.values())


def test_pictures_show_them() -> None:
    p = whole()
    drawn = text(p)
    assert "c (reduce)" in drawn and "sum over 2 replicas" in drawn
    assert "3 rows, the latest of each wins" in drawn and "changed in place by 3 workers, without a lock" in drawn
    chart = mermaid(p)
    assert chart.count("<-->") == 3 and "(board)" in chart
    picture = svg(p)
    assert picture.count(">reduce<") == 1 and picture.count(">shared<") == 1


@pytest.mark.parametrize(
    "wire, expected",
    [
        (lambda p, c: p.role("x", _End, replicas=2, end=c.member(), on_failure="restart"), "expected 'stop'"),
        (lambda p, c: [p.role(n, _End, end=c.member()) for n in "xy"], "exactly one role"),
        (lambda p, c: p.role("x", _End, a=c.writer(), b=c.reader()), "exactly one role"),
        (lambda p, c: p.role("x", _End, a=c.member(), b=c.member()), "exactly one role"),
    ],
)
def test_a_reduce_joins_the_replicas_of_one_role(wire: Any, expected: str) -> None:
    p = Program("test")
    wire(p, p.channel(Channel("c", "reduce", SMALL)))
    with pytest.raises(WiringError, match=expected):
        p.validate()


@pytest.mark.parametrize(
    "channel, expected",
    [
        (Channel("c", "reduce", SMALL, mean=True), "averages its items, but field 'n' is int64"),
        (Channel("c", "reduce", {"b": Field((1,), "bool")}), "adds its items, but field 'b' is bool"),
        (replace(SHARED, rule=None), "no rule"),
        (Channel("c", "queue", ROW), "cannot be a member"),
    ],
)
def test_a_channel_that_cannot_be_is_refused(channel: Channel, expected: str) -> None:
    with pytest.raises(WiringError, match=expected):
        members(channel, 2).validate()


def test_only_one_replica_may_have_the_end_that_publishes() -> None:
    p = ranks(3)
    p.validate()
    assert p.writers(p.channels["log"]) == 1
    p.roles[0].ports["log"] = p.channels["log"].writer()
    with pytest.raises(WiringError, match="has 3 writers"):
        p.validate()
