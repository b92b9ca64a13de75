"""Gorila: gradients in, parameters back. It is DQN where nobody is late, counts who is, and outlives its processes."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Snapshots, config, run, spy
from noted import noted

from shoal.api import PART, Batch, Context, Field, UsageError, views
from shoal.learning.off_policy import OffPolicy
from shoal.learning.optimiser import OptimiserConfig
from shoal.learning.parameter_server import OutlierFilter, RemoteLearner, Shard, gradient_spec
from shoal.local.runtime import LocalRuntime
from shoal.metering.recorder import Recorder
from shoal.ops import AdaGrad
from shoal.program import Channel, Program
from shoal.records.checkpoint import SaveOptions, newest
from shoal.records.checkpoint_params import newest_params
from shoal.roles.server import ServerRole
from shoal.runtime.launch import Launch, Stop
from shoal.settings.schedule import linear
from shoal.shm import layout, ports
from shoal.shm.arena import Arena
from shoal.shm.session import Session
from shoal.systems import downpour, dqn, gorila
from shoal.systems.dqn import QLearning

COMMON: dict[str, Any] = dict(env="CartPole-v1", device="cpu", precision="fp32", steps=20_000)
ALONE = dict(actors=1, learners=1, max_lag=0, outliers=0.0)


# -------------------------------------------------------------------------------------- identities
@pytest.mark.parametrize(
    "shards,fields",
    [
        (1, dict(optimiser="adagrad", learning_rate=0.05, max_grad_norm=0.5)),
        (3, dict(optimiser="rmsprop", target_period=7)),
        (
            5,
            dict(
                prioritised=True,
                dueling=True,
                n_step=3,
                learning_rate=linear(1e-3, 0.0),
                max_grad_norm=linear(1.0, 0.1),
            ),
        ),
    ],
    ids=["adagrad, clipped", "rmsprop", "adam, prioritised"],
)
def test_one_actor_and_one_learner_are_dqn(shards: int, fields: dict[str, Any]) -> None:
    """Bit for bit: whatever the number of shards, and with the target network of DQN."""
    one = run(gorila.program(config("gorila", **COMMON, **ALONE, **fields, shards=shards)), 40)
    plain = run(dqn.program(config("dqn", **COMMON, **fields)), 40)
    assert one.steps == plain.steps > 100 and one.updates == plain.updates == 40
    assert one.params["params"].keys() == plain.params["params"].keys()
    for name, tensor in plain.params["params"].items():
        assert torch.equal(one.params["params"][name], tensor), name


def test_with_a_second_learner_it_is_another_system() -> None:
    """The identity above is not trivially true."""
    two = run(gorila.program(config("gorila", **COMMON, actors=2, learners=2)), 20)
    plain = run(dqn.program(config("dqn", **COMMON)), 20)
    assert not all(torch.equal(v, plain.params["params"][k]) for k, v in two.params["params"].items())


def test_a_replay_of_all_learners_is_dqns_for_one() -> None:
    """A replay server with one actor and one learner draws what DQN draws: bit for bit, from the same parameters."""
    begun: list[Any] = []

    def keep(role: Any) -> None:
        begun.append({name: p.clone() for name, p in role.learner.params().items()})

    plain = run(spy(dqn.program(config("dqn", **COMMON)), "learner", keep), 40)
    fields = {**COMMON, **ALONE, "shards": 3, "replay_servers": 1}
    program = gorila.program(config("gorila", **fields))
    one = run(spy(program, "learner", lambda role: role.learner.algorithm.nets.load_state_dict(begun[0])), 40)
    assert one.steps == plain.steps > 100
    assert all(torch.equal(one.params["params"][name], p) for name, p in plain.params["params"].items())


def test_every_learner_learns_from_every_actor() -> None:
    """By a replay of all learners; by their own, each from its own actors."""

    def actors_of_learners(**fields: Any) -> list[set[int]]:
        seen: dict[int, set[int]] = {}

        def mark(role: Any) -> None:  # as the first number of each observation
            step, index = role.env.step, role.ctx.index

            def marked(action: Any) -> Any:
                out = step(action)
                for obs in out.obs.values():
                    obs[:, 0] = index
                return out

            role.env.step = marked

        def look(role: Any) -> None:
            add, found = role.learner.add, seen.setdefault(role.ctx.index, set())

            def found_in(batch: Batch) -> Any:
                found.update(batch.items["next/obs"][:, 0].tolist())
                return add(batch)

            role.learner.add = found_in

        program = gorila.program(config("gorila", **COMMON, **fields))
        run(spy(spy(program, "actor", mark), "learner", look), 30)
        return [{int(x) for x in seen[i] if x in (0.0, 1.0, 2.0)} for i in range(2)]

    assert actors_of_learners(actors=2, learners=2) == [{0}, {1}]
    assert actors_of_learners(actors=2, learners=2, replay_servers=1) == [{0, 1}] * 2
    assert actors_of_learners(actors=3, learners=2, replay_servers=2) == [{0, 1, 2}] * 2


@pytest.mark.timeout(100)
def test_a_replay_server_is_killed_and_the_run_goes_on() -> None:
    cfg = config("gorila", **COMMON, learners=2, replay_servers=2, samples_per_insert=0.0)

    def due(role: Any) -> bool:
        return getattr(role, "held", None) is None and bool(role.ctx.metrics.totals.get("bytes"))

    program = killed(gorila.program(cfg), "replay", due)
    report = LocalRuntime(backoff=0.01).launch(program, Launch(stop=Stop(updates=300)))
    assert report.restarts == 1 and report.updates >= 300


# ------------------------------------------------------------------------------ staleness and filters
@pytest.mark.parametrize("learners", [1, 3])
def test_n_learners_make_each_gradient_wait_for_n_minus_1_others(learners: int) -> None:
    """distbelief-gorila.md 4.8, exactly, as the serial runtime lets learners take turns."""
    seen = Snapshots()
    cfg = config("gorila", **COMMON, actors=learners, learners=learners, outliers=0.0)
    run(gorila.program(cfg), 60, observers=[seen])
    last = seen.seen[-1].records
    assert last["gradient_lag_p50"] == last["gradient_lag_max"] == learners - 1
    assert last["stale_gradients"] == 0.0


class Ends:
    """Both ends of a shard: gradients made with given versions, and what is published."""

    def __init__(self, *gradients: tuple[int, float]) -> None:
        self.left, self.version = list(gradients), 0

    def ready(self) -> bool:
        return True

    poll = ready

    def get(self) -> Batch:
        version, value = self.left.pop(0)
        return Batch({"gradient": torch.full((1,), value)}, versions=(version,))

    def publish(self, params: Any) -> int:
        self.version += 1
        return self.version

    @contextlib.contextmanager
    def slot(self) -> Iterator[Any]:
        yield {PART: torch.zeros(1)}
        self.version += 1

    def reprioritise(self, keys: Any, priorities: Any) -> None: ...


def test_the_fact_sheets_stale_gradients() -> None:
    """distbelief-gorila.md 4.2: at version 105 a lag of 15 is dropped and one of 10 applied, where 10 are allowed."""
    ends, shard, metrics = Ends((0, 5.0), (90, 1.0), (95, 1.0)), one_weight(), Recorder()
    server = ServerRole(Context("server", 0, 1, 0, 0, metrics), shard, ends, ends, max_lag=10)
    server.step()
    assert ends.version == 1 and shard.params()["part"].item() == 5.0, "the first message is parameters"
    ends.version = 105
    server.step()
    assert ends.version == 105 and shard.params()["part"].item() == 5.0
    server.step()
    assert ends.version == 106 and shard.params()["part"].item() == pytest.approx(4.9)
    told = metrics.drain()
    assert told.tallies["gradient_lag"] == {15: 1, 10: 1} and told.records["stale_gradients"] == (1.0, 2)
    assert told.counts == {"bytes": 12, "updates": 1}


def one_weight() -> Shard:
    """With AdaGrad and a learning rate of 0.1."""
    cfg = OptimiserConfig(learning_rate=0.1, optimiser="adagrad", optimiser_eps=1e-10)
    return Shard(cfg, {"w": Field((1,))}, 0, 1)


def test_the_fact_sheets_adagrad() -> None:
    """distbelief-gorila.md 4.1: steps of .1 * 3 / 3 and .1 * 4 / 5; and two gradients pushed together are one of 7."""
    shard = one_weight()
    first, second = torch.zeros(1), torch.zeros(1)
    assert shard.descend(torch.tensor([3.0]), 0, first) == shard.descend(torch.tensor([4.0]), 1, second) == 0.1
    assert first.item() == pytest.approx(-0.1), "what was published first stays as it is"
    assert second.item() == shard.params()["part"].item() == pytest.approx(-0.1 - 0.08)
    assert float(shard.state_dict()["optimiser"]["state"][0]["sum"]) == 25.0
    other = torch.nn.Parameter(torch.zeros(1))
    AdaGrad([other], 0.1).descend([torch.tensor([14.0])], 0.1, divisor=2.0)
    assert other.item() == pytest.approx(-0.1)


def test_what_a_shard_saves_is_its_own() -> None:
    """It lies in memory that readers see, and that the step after the next writes again."""
    shard, buffers = one_weight(), (torch.zeros(1), torch.zeros(1))
    shard.descend(torch.tensor([3.0]), 0, buffers[0])
    saved = shard.state_dict()
    for step in (1, 2):
        shard.descend(torch.tensor([3.0]), step, buffers[step % 2])
    other = one_weight()
    other.load_state_dict(saved)
    assert saved["part"].item() == other.params()[PART].item() == pytest.approx(-0.1)
    assert buffers[0].item() == shard.params()[PART].item() < -0.2


def test_a_learners_network_lies_in_its_weights() -> None:
    """What is fetched into them is what it computes with and gives to actors; and so is a state that is loaded."""
    cfg: Any = config("gorila", **COMMON)
    learner = RemoteLearner(QLearning(cfg, dqn.network(cfg)))
    spec = {name: Field(tuple(p.shape)) for name, p in learner.algorithm.nets.named_parameters()}
    assert all(torch.equal(p, learner.params()[name]) for name, p in views(learner.weights, spec).items())
    obs = {"obs": torch.ones(2, 4)}
    state = learner.state_dict()
    before = learner.algorithm.nets(obs).detach().clone()
    state["nets"] = {name: p.clone() for name, p in state["nets"].items()}
    learner.weights.mul_(0.5)
    learner.loaded(1)
    assert all(torch.equal(2 * p, state["nets"][name]) for name, p in learner.params().items())
    assert not torch.equal(learner.algorithm.nets(obs), before)
    learner.load_state_dict(state)
    assert torch.equal(learner.algorithm.nets(obs), before)
    assert all(torch.equal(p, state["nets"][name]) for name, p in views(learner.weights, spec).items())


def test_the_fact_sheets_outliers() -> None:
    """distbelief-gorila.md 4.3: after losses of 1, 2, 3, 2, 2 the threshold at three deviations is 3.897367."""
    for loss, accepted in ((3.9, False), (3.89, True), (-3.9, False)):
        found = OutlierFilter(3.0, warmup=5)
        assert all(found.accepts(x) for x in (1.0, 2.0, 3.0, 2.0, 2.0))
        assert found.mean == pytest.approx(2.0) and found.threshold == pytest.approx(3.897367, abs=1e-6)
        assert found.accepts(loss) == accepted


def test_one_outlier_hardly_counts_and_a_new_regime_is_let_in() -> None:
    rng = np.random.default_rng(0)
    found = OutlierFilter(4.0)
    assert all(found.accepts(x) for x in rng.normal(1.0, 0.1, 99)), "until 100 are known, all are accepted"
    found.accepts(1.0)
    before = found.threshold
    assert not found.accepts(1e6)
    assert found.threshold < 1.1 * before
    rejected = [found.accepts(x) for x in rng.normal(30.0, 3.0, 400)].count(False)
    assert 5 < rejected < 100
    constant = OutlierFilter(4.0)
    assert all(constant.accepts(0.0) for _ in range(100)) and [constant.accepts(1.0) for _ in range(600)][-1]


def test_a_loss_far_above_the_mean_sends_no_gradient() -> None:
    """Of 60 batches, one learner's 51st has rewards a thousand times as large: it is counted, and changes nothing."""
    seen, program = Snapshots(), gorila.program(config("gorila", **COMMON, **{**ALONE, "outliers": 5.0}, td_clip=None))
    sent: list[int] = []

    def spoil(role: Any) -> None:
        role.learner.outliers.warmup = 30
        add, put, calls = role.learner.add, role.gradients.put, [0]

        def spoiled(batch: Batch) -> Any:
            calls[0] += 1
            if calls[0] == 51:
                batch = batch._replace(items={**batch.items, "reward": batch.items["reward"] * 1e3})
            return add(batch)

        role.learner.add = spoiled
        role.gradients.put = lambda items, versions: noted(sent, calls[0], put(items, versions))

    run(spy(program, "learner", spoil), 59, observers=[seen])
    assert 51 not in sent and {50, 52} <= set(sent)
    assert sum(s.records.get("outlier_gradients", 0.0) for s in seen.seen) > 0


def test_a_batch_that_is_not_finite_changes_no_priority() -> None:
    cfg: Any = config("gorila", **COMMON, prioritised=True)
    learner = RemoteLearner(QLearning(cfg, dqn.network(cfg), 0.4))
    rows = 4
    items = {
        "obs": torch.ones(rows, 4), "next/obs": torch.ones(rows, 4), "action": torch.zeros(rows, dtype=torch.int64),
        "reward": torch.tensor([0.0, math.inf, 0.0, 0.0]), "discount": torch.full((rows,), 0.9),
    }  # fmt: skip
    update = learner.add(Batch(items, torch.arange(rows), torch.full((rows,), 0.1), 10))
    assert update.metrics == {"skipped_updates": 1.0} and update.priorities is None


def test_the_target_network_follows_the_servers_count() -> None:
    """distbelief-gorila.md 4.7, with a period of 60: nothing after 59 updates, a copy after 60, also where some of
    them were never seen."""
    cfg: Any = config("dqn", env="CartPole-v1")
    nets = dqn.network(cfg)
    algorithm = OffPolicy(nets, 60)
    weight, target = (dict(net.named_parameters())["encoder.mlp.0.weight"] for net in (nets, algorithm.target))

    def moved(steps: int) -> bool:
        with torch.no_grad():
            weight.add_(1.0)
        algorithm.follow(steps)
        return torch.equal(weight, target)

    assert [moved(n) for n in (0, 1, 59, 60, 61, 119, 125, 179)] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    algorithm.target_period = 600  # as a run may be resumed
    assert [moved(n) for n in (599, 600, 601)] == [False, True, False]


def test_fetching_and_pushing_less_often() -> None:
    """distbelief-gorila.md 4.5: gradients at unchanged parameters add up, and the server takes one step."""
    program = gorila.program(config("gorila", **COMMON, **ALONE, n_fetch=4, n_push=4))
    versions: list[tuple[int, ...]] = []
    fetched: list[int] = []

    def watch(role: Any) -> None:
        add, put = role.learner.add, role.gradients.put
        role.learner.add = lambda batch: noted(fetched, role.version, add(batch))
        role.gradients.put = lambda items, made: noted(versions, tuple(made), put(items, made))

    report = run(spy(program, "learner", watch), 5)
    assert report.updates == 5
    assert fetched[:12] == [1] * 4 + [2] * 4 + [3] * 4
    assert versions[1:4] == [(1, 1), (2, 2), (3, 3)]


def test_schedules_end_with_the_run_whatever_makes_an_update() -> None:
    """20,000 steps of which each is learned from 8 times, 16 at a time, are 10,000 batches, but for the first 64 steps,
    before which nothing is sampled."""
    for fields, updates in (({}, 10_000), (dict(n_push=4), 2_500), (dict(n_push=2, pieces=5), 1_000)):
        cfg = config("gorila", **COMMON, **fields)
        assert cfg.progress(updates) == pytest.approx(1.0) and cfg.updates() == pytest.approx(
            updates * (1 - 64 / 20_000)
        )


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 3 actors, found 2"):
        gorila.program(config("gorila", **COMMON, actors=2, learners=3))
    with pytest.raises(UsageError, match="each replay server needs an actor: expected at least 3 actors, found 2"):
        gorila.program(config("gorila", **COMMON, actors=2, replay_servers=3))
    with pytest.raises(UsageError, match="is uniform; expected prioritised to be off"):
        gorila.program(config("gorila", **COMMON, replay_servers=1, prioritised=True))
    with pytest.raises(UsageError, match="the buffer 'running_mean'"):
        gradient_spec(torch.nn.BatchNorm1d(3))


def test_a_synchronous_batch_is_the_mean_of_its_pieces() -> None:
    """Of gradients made with the newest parameters; the pieces of a learner that is late are dropped."""
    ends, shard, metrics = Ends((0, 5.0), (1, 1.0), (1, 5.0), (1, 9.0), (2, 4.0)), one_weight(), Recorder()
    server = ServerRole(Context("server", 0, 1, 0, 0, metrics), shard, ends, ends, pieces=2)
    server.step()
    server.step()
    assert ends.version == 1 and server.state_dict()["count"] == 1
    server.step()
    assert ends.version == 2 and shard.params()["part"].item() == pytest.approx(4.9)
    assert float(shard.state_dict()["optimiser"]["state"][0]["sum"]) == 9.0
    server.step()
    server.step()
    assert ends.version == 2 and server.state_dict()["count"] == 1
    assert metrics.drain().records["stale_gradients"] == (1.0, 4)


def test_downpour_is_gorila_with_other_settings() -> None:
    fields: dict[str, Any] = dict(COMMON, shards=3, max_lag=0, outliers=0.0)
    one = run(downpour.program(config("downpour", **fields, pieces=2)), 10)
    shared = dict(n_fetch=2, n_push=2, optimiser="adagrad", optimiser_eps=1e-8, learning_rate=0.02, pieces=2)
    other = run(gorila.program(config("gorila", **fields, **shared)), 10)
    assert all(torch.equal(v, other.params["params"][k]) for k, v in one.params["params"].items())


# ------------------------------------------------------------------------------------------ processes
def killed(program: Program, role: str, due: Callable[[Any], bool]) -> Program:
    """The program, whose replica 1 of that role is killed in its first life, at the first step where it is ``due``."""

    def mortal(made: Any) -> None:
        step = made.step

        def deadly() -> None:
            if due(made) and made.ctx.index == 1 and made.ctx.generation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            step()

        made.step = deadly

    return spy(program, role, mortal)


@pytest.mark.timeout(100)
def test_a_killed_shard_comes_back_from_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And says what is lost; so does a learner, which fills its replay anew. All go on, and the run can be resumed."""
    cfg = config("gorila", **COMMON, learners=2, shards=2, batch=4, samples_per_insert=0.0)
    saving = SaveOptions(tmp_path / "checkpoints", 0.1)
    published: list[int] = []  # by the shard since there is a checkpoint of a run with updates

    def slowly(learner: Any) -> bool:
        time.sleep(0.004)
        return bool(learner.steps > 5)

    def due(server: Any) -> bool:
        with contextlib.suppress(OSError, StopIteration):
            saved = json.loads(next(saving.folder.glob("0*/manifest.json")).read_text())
            published.extend([server.params.version] if saved["updates"] > 2 else [])
        return bool(published) and published[-1] >= published[0] + 10

    program = killed(gorila.program(cfg), "learner", slowly)

    program = killed(program, "server", due)
    with caplog.at_level(logging.WARNING, "shoal"):
        report = LocalRuntime(backoff=0.01).launch(program, Launch(stop=Stop(updates=1_500), saving=saving))
    assert report.restarts == 2 and report.updates > 20
    found = [re.search(r"server\[1\] goes on from its checkpoint after \d+ updates: the (\d+) since are lost", message)
             for message in caplog.messages]  # fmt: skip
    assert [int(lost[1]) >= 10 for lost in found if lost] == [True], caplog.messages
    assert all(bool(torch.isfinite(p).all()) for p in report.params["params"].values())
    last = newest(saving.folder)
    assert last.manifest["updates"] == report.updates and all(last.has(f"role-learner-{i}") for i in (0, 1))
    _, params = newest_params(saving.folder, "params") or (0, {})
    assert all(torch.equal(params[name], p) for name, p in report.params["params"].items())


def test_a_shard_that_was_never_saved_goes_on_with_what_it_published(caplog: pytest.LogCaptureFixture) -> None:
    channel = Channel("params", "params", {"w": Field((3,), axis=0)}, divided=16)
    program = Program("test")
    program.channel(channel)
    program.role("server", None, params=channel.writer())
    program.role("reader", None, inp=channel.reader())
    plan = layout.plan(program)
    session = Session(Arena(plan.total), Recorder())
    ends = [ports.build(session, plan, role, 0, 0, 0) for role in program.roles]
    ends[0]["params"].publish({PART: torch.arange(16.0)})
    shard = Shard(OptimiserConfig(), channel.spec, 0, 16)
    ServerRole(Context("server", 0, 1, 1, 0, Recorder()), shard, Ends(), ends[0]["params"]).start()
    assert shard.params()[PART].tolist() == list(range(16))
    assert "after 0 updates; its optimiser begins anew" in caplog.text
