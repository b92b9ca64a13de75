"""Numbers that a program is wired with (ladders, schedules, ratios, tables, shares, means), worked out by hand from
settings away from their defaults."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from helpers import config, learning_role, run, spy
from noted import noted

from shoal.api import Context, UsageError, spec_nbytes
from shoal.metering.recorder import Recorder
from shoal.replay import TableSpec
from shoal.systems import SYSTEMS, apex_dpg, async_q, dd_ppo, dqn, impala, load, r2d2, recurrent_ppo, unreal
from shoal.systems.unreal.frame_replay import frame_replay_nbytes
from shoal.topology.channels import trajectories
from shoal.topology.config import messages_per_batch
from shoal.topology.exploration import ladder
from shoal.topology.replayed import progress

CPU: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
REPLAYED = ("dqn", "apex-dqn", "rainbow", "apex-dpg", "d4pg", "gorila", "downpour")


def context(index: int = 0, replicas: int = 1, steps: int = 0, **fields: Any) -> Context:
    return Context("actor", index, replicas, 0, 0, Recorder(), steps=lambda: steps, **fields)


@pytest.mark.parametrize("base, alpha", [(0.4, 7.0), (0.7, 3.0), (0.5, 0.0)])
@pytest.mark.parametrize("index", [0, 2])
def test_ladder_of_epsilons_is_horgans_formula(base: float, alpha: float, index: int) -> None:
    """``epsilon_i = base^(1 + i alpha / (N - 1))`` for environment i of N in all actors (section 4.1)."""
    cfg = config("apex-dqn", **{**CPU, "envs": 2, "epsilon_base": base, "epsilon_alpha": alpha})
    expected = [base ** (1 + (2 * index + e) * alpha / 5) for e in range(2)]
    np.testing.assert_allclose(ladder(cfg, context(index, 3)), expected, rtol=1e-12)
    assert np.asarray(r2d2.agent(config("r2d2", **CPU, envs=2, epsilon_base=base, epsilon_alpha=alpha), 0,
                                 context(index, 3)).epsilon) == pytest.approx(expected)  # fmt: skip


@pytest.mark.parametrize(
    "steps, expected", [(0, 0.8), (5, 0.8 - 0.6 * 10 / 40), (19, 0.8 - 0.6 * 38 / 40), (20, 0.2), (21, 0.2)]
)
def test_epsilon_of_dqn_falls_linearly_by_the_steps_of_all_actors(steps: int, expected: float) -> None:
    cfg = config("dqn", **CPU, epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=40)
    assert dqn.agent(cfg, 0, context(1, 2)).epsilon(steps) == pytest.approx(expected, rel=1e-12)
    taken = dqn.agent(cfg, 0, context(1, 2, counts={"actions": 7, "env_steps": 3})).steps
    assert (taken, dqn.agent(cfg, 0, context(1, 2)).steps) == (7, 0)
    assert dqn.agent(cfg, 0, context(1, 2)).epsilon(10**9) == 0.2


def test_epsilon_of_dqn_falls_to_its_ladder() -> None:
    cfg = config("dqn", **CPU, envs=2, epsilon_start=0.8, epsilon_ladder=True, epsilon_steps=40)
    last = np.array([0.4, 0.4 ** (1 + 7)])
    agent = dqn.agent(cfg, 0, context())
    np.testing.assert_allclose(agent.epsilon(10), 0.8 + (last - 0.8) / 4, rtol=1e-12)
    np.testing.assert_allclose(agent.epsilon(40), last, rtol=1e-12)


def test_epsilon_of_an_asynchronous_worker() -> None:
    cfg = config(
        "async-q", **CPU, epsilon_start=0.9, epsilon_final=(0.3, 0.5), epsilon_odds=(0.0, 1.0), epsilon_steps=40
    )
    for steps, expected in ((0, 0.9), (10, 0.8), (39, 0.5 + 0.4 / 40), (40, 0.5), (80, 0.5)):
        np.testing.assert_allclose(async_q.agent(cfg, 0, context(steps=steps)).epsilon(0), [expected] * 2, rtol=1e-9)
    none = dataclasses.replace(cfg, epsilon_steps=0)
    np.testing.assert_allclose(async_q.agent(none, 0, context()).epsilon(0), [0.5, 0.5])
    assert async_q.agent(dataclasses.replace(cfg, eval_epsilon=0.125)).epsilon(0) == 0.125


def test_final_epsilons_depend_on_the_seed_of_the_worker() -> None:
    cfg = config("async-q", **CPU, envs=64, epsilon_steps=0)
    drawn = [tuple(np.asarray(async_q.agent(cfg, seed, context()).epsilon(0)).tolist()) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {0.1, 0.01, 0.5}


@pytest.mark.parametrize("system", REPLAYED)
def test_replay_table_has_the_settings(system: str) -> None:
    fields: dict[str, Any] = dict(
        prioritised=True, replay=300, n_step=4, gamma=0.7, priority_exponent=0.45, sampler="rank", evict_every=48,
        evict="proportional", evict_exponent=-0.35, v_min=-9.0, v_max=9.0, actor_priorities=system not in ("rainbow",),
    )  # fmt: skip
    names = {f.name for f in dataclasses.fields(load(system).Config)}
    cfg = config(system, **CPU, **{k: v for k, v in fields.items() if k in names})
    channel = load(system).program(cfg).channels["transitions"]
    table: Any = channel.table
    assert channel.capacity == 2  # messages that an actor may have waiting
    assert (table.capacity, table.n_step, table.gamma, table.alpha, table.sampler) == (300, 4, 0.7, 0.45, "rank")
    assert table.initial == ("max" if system == "rainbow" else "given")
    if "evict" in names:
        assert (table.evict, table.alpha_evict) == ("proportional", -0.35)
    if "evict_every" in names:
        assert table.evict_every == 48
    plain: Any = load(system).program(config(system, **CPU, prioritised=False)).channels["transitions"].table
    assert plain.sampler == "uniform"
    assert "q_max" not in load(system).program(config(system, **CPU, prioritised=False, **(
        {"actor_priorities": False} if "actor_priorities" in names else {}
    ))).channels["transitions"].spec  # fmt: skip


def test_replay_table_of_r2d2_has_the_settings() -> None:
    cfg = config(
        "r2d2", **CPU, replay=77, sequence=9, overlap=5, burn_in=3, n_step=2, gamma=0.8, priority_mix=0.6, rescale=0.25,
        sampler="rank", priority_exponent=0.3, staleness=False,
    )  # fmt: skip
    table = cfg.sequences()
    assert (table.capacity, table.length, table.stride, table.burn_in, table.n_step) == (77, 9, 4, 3, 2)
    assert (table.gamma, table.eta, table.rescale, table.alpha, table.sampler) == (0.8, 0.6, 0.25, 0.3, "rank")
    assert not table.probes and dataclasses.replace(cfg, staleness=True).sequences().probes
    assert not dataclasses.replace(cfg, staleness=True, core="none").sequences().probes
    assert dataclasses.replace(cfg, prioritised=False).sequences().sampler == "uniform"
    with pytest.raises(UsageError, match="overlap"):
        dataclasses.replace(cfg, overlap=9).sequences()
    assert dataclasses.replace(cfg, overlap=8).stride() == 1


@pytest.mark.parametrize("batch, slack", [(500, 1_000), (50, 2 * 4 * 3 * 5.0)])
def test_ratio_of_transitions_holds_both_sides_back_by_two_messages_or_batches(batch: int, slack: float) -> None:
    cfg = config("dqn", **{**CPU, "unroll": 4, "envs": 3, "batch": batch, "samples_per_insert": 5.0, "min_replay": 71})
    ratio = cfg.ratio()
    assert (ratio.min_size, ratio.samples_per_insert, ratio.slack) == (71, 5.0, slack)
    free = dataclasses.replace(cfg, samples_per_insert=0.0).ratio()
    assert (free.min_size, free.samples_per_insert) == (71, None)


def test_ratio_of_gorila_leaves_room_for_the_batches_of_all_learners() -> None:
    small: dict[str, Any] = {**CPU, "unroll": 2, "envs": 1, "batch": 10, "samples_per_insert": 1.0, "actors": 4}
    for servers, slack in ((0, 20), (2, 80)):
        cfg = config("gorila", **small, learners=4, replay_servers=servers)
        ratio = load("gorila").program(cfg).channels["transitions"].ratio
        assert (ratio.samples_per_insert, ratio.slack) == (1.0, slack)


def test_ratio_of_sequences() -> None:
    """Steps learned from per step: of a sequence of 8 with 4 that are new, half as many sequences a new one."""
    cfg = config(
        "r2d2", **{**CPU, "sequence": 8, "overlap": 4, "samples_per_insert": 6.0, "min_replay": 9, "batch": 100}
    )
    assert (cfg.ratio().min_size, cfg.ratio().samples_per_insert, cfg.ratio().slack) == (9, 3.0, 200)
    assert dataclasses.replace(cfg, samples_per_insert=0.0).ratio().samples_per_insert is None
    few = dataclasses.replace(cfg, batch=1).ratio()
    assert few.slack == 2 * 3.0 * cfg.sequences().items_per_insert(r2d2.sent(cfg))


@pytest.mark.parametrize("system, fields, updates", [
    ("dqn", dict(steps=1_000, samples_per_insert=4.0, batch=50, min_replay=100), 72.0),
    ("dqn", dict(samples_per_insert=0.0), None),
    ("r2d2", dict(steps=1_000, samples_per_insert=4.0, batch=5, sequence=8, overlap=2), 100.0),
    ("gorila", dict(steps=1_000, samples_per_insert=4.0, batch=50, n_push=2, pieces=5, min_replay=100), 7.2),
    ("impala", dict(steps=1_000, unroll=5, envs=4), 50.0),
    ("impala", dict(steps=1_000, unroll=5, envs=4, batch=2), 100.0),
    ("impala", dict(steps=1_000, unroll=5, envs=4, learners=2, actors=2), 25.0),
    ("recurrent-ppo", dict(steps=1_000, unroll=5, envs=4, actors=2), 25.0),
    ("a3c", dict(steps=1_000, unroll=5, envs=4, actors=2), 50.0), ("es", dict(), None),
])  # fmt: skip
def test_updates_that_the_steps_of_a_run_make(system: str, fields: dict[str, Any], updates: float | None) -> None:
    cfg = config(system, **{**CPU, **fields})
    assert cfg.updates() == (updates if updates is None else pytest.approx(updates, rel=1e-12))


def test_progress_is_that_of_updates_where_the_ratio_tells_them_else_that_of_steps() -> None:
    cfg = config("dqn", **{**CPU, "steps": 1_000, "samples_per_insert": 4.0, "batch": 50})
    assert progress(cfg, context(steps=500), 20) == pytest.approx(0.25)
    assert progress(dataclasses.replace(cfg, samples_per_insert=0.0), context(steps=500), 20) == 0.5


@pytest.mark.parametrize("learners, expected", [(1, 0.3), (2, 0.16)])
def test_progress_of_impala_is_of_steps_and_with_several_learners_of_their_updates(
    learners: int, expected: float
) -> None:
    cfg = config("impala", **CPU, steps=500, unroll=5, envs=4, batch=2, actors=2, learners=learners)
    made, seen = impala.program(cfg), []
    spy(made, "learner", lambda role: seen.append(role.learner))
    run(made, 1)
    learner = seen[0]
    assert learner.parts == 2 and learner.progress is not None
    if learners == 2:
        assert learner.progress(4) == pytest.approx(4 * 5 * 2 * 2 / 500) == expected
    else:
        assert 0.0 < learner.progress(10**6) <= 1.0, "of steps"


@pytest.mark.parametrize("batch, envs, messages", [(0, 4, 1), (4, 4, 1), (8, 4, 2), (12, 4, 3), (2, 4, 1), (1, 4, 1)])
def test_messages_per_batch(batch: int, envs: int, messages: int) -> None:
    assert messages_per_batch(batch, envs) == messages


@pytest.mark.parametrize("batch, envs, messages", [(7, 4, 2), (3, 4, 1), (8, 6, 1), (8, 11, 1), (16, 6, 3)])
def test_a_batch_that_would_cut_messages_is_the_nearest_that_does_not(batch: int, envs: int, messages: int) -> None:
    assert messages_per_batch(batch, envs) == messages


@pytest.mark.parametrize(
    "batch, queue, actors, capacity", [(0, 1, 2, 1), (0, 3, 2, 3), (20, 1, 2, 3), (20, 4, 2, 4), (20, 1, 5, 1)]
)
def test_queue_of_impala_holds_a_batch(batch: int, queue: int, actors: int, capacity: int) -> None:
    cfg = config("impala", **CPU, envs=4, batch=batch, queue=queue, actors=actors)
    made = impala.program(cfg)
    assert made.channels["trajectories"].capacity == capacity
    (port,) = [
        p for r in made.roles if r.name == "learner" for p in r.ports.values() if p.channel.name == "trajectories"
    ]
    assert port.count == max(1, batch // 4)


@pytest.mark.parametrize("queue, batch, capacity", [(1, 4, 2), (3, 4, 4), (1, 16, 4)])
def test_queue_of_impala_holds_one_more_where_a_server_acts(queue: int, batch: int, capacity: int) -> None:
    cfg = config("impala", **CPU, envs=4, batch=batch, queue=queue, actors=1, inference="server")
    (sent,) = [c for c in impala.program(cfg).channels.values() if c.name == "trajectories"]
    assert sent.capacity == capacity


@pytest.mark.parametrize("system, slow", [("impala", 0.25), ("dd-ppo", 0.25)])
def test_learners_that_share_follow_the_mean_of_their_gradients(system: str, slow: float) -> None:
    """One step of plain gradient descent along ``(g_1 + g_2) / 2``, neither the sum nor one of them."""
    fields: dict[str, Any] = {
        **CPU, "env": "CartPole-v1", "actors": 2, "optimiser": "sgd", "momentum": 0.0, "learning_rate": slow,
        "max_grad_norm": None,
    }  # fmt: skip
    fields |= {"learners": 2} if system == "impala" else {"epochs": 1, "minibatches": 1, "sync_frac": 2.0}
    made = load(system).program(config(system, **fields))
    begun: list[torch.Tensor] = []
    gradients: dict[int, np.ndarray] = {}

    def attach(role: Any) -> None:
        gradient = role.learner.gradient

        def seen(out: Any) -> None:
            if not begun:
                begun.append(torch.cat([p.detach().flatten().clone() for p in role.learner.gradient_step.parameters]))
            gradient(out)
            gradients.setdefault(role.ctx.index, out["gradient"].copy())

        role.learner.gradient = seen

    roles: list[Any] = []
    name = "learner" if system == "impala" else "rank"
    spy(spy(made, name, attach), name, roles.append)
    run(made, 1)
    after = torch.cat([p.detach().flatten() for p in roles[0].learner.gradient_step.parameters])
    mean = torch.from_numpy((gradients[0] + gradients[1]) / 2)
    assert not np.allclose(gradients[0], gradients[1])
    torch.testing.assert_close(after, begun[0] - slow * mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "pairs, envs, block, actors, share", [(12, 4, 0, 2, 2), (12, 4, 3, 2, 2), (12, 4, 2, 4, 2), (16, 4, 0, 1, 4)]
)
def test_blocks_of_a_generation_are_shared_among_workers(
    pairs: int, envs: int, block: int, actors: int, share: int
) -> None:
    cfg = config("es", **CPU, pairs=pairs, envs=envs, block=block, actors=actors)
    made = load("es").program(cfg)
    assert cfg.blocks() == pairs // (block or envs) and made.channels["results"].capacity == 2 * share
    (port,) = [p for r in made.roles if r.name == "worker" for p in r.ports.values() if p.channel.name == "params"]
    assert port.lockstep == share
    assert math.prod(made.channels["noise"].spec["noise"].shape) == cfg.noise_table


@pytest.mark.parametrize("servers, updaters, parts, slack", [(0, 2, 2, 2 * 20), (3, 2, 3, 2 * 40)])
def test_replay_of_qt_opt_is_cut_in_equal_parts(servers: int, updaters: int, parts: int, slack: float) -> None:
    cfg = config(
        "qt-opt", **{**CPU, "replay": 100, "min_replay": 50, "samples_per_insert": 6.0, "label_uses": 3.0, "actors": 6,
                     "batch": 20, "updaters": updaters, "replay_servers": servers, "unroll": 2, "envs": 1},
    )  # fmt: skip
    made = load("qt-opt").program(cfg)
    transitions, labels = made.channels["transitions"], made.channels["labels"]
    assert cast(TableSpec, transitions.table).capacity == -(-100 // parts)
    assert transitions.ratio.min_size == -(-50 // parts)
    assert (transitions.ratio.samples_per_insert, transitions.ratio.slack) == (2.0, slack)
    assert (labels.ratio.min_size, labels.ratio.samples_per_insert, labels.ratio.slack) == (20, 3.0, 2 * 20 * 3.0)
    free = load("qt-opt").program(dataclasses.replace(cfg, samples_per_insert=0.0))
    assert (
        free.channels["transitions"].ratio.samples_per_insert
        is free.channels["labels"].ratio.samples_per_insert
        is None
    )


@pytest.mark.parametrize("shards", [2, 3])
def test_parts_of_a_sharded_replay(shards: int) -> None:
    cfg = config(
        "dqn", **{**CPU, "replay": 100, "min_replay": 50, "actors": 6, "samples_per_insert": 6.0, "prioritised": True}
    )
    whole, part = (
        load("dqn").program(dataclasses.replace(cfg, replay_shards=n)).channels["transitions"] for n in (1, shards)
    )
    assert cast(TableSpec, part.table).capacity == -(-100 // shards) and part.ratio.min_size == -(-50 // shards)
    assert part.ratio.samples_per_insert == 6.0 * shards and part.ratio.slack == whole.ratio.slack * shards


@pytest.mark.parametrize("system, role, fields, copies", [
    ("qt-opt", "learner", {}, 14), ("dqn", "learner", dict(learner_processes=3), 3 + 4), ("dqn", "learner", {}, 0),
    ("apex-dpg", "learner", dict(learner_processes=2), 2 + 4), ("qt-opt", "updater", {}, 0),
])  # fmt: skip
def test_memory_of_a_role_counts_copies_of_the_parameters(
    system: str, role: str, fields: dict[str, Any], copies: int
) -> None:
    made = load(system).program(config(system, **{**CPU, "learner_processes": 1, **fields}))
    (found,) = [r.memory for r in made.roles if r.name == role]
    assert found == copies * spec_nbytes(made.channels["params"].spec)


@pytest.mark.parametrize("processes", [1, 2])
def test_memory_of_ppo_counts_the_batch_and_copies_of_the_parameters(processes: int) -> None:
    cfg = config("recurrent-ppo", **CPU, actors=2, learner_processes=processes)
    made = load("recurrent-ppo").program(cfg)
    (found,) = [r.memory for r in made.roles if r.name == "learner"]
    batch = 2 * spec_nbytes(made.channels["rollouts"].spec)
    assert found == (batch + 5 * spec_nbytes(made.channels["params"].spec) if processes == 2 else 0)


def test_memory_of_a_rank_counts_two_rollouts_and_four_copies_of_the_parameters() -> None:
    cfg = config("dd-ppo", **CPU)
    made = load("dd-ppo").program(cfg)
    rollout = spec_nbytes(trajectories(cfg, dd_ppo.network, dd_ppo.EXTRAS))
    assert made.roles[0].memory == 2 * rollout + 4 * spec_nbytes(made.channels["params"].spec)


def test_memory_of_unreal_is_that_of_its_replay() -> None:
    cfg = config("unreal", **CPU, envs=2, replay=101)
    segment = trajectories(cfg, unreal.network, {})
    assert unreal.program(cfg).roles[0].memory == frame_replay_nbytes(50, segment) + spec_nbytes(segment)
    assert frame_replay_nbytes(50, segment) > spec_nbytes(segment) > 0
    off = dict.fromkeys(("pixel_control", "reward_prediction", "value_replay"), False)
    assert unreal.program(dataclasses.replace(cfg, **off)).roles[0].memory == spec_nbytes(segment)
    with pytest.raises(UsageError, match="must hold more than a segment"):
        unreal.program(dataclasses.replace(cfg, replay=2 * cfg.unroll + 1))
    unreal.program(dataclasses.replace(cfg, replay=2 * cfg.unroll + 2))


@pytest.mark.parametrize("batch, parts", [(0, 1), (4, 1), (2, 2), (1, 4), (8, 1)])
def test_parts_of_a_message_of_impala(batch: int, parts: int) -> None:
    made, seen = impala.program(config("impala", **CPU, envs=4, batch=batch)), []
    spy(made, "learner", lambda role: seen.append(role.learner.parts))
    run(made, 1)
    assert seen == [parts]


@pytest.mark.parametrize("fields, lag, pieces, deviations", [
    (dict(max_lag=0, outliers=0.0), None, 1, None), (dict(max_lag=7, outliers=3.0), 7, 1, 3.0),
    (dict(max_lag=7, pieces=2), 0, 2, 4.0),
])  # fmt: skip
def test_server_and_its_learners_have_the_settings(
    fields: dict[str, Any], lag: int | None, pieces: int, deviations: float | None
) -> None:
    cfg = config("gorila", **CPU, n_fetch=3, n_push=2, **fields)
    made, servers, learners = load("gorila").program(cfg), list[Any](), list[Any]()
    spy(spy(made, "server", servers.append), "learner", learners.append)
    run(made, 1)
    assert {(role.max_lag, role.pieces) for role in servers} == {(lag, pieces)}
    for role in learners:
        assert getattr(role.learner.outliers, "deviations", None) == deviations


@pytest.mark.parametrize("hidden, own, batch, shares", [
    ((400, 300), (200, 100), 256, 256 * (3 * 400 + 400 * 300 + 3 * 200 + 200 * 100) // 2**24),
    ((400, 300), (), 256, 256 * 2 * (3 * 400 + 400 * 300) // 2**24), ((8,), (), 16, 0),
])  # fmt: skip
def test_shares_of_a_gradient_of_dpg(hidden: Any, own: Any, batch: int, shares: int) -> None:
    """Weights times rows, by 2^24."""
    cfg = config("apex-dpg", **{**CPU, "hidden": hidden, "policy_hidden": own, "batch": batch})
    assert cfg.shares() == shares


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("threads", [0, 3])
def test_role_that_learns_has_the_threads_that_are_asked_for_and_any_other_one(system: str, threads: int) -> None:
    fields = {"v_min": -9.0, "v_max": 9.0} if system == "d4pg" else {}
    made = load(system).program(config(system, **CPU, **fields, learner_threads=threads))
    for role in made.roles:
        assert role.threads == ((threads or 1) if role.name == learning_role(system) else 1), role.name


@pytest.mark.parametrize("servers", [0, 2])
def test_batches_of_a_replay_server_are_read_one_by_one(servers: int) -> None:
    for system, reads in (("qt-opt", "updater"), ("gorila", "learner")):
        cfg = config(system, **{**CPU, "batch": 12, "actors": 4, "replay_servers": servers})
        roles = {role.name: role for role in load(system).program(cfg).roles}
        counts = [p.count for p in roles[reads].ports.values() if p.channel.name in ("transitions", "batches")]
        assert counts == [1 if servers else 12]


@pytest.mark.parametrize("fields, shares", [
    (dict(envs=8, unroll=128, minibatches=1), 2), (dict(envs=4, unroll=128, minibatches=1), 1),
    (dict(envs=8, unroll=128, minibatches=1, core="lstm"), 1), (dict(envs=8, unroll=128, minibatches=2), 1),
])  # fmt: skip
def test_shares_of_a_gradient_of_ppo(fields: dict[str, Any], shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many steps of vectors a share: 512; with a recurrent core there is one."""
    asked: list[int] = []
    monkeypatch.setattr(recurrent_ppo.Config, "processes", lambda self, worth: noted(asked, worth, worth))
    assert recurrent_ppo.gradient_processes(config("recurrent-ppo", **{**CPU, **fields})) == shares == asked[0]


@pytest.mark.parametrize("steps, random", [(0, True), (6, True), (7, False)])
def test_agent_of_dpg_acts_at_random_for_its_first_steps_and_then_with_its_noise(steps: int, random: bool) -> None:
    cfg = config("apex-dpg", **CPU, noise=0.7, random_steps=7)
    agent = apex_dpg.agent(cfg, 0, context(1, 3, steps))  # steps of all three actors
    assert (agent.at_random(), agent.noise) == (random, 0.7)
    for other in (apex_dpg.agent(cfg), apex_dpg.agent(dataclasses.replace(cfg, random_steps=0), 0, context())):
        assert (other.at_random(), other.noise) == (False, 0.7), "an evaluation; and where nothing is to be random"


@pytest.mark.parametrize("pad", ["repeat", "zero"])
@pytest.mark.parametrize("system", ["r2d2", "dqn"])
def test_replay_stacks_and_pads_as_the_environment_does(system: str, pad: Any) -> None:
    cfg = config(system, **CPU)
    spec = dataclasses.replace(cfg.env_spec(), stack=3, pad=pad)
    object.__setattr__(cfg, "env_spec", lambda: spec)
    table = cfg.sequences() if system == "r2d2" else cfg.table()
    assert (table.stack, table.pad) == (3, pad)


def test_learner_of_evolution_strategies_has_seen_its_reference() -> None:
    """Of images; before it publishes anything."""
    cfg = config("es", **CPU, env="toy:catch", reference=5, pairs=4, noise_table=2**22)
    made, seen = load("es").program(cfg), []
    spy(made, "learner", lambda role: seen.append(role.learner.policy.reference()))
    run(made, 1)
    (reference,) = seen[0].values()
    assert len(reference) == 5 and all(image.any() for image in reference)


@pytest.mark.parametrize("fields, refused", [
    (dict(minibatches=8, min_fraction=0.25), False), (dict(minibatches=9, min_fraction=0.25), True),
    (dict(minibatches=9, min_fraction=0.25, sync_frac=1.1), False), (dict(minibatches=16, min_fraction=0.5), False),
    (dict(minibatches=33, min_fraction=0.25, sync_frac=1.1), True),
    (dict(minibatches=9, min_fraction=0.25, sync_frac=1.0), True),
])  # fmt: skip
def test_minibatches_of_a_rank_are_no_more_than_the_steps_of_its_shortest_rollout(
    fields: dict[str, Any], refused: bool
) -> None:
    cfg = config("dd-ppo", **{**CPU, "envs": 4, "unroll": 8, **fields})
    if refused:
        with pytest.raises(UsageError, match="the shortest rollout"):
            dd_ppo.program(cfg)
    else:
        dd_ppo.program(cfg)
