"""Channels whose ends are on several nodes: what crosses is what was sent, once, in order, and bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from arenas import Arenas
from present import present

from shoal.api import PART, Context, Field, ShoalError, Stopped, bounds, views
from shoal.metering.recorder import Recorder
from shoal.program import Channel, Program
from shoal.ray_runtime import collective, insistent
from shoal.ray_runtime.collective import AllReduce, Store
from shoal.ray_runtime.parcels import Parcels
from shoal.ray_runtime.routes import Route, apart
from shoal.replay import Ratio, TableSpec
from shoal.roles.learner import LearnerRole
from shoal.roles.replay_shard import Gathered, ShardRole
from shoal.shm.group_layout import SMALL_REDUCE_BYTES
from shoal.shm.layout import CHECKPOINT, LINE, STOP
from shoal.shm.session import Session
from shoal.topology.replay_shards import add_shards, part_of

pytestmark = pytest.mark.timeout(60)

ITEM = {"number": Field((1,), "int64", 0), "data": Field((4, 2), "float32", 1)}
STEPS, ENVS = 4, 2
STREAM = {
    "obs": Field((STEPS, ENVS, 1)),
    "action": Field((STEPS, ENVS), "int64"),
    "reward": Field((STEPS, ENVS)),
    **{name: Field((STEPS, ENVS), "bool") for name in ("first", "terminated", "truncated", "valid")},
}


def unroll(number: int) -> dict[str, np.ndarray]:
    """Part ``number`` of an episode without an end; each observation tells its step and environment."""
    out = {name: np.zeros(f.shape, f.dtype) for name, f in STREAM.items()}
    out["obs"][..., 0] = number * STEPS + np.arange(STEPS)[:, None] + 1000 * np.arange(ENVS)
    out["valid"][:], out["first"][0] = True, True
    return out


Where = Mapping[tuple[str, int], str]


@pytest.fixture
def arenas() -> Iterator[Callable[[Program, Where], Arenas]]:
    made: list[Arenas] = []

    def make(program: Program, where: Where) -> Arenas:
        made.append(Arenas(program, where))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert not each.failures


def item(number: int) -> dict[str, np.ndarray]:
    return {"number": np.array([number]), "data": np.full((4, 2), number, np.float32)}


def soon(true: Callable[[], bool]) -> None:
    """Wait until something that other threads bring about is so."""
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.001)


def wired(channel: Channel, writers: int, **reader: Any) -> Program:
    p = Program("test")
    p.channel(channel)
    p.role("writer", None, replicas=writers, out=channel.writer())
    p.role("reader", None, inp=channel.reader(**reader))
    return p


FAR: Where = {("writer", 0): "a", ("writer", 1): "b", ("reader", 0): "b"}


@pytest.mark.parametrize("reader", [dict(), dict(count=3), dict(each=True)], ids=["single", "count", "each"])
def test_items_of_near_and_far_writers_arrive_once_and_in_order(arenas: Any, reader: dict[str, Any]) -> None:
    ends = arenas(wired(Channel("c", "queue", ITEM, 2), 2, **reader), FAR).ends

    def write(w: int) -> None:
        for n in range(60):
            ends[f"writer/{w}/out"].put(item(1000 * w + n), version=n)

    threads = [threading.Thread(target=write, args=(w,)) for w in (0, 1)]
    for thread in threads:
        thread.start()
    seen: list[Any] = []
    versions: list[int] = []
    while len(seen) < 120:
        batch = ends["reader/0/inp"].get()
        seen += batch.items["number"].tolist()
        versions += batch.versions
        assert (batch.items["data"][0].reshape(-1, 2)[:, 0].long() == batch.items["number"]).all()
    for thread in threads:
        thread.join()
    for w in (0, 1):
        assert [n for n in seen if n // 1000 == w] == [1000 * w + n for n in range(60)]
    assert versions == [n % 1000 for n in seen]
    if reader.get("each"):
        assert [n // 1000 for n in seen] == [0, 1] * 60


def test_what_is_under_way_is_bounded(arenas: Any) -> None:
    """A ring on either side, and one ring's content between them; then the writer waits."""
    made = arenas(wired(Channel("c", "queue", ITEM, 2), 2), FAR)
    writer, reader, put = made.ends["writer/0/out"], made.ends["reader/0/inp"], 0
    quiet = time.monotonic()
    while put < 4 or time.monotonic() - quiet < 0.3:
        if writer.ready():
            writer.put(item(put))
            put, quiet = put + 1, time.monotonic()
    assert put <= 6
    assert [int(reader.get().items["number"]) for _ in range(put)] == list(range(put))
    messages, nbytes = made.outgoing["a"].traffic["c"]
    assert messages <= put and nbytes == put * (64 + 64 + 64), "a header, and each field, in whole lines"


def test_only_what_is_used_of_an_item_crosses(arenas: Any) -> None:
    """Along each field's own axis."""
    spec = {"wide": Field((2, 40, 3)), "long": Field((40,), "int64", 0), "n": Field((1,), "int64", 0)}
    made = arenas(wired(Channel("c", "queue", spec, 2, used="n"), 2, each=True), FAR)
    rng = np.random.default_rng(0)
    given = [{name: rng.integers(1, 99, f.shape).astype(f.dtype) for name, f in spec.items()} for _ in range(2)]
    for i, used in enumerate((7, 0)):
        given[i]["n"][:] = used
        made.ends[f"writer/{i}/out"].put(given[i])
    found = made.ends["reader/0/inp"].get().items
    assert found["n"].tolist() == [7, 0]
    assert np.array_equal(found["wide"][:, :7].numpy(), given[0]["wide"][:, :7]) and not found["wide"][:, 7:40].any()
    assert found["long"][:7].tolist() == given[0]["long"][:7].tolist()
    lines = [2 * 7 * 3 * 4, 7 * 8, 8]
    assert made.outgoing["a"].traffic["c"] == (1, 64 + sum(-(-nbytes // 64) * 64 for nbytes in lines))


def test_an_item_may_have_fields_without_axes(arenas: Any) -> None:
    ends = arenas(wired(Channel("c", "queue", {"n": Field((), "int64")}, 2), 2), FAR).ends
    ends["writer/0/out"].put({"n": np.array(7)})
    assert ends["reader/0/inp"].get().items["n"].tolist() == 7


def test_an_old_life_is_not_heard_once_there_is_a_new_one(arenas: Any) -> None:
    """A node that was given up and comes back must not go on counting."""
    made = arenas(wired(Channel("c", "queue", ITEM, 8), 2), FAR)
    parcels = Parcels(made.plan.rings["c"])

    def parcel(number: int, generation: int, sequence: int) -> np.ndarray:
        flat = np.zeros(parcels.nbytes, np.uint8)
        flat[:24].view(np.int64)[:] = 0, generation, sequence
        flat[64:72].view(np.int64)[0] = number
        return flat

    incoming, reader = made.incoming["b"], made.ends["reader/0/inp"]
    incoming.deliver("c", 0, [parcel(1, 0, 5)])
    incoming.deliver("c", 0, [parcel(2, 1, 0)])  # on another node, whose ring begins anew
    incoming.deliver("c", 0, [parcel(3, 0, 6), parcel(4, 1, 1)])
    assert [int(reader.get().items["number"]) for _ in range(3)] == [1, 2, 4]
    assert not reader.ready()


def test_parameters_cross_under_their_numbers_and_the_latest_wins(arenas: Any) -> None:
    channel = Channel("p", "params", {"w": Field((3,), "float32", 0), "n": Field((), "int64")})
    p = Program("test")
    p.channel(channel)
    p.role("learner", None, out=channel.writer())
    p.role("actor", None, replicas=4, inp=channel.reader())
    p.role("step", None, inp=channel.reader(lockstep=1))
    where = {("learner", 0): "a", **{("actor", i): "abbc"[i] for i in range(4)}, ("step", 0): "b"}
    made = arenas(p, where)
    ends, learner = made.ends, made.ends["learner/0/out"]
    assert {r.target for r in made.routes} == {"b", "c"}
    for n in range(1, 41):
        learner.publish({"w": torch.full((3,), float(n)), "n": torch.tensor(n)})
    for i in range(4):
        reader = ends[f"actor/{i}/inp"]
        soon(partial(lambda of: of.newest() == 40, reader))
        version, params = reader.latest()
        assert (version, params["w"].tolist(), int(params["n"])) == (40, [40.0] * 3, 40)
    assert ends["step/0/inp"].latest()[0] == 40 and not ends["step/0/inp"].ready()


SERVED: Where = {**{("worker", i): "ab"[i] for i in (0, 1)}, **{("server", i): "abc"[i] for i in range(3)}}


def served() -> Program:
    """Workers send gradients to a server in three parts, which publishes parameters in three parts."""
    p = Program("test")
    gradients = p.channel(Channel("g", "queue", {"g": Field((7,), axis=0)}, 2, divided=1))
    params = p.channel(Channel("p", "params", {"w": Field((2, 2), axis=0), "b": Field((3,), axis=0)}, divided=1))
    p.role("worker", None, replicas=2, g=gradients.writer(), p=params.reader())
    p.role("server", None, replicas=3, g=gradients.reader(), p=params.writer())
    return p


def test_each_part_of_every_item_arrives_at_its_reader(arenas: Any) -> None:
    made = arenas(served(), SERVED)
    ends = made.ends

    def work(w: int) -> None:
        for n in range(40):
            ends[f"worker/{w}/g"].put({"g": 1000.0 * w + 10 * n + np.arange(7, dtype=np.float32)}, [n, n + 1, n + 2])

    threads = [threading.Thread(target=work, args=(w,)) for w in (0, 1)]
    for thread in threads:
        thread.start()
    places = np.array_split(np.arange(7, dtype=np.float32), 3)
    seen: list[list[int]] = [[], [], []]
    for _ in range(80):
        for k in range(3):
            batch = ends[f"server/{k}/g"].get()
            first = float(batch.items["g"][0] - places[k][0])
            assert (batch.items["g"].numpy() - first == places[k]).all()
            assert batch.versions == (first % 1000 // 10 + k,)
            seen[k].append(int(first))
    for found in seen:
        for w in (0, 1):
            assert [n for n in found if n // 1000 == w] == [1000 * w + 10 * n for n in range(40)]
    for thread in threads:
        thread.join()
    assert {r.channel for r in made.routes if r.kind == "queue"} == {"g/0", "g/1", "g/2"}


def test_parameters_in_parts_come_together_on_every_node(arenas: Any) -> None:
    ends = arenas(served(), SERVED).ends
    flat = torch.zeros(32)  # each array begins at a multiple of 16 elements
    whole = views(flat, {"w": Field((2, 2), axis=0), "b": Field((3,), axis=0)})
    readers = [ends[f"worker/{w}/p"] for w in (0, 1)]
    assert not any(reader.ready() for reader in readers)
    for version in range(1, 6):
        whole["w"][:], whole["b"][:] = version * torch.arange(4.0).view(2, 2), version * torch.arange(4.0, 7.0)
        for k, cut in enumerate(bounds(32, 3)):
            assert ends[f"server/{k}/p"].publish({PART: flat[slice(*cut)]}) == version
    assert ends["server/2/p"].publish({PART: flat[slice(*bounds(32, 3)[2])]}) == 6
    for reader in readers:
        soon(partial(lambda of: of.newest() == 5 and (of.latest() or True) and of.versions == (5, 5, 6), reader))
        version, params = reader.latest()
        assert version == 5 and params["w"].tolist() == [[0, 5], [10, 15]] and params["b"].tolist() == [20, 25, 30]


@pytest.mark.parametrize("per_insert", [0.5, 3.0])
def test_a_replay_keeps_its_ratio_end_to_end(arenas: Any, per_insert: float) -> None:
    """However much its far writers could send, the table lets in what the ratio allows; the rest waits where it was
    made."""
    ratio = Ratio(min_size=10, samples_per_insert=per_insert, slack=24.0)
    channel = Channel("c", "replay", STREAM, 2, ratio, TableSpec(10_000, gamma=1.0))
    ends = arenas(wired(channel, 2, count=4), FAR).ends
    writers, reader = [ends[f"writer/{i}/out"] for i in (0, 1)], ends["reader/0/inp"]
    made, sampled, held_back, size = [0, 0], 0, 0, 0
    while sampled < 400:  # or the timeout of the test
        for i, writer in enumerate(writers):
            if writer.ready():
                unroll = {name: np.zeros(f.shape, f.dtype) for name, f in STREAM.items()}
                unroll["obs"][..., 0] = made[i] * STEPS + np.arange(STEPS)[:, None] + 1000 * np.arange(ENVS)
                unroll["valid"][:], unroll["first"][0] = True, made[i] == 0
                writer.put(unroll)
                made[i] += 1
            else:
                held_back += 1
        if reader.poll():
            batch = reader.get()
            sampled, size = sampled + 4, batch.size
            assert (batch.items["next/obs"] - batch.items["obs"] == 1).all(), "streams stay whole"
            assert abs(per_insert * (size - 10) - sampled) <= 24.0 + 1e-6
    assert held_back > 0


def test_a_replay_in_shards_on_two_nodes_is_one(arenas: Any) -> None:
    """Each batch has all its items, those of both nodes; priorities find their shard."""
    batch, p = 64, Program("test")
    table = TableSpec(100, 1, 1.0, sampler="proportional")
    replay = p.channel(part_of(Channel("c", "replay", STREAM, 2, Ratio(), table), 2))
    p.role("writer", None, replicas=2, out=replay.writer())
    _, learner = add_shards(p, replay, 2, batch, LearnerRole)
    p.role("learner", None, samples=learner["samples"], learned=learner["learned"])
    made = arenas(p, {(role.name, i): "ab"[i] for role in p.roles for i in range(role.replicas)})
    ends, items = made.ends, table.batch(STREAM, batch)

    def work(i: int) -> None:
        table, masses, learned, samples = (ends[f"replay/{i}/{n}"] for n in ("table", "masses", "learned", "samples"))
        ctx = Context("replay", i, 2, 0, i, Recorder())
        shard = ShardRole(ctx, table, masses, learned, samples, items, batch)
        with contextlib.suppress(Stopped):
            while True:
                shard.step()

    for i in range(2):
        ends[f"writer/{i}/out"].put(unroll(10 * i))
        threading.Thread(target=work, args=(i,), daemon=True).start()
    reader = Gathered(ends["learner/0/samples"], ends["learner/0/learned"], items, batch)
    seen: set[int] = set()
    for _ in range(30):
        found = reader.get()
        keys = present(found.keys)
        assert len(keys) == batch and found.size == 2 * (STEPS - 1) * ENVS
        assert (found.items["obs"].flatten() % 1000 // 40 == keys % 2).all(), "the key names its shard"
        np.testing.assert_allclose(present(found.probs), 1 / found.size, rtol=1e-5)
        seen |= set(keys.tolist())
    assert len(seen) == found.size
    assert "samples" in made.outgoing["b"].traffic
    last = max(seen)
    reader.reprioritise(torch.tensor(sorted(seen)), torch.tensor([1e6 * (key == last) for key in sorted(seen)]))
    soon(lambda: bool((present(reader.get().keys) == last).float().mean() > 0.9))


def ranks(size: int, count: int) -> Program:
    p = Program("test")
    channel = p.channel(Channel("c", "reduce", {"g": Field((size,)), "n": Field((), "int64")}))
    p.role("rank", None, replicas=count, end=channel.member())
    return p


def spread(nodes: str) -> Where:
    return {("rank", i): node for i, node in enumerate(nodes)}


def put(end: Any, number: float) -> None:
    with end.slot() as slot:
        slot["g"][...], slot["n"][...] = number, 1


@pytest.mark.parametrize("size", [3, SMALL_REDUCE_BYTES // 4 + 7], ids=["small", "large"])
@pytest.mark.parametrize("nodes", ["ab", "aabc"])
def test_ranks_on_several_nodes_get_the_same_sums(arenas: Any, nodes: str, size: int) -> None:
    """Bit for bit the same at all of them; of two, those of other runtimes. What is counted is what a ring sends."""
    count = len(nodes)
    made = arenas(ranks(size, count), spread(nodes))
    rounds, found = 6, [[] for _ in nodes]  # type: int, list[list[Any]]
    given = np.random.default_rng(0).standard_normal((rounds, count, size)).astype(np.float32)

    def work(rank: int) -> None:
        end = made.ends[f"rank/{rank}/end"]
        for round in range(rounds):
            with end.slot() as slot:
                slot["g"][...], slot["n"][...] = given[round, rank], 1
            result = end.get()
            assert int(result["n"]) == count
            found[rank].append(result["g"].numpy().copy())

    threads = [threading.Thread(target=work, args=(r,)) for r in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for round in range(rounds):
        assert len({rank[round].tobytes() for rank in found}) == 1
        exact = given[round].astype(np.float64).sum(0)
        np.testing.assert_allclose(found[0][round], exact, rtol=0, atol=4 * np.finfo(np.float32).eps * 8)
        if count == 2:
            assert found[0][round].tobytes() == (given[round, 0] + given[round, 1]).tobytes()
    lines = made.plan.groups["c"].lines // 8
    sent = [
        made.sessions[node].arena.words[lines + rank * LINE : lines + rank * LINE + 2]
        for rank, node in enumerate(nodes)
    ]
    nbytes = size * 4 + 8 + 8 * count
    crosses = [node != nodes[(rank + 1) % count] for rank, node in enumerate(nodes)]
    assert [list(each) for each in sent] == [
        [rounds, rounds * (2 * (count - 1) * nbytes // count)] if far else [0, 0] for far in crosses
    ]


def test_members_know_of_a_checkpoint_when_all_of_them_do(arenas: Any) -> None:
    made = arenas(ranks(2, 2), spread("ab"))
    ends = [made.ends["rank/0/end"], made.ends["rank/1/end"]]
    agreed = []
    for known in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2)):
        for node, end, number in zip("ab", ends, known, strict=True):
            made.sessions[node].arena.words[CHECKPOINT // 8] = number
            put(end, 1.0)
        for end in ends:
            end.get()
        agreed.append([end.agreed for end in ends])
    assert agreed == [[0, 0], [0, 0], [1, 1], [1, 1], [2, 2]]


@pytest.mark.parametrize("was, now", [("ab", "ab"), ("ab", "aa"), ("aa", "ab")])
def test_ranks_that_ended_a_round_apart_go_on_wherever_they_are(arenas: Any, was: str, now: str) -> None:
    """The first has got what the second has not, and has put again; of a large item, which in one arena each adds a
    part."""
    size = SMALL_REDUCE_BYTES // 4 + 7
    ends = arenas(ranks(size, 2), spread(was)).ends
    first, second = ends["rank/0/end"], ends["rank/1/end"]
    put(first, 1.0)
    put(second, 10.0)
    getting = threading.Thread(target=second.get) if was == "aa" else None  # who adds a part of it, too
    if getting is not None:
        behind = second.state_dict()
        getting.start()
    assert first.get()["g"][:2].tolist() == [11.0, 11.0]
    put(first, 2.0)
    if getting is not None:
        getting.join()
        behind["parts"] = second.state_dict()["parts"]
    else:
        behind = second.state_dict()
    states = [first.state_dict(), behind]
    assert [(s["puts"], s["gets"]) for s in states] == [(2, 1), (1, 0)]
    ends = arenas(ranks(size, 2), spread(now)).ends
    first, second = ends["rank/0/end"], ends["rank/1/end"]
    for end, mine in zip((first, second), states, strict=True):
        end.load_state_dict(mine, lambda: states)
    found = second.get()["g"]
    assert found.min() == found.max() == 11.0
    put(second, 20.0)
    with ThreadPoolExecutor(2) as pool:  # in one arena, each waits for the other's part
        for result in pool.map(lambda end: end.get()["g"], (first, second)):
            assert result.min() == result.max() == 22.0


@pytest.mark.parametrize("now, size", [("abc", 5), ("aaa", 5), ("aaa", SMALL_REDUCE_BYTES // 4 + 7)])
def test_a_result_that_one_rank_had_got_is_the_same_for_those_that_had_not(arenas: Any, now: str, size: int) -> None:
    """More than two ranks on several nodes add in an order of the library's own, which nobody repeats."""
    made = arenas(ranks(size, 3), spread("abc")).ends
    ends = [made[f"rank/{i}/end"] for i in range(3)]
    for end, given in zip(ends, np.random.default_rng(1).standard_normal((3, size)).astype(np.float32), strict=True):
        with end.slot() as slot:
            slot["g"][...], slot["n"][...] = given, 1
    behind = [end.state_dict() for end in ends[1:]]
    exact = ends[0].get()["g"].numpy() + np.float32(0.25)  # what no other order of adding gives either
    ahead = ends[0].state_dict()
    ahead["result"]["g"] = exact.copy()
    states = [ahead, *behind]
    assert [(s["puts"], s["gets"]) for s in states] == [(1, 1), (1, 0), (1, 0)]
    made = arenas(ranks(size, 3), spread(now)).ends
    ends = [made[f"rank/{i}/end"] for i in range(3)]
    for end, mine in zip(ends, states, strict=True):
        end.load_state_dict(mine, lambda: states)
    assert ends[0].state_dict().get("result", ahead["result"])["g"].tobytes() == exact.tobytes()
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda end: end.get()["g"].numpy().copy(), ends[1:]):
            assert result.tobytes() == exact.tobytes()
    for i, end in enumerate(ends):
        put(end, 10.0**i)
    with ThreadPoolExecutor(3) as pool:
        for result in pool.map(lambda end: end.get()["g"], ends):
            assert result.min() == result.max() == 111.0


def test_a_result_that_was_not_saved_is_not_known_later(arenas: Any) -> None:
    """A rank goes on from a state of another runtime, without the result that it had got, and is saved again at once;
    who had not got it finds it by adding."""
    ends = arenas(ranks(3, 2), spread("ab")).ends
    first, second = ends["rank/0/end"], ends["rank/1/end"]
    put(first, 1.0)
    put(second, 10.0)
    behind = second.state_dict()
    first.get()
    ahead = {name: value for name, value in first.state_dict().items() if name != "result"}
    for _ in range(2):
        ends = arenas(ranks(3, 2), spread("ab")).ends
        first, second = ends["rank/0/end"], ends["rank/1/end"]
        states = [ahead, behind]
        for end, mine in zip((first, second), states, strict=True):
            end.load_state_dict(mine, lambda states=states: states)
        ahead, behind = first.state_dict(), second.state_dict()
    assert second.get()["g"].tolist() == [11.0] * 3


def lost(arenas: Any) -> tuple[Any, Any]:
    """A member on a node of its own whose only sibling has gone in the middle of a round, and its session."""
    made = arenas(ranks(2, 2), spread("ab"))
    left, other = made.ends["rank/0/end"], made.ends["rank/1/end"]
    put(left, 1.0)
    other._group._group = None
    return left, made.sessions["a"]


def test_a_member_whose_sibling_is_gone_waits_to_be_told_that_the_run_ends(arenas: Any) -> None:
    """Who is lost, and why, the driver says; the state is that of before the step, and is saved."""
    left, session = lost(arenas)
    left._session.fresh = True
    threading.Timer(0.5, lambda: session.arena.words.__setitem__(STOP // 8, 1)).start()
    with pytest.raises(Stopped, match="the run ended during wait:c"):
        left.get()
    assert left._session.fresh and left.pending
    saved = left.state_dict()
    assert (saved["puts"], saved["gets"]) == (1, 0)


def test_a_connection_that_breaks_without_a_reason_ends_the_role(arenas: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(collective, "LOSS_REPORT_SECONDS", 0.5)
    left, _ = lost(arenas)
    with pytest.raises(ShoalError, match="channel 'c': the connection to its other members broke, though nobody says"):
        left.get()


def test_a_member_that_never_comes_holds_nobody_when_the_run_ends(arenas: Any) -> None:
    made = arenas(ranks(2, 2), spread("aa"))
    session, store = Session(made.sessions["a"].arena, Recorder()), Store("127.0.0.1")
    threading.Timer(0.5, lambda: session.arena.words.__setitem__(STOP // 8, 1)).start()
    with pytest.raises(Stopped):
        AllReduce(store.where, "127.0.0.1")(session, made.plan.groups["c"], 0)


def test_the_store_listens_on_the_address_of_its_node_alone() -> None:
    store = Store("127.0.0.1")
    socket.create_connection(store.where, 5.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.where[1]), 5.0)


def test_a_boards_rows_cross_with_their_numbers(arenas: Any) -> None:
    channel = Channel("c", "board", {"done": Field((), "int64")})
    p = Program("test")
    p.channel(channel)
    p.role("rank", None, replicas=2, end=channel.member())
    p.role("watcher", None, inp=channel.reader())
    ends = arenas(p, {("rank", 0): "a", ("rank", 1): "b", ("watcher", 0): "c"}).ends
    for n in range(1, 8):
        ends["rank/0/end"].put({"done": np.array(10 * n)})
    ends["rank/1/end"].put({"done": np.array(5)})
    for name in ("rank/0/end", "rank/1/end", "watcher/0/inp"):
        soon(partial(lambda of: ends[of].get().puts.tolist() == [7, 1], name))
        assert ends[name].get().values["done"].tolist() == [70, 5]


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_what_a_broken_connection_may_have_lost_arrives_once(
    arenas: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(insistent, "RETRY_SECONDS", 0.01)
    p = wired(Channel("c", "queue", ITEM, 2), 1)
    newest = p.channel(Channel("p", "params", {"w": Field((), axis=0)}))
    scores = p.channel(Channel("b", "board", {"done": Field((), "int64")}))
    p.role("learner", None, out=newest.writer(), score=scores.member())
    p.role("actor", None, inp=newest.reader(), scores=scores.reader())
    made = arenas(p, {("writer", 0): "a", ("reader", 0): "b", ("learner", 0): "a", ("actor", 0): "b"})
    ends = made.ends
    writing = threading.Thread(target=lambda: [ends["writer/0/out"].put(item(n)) for n in range(1, 31)])
    writing.start()
    for n in range(1, 31):
        made.breaks[:] = [moment] * (n % 4)
        ends["learner/0/out"].publish({"w": torch.tensor(float(n))})
        ends["learner/0/score"].put({"done": np.array(n)})
        assert int(ends["reader/0/inp"].get().items["number"]) == n
    soon(lambda: ends["actor/0/inp"].newest() == 30 and ends["actor/0/scores"].get().puts.tolist() == [30])
    assert ends["actor/0/inp"].latest()[1]["w"] == 30.0
    writing.join()
    assert not ends["reader/0/inp"].ready()


def test_what_stays_on_its_node_has_no_route(arenas: Any) -> None:
    program = wired(Channel("c", "queue", ITEM, 2), 2)
    near: Where = {("writer", 0): "b", ("writer", 1): "b", ("reader", 0): "b"}
    assert arenas(program, near).routes == [] and apart(program, near) == set()
    assert arenas(program, FAR).routes == [Route("queue", "c", "a", "b", 0)] and apart(program, FAR) == {"c"}
