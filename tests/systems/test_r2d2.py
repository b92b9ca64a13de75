"""R2D2's own promises: stored states, burn-in, its collapse into double DQN, and what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import config, record_batches, run, spy
from present import present

from shoal.api import UsageError
from shoal.learning.differentiate import differentiate
from shoal.program import Program
from shoal.systems import dqn, r2d2
from shoal.systems.r2d2 import RecurrentQLearning


def small(**fields: Any) -> r2d2.Config:
    return config("r2d2", **{"env": "CartPole-v1", **fields})


def rule(cfg: r2d2.Config) -> RecurrentQLearning:
    return RecurrentQLearning(cfg, r2d2.network(cfg), cfg.importance_exponent)


def batches(cfg: r2d2.Config, updates: int = 12) -> list[Any]:
    program = r2d2.program(cfg)
    seen = record_batches(program)
    run(program, updates)
    return seen


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("env", ["CartPole-v1", "toy:catch", "toy:memory"])
def test_the_unroll_from_the_stored_state_reproduces_the_actors_values(core: str, env: str) -> None:
    """r2d2-r2d3 4.6 and 4.7: without lag (a learning rate of 0), the largest values and those of the actions taken are
    the actor's to 1e-5, over burn-in, episode ends and sequences that begin with an episode; and delta Q is 0."""
    cfg = small(env=env, core=core, learning_rate=0.0, torso="mlp", frame_stack=2)
    program, told = r2d2.program(cfg), dict[tuple[float, ...], list[Any]]()

    def attach(actor: Any) -> None:
        act = actor.agent.act

        def recorded(obs: Any, first: Any, state: Any, greedy: bool = False) -> Any:
            result = act(obs, first, state, greedy)
            for e in range(len(first)):
                key = tuple(np.concatenate([v[e].ravel() for v in obs.values()]).tolist())
                told.setdefault(key, []).append((result.extras["q_taken"][e], result.extras["q_max"][e]))
            return result

        actor.agent.act = recorded

    spy(program, "actor", attach)
    seen = record_batches(program)
    stale: list[float] = []

    def watch(role: Any) -> None:
        update = role.learner.update

        def recorded(batch: Any) -> Any:
            result = update(batch)
            stale.extend(float(v) for k, v in result.metrics.items() if k.startswith("delta_q"))
            return result

        role.learner.update = recorded

    run(spy(program, "learner", watch), 15)
    checked = burnt = 0
    for batch, params in seen:
        nets = r2d2.network(cfg)
        nets.load_state_dict(params)
        with torch.no_grad():
            values = nets(batch.items)
        valid = batch.items["valid"][cfg.burn_in :]
        q = values.gather(-1, batch.items["action"][cfg.burn_in :].unsqueeze(-1)).squeeze(-1)
        leaves = [batch.items[k][cfg.burn_in :] for k in batch.items if k == "obs" or k.startswith("obs/")]
        for t, b in valid.nonzero().tolist():
            key = tuple(np.concatenate([v[t, b].numpy().ravel() for v in leaves]).tolist())
            found = np.array([q[t, b], values[t, b].max()])
            assert min(np.abs(found - np.array(x)).max() for x in told[key]) < 1e-5, (t, b)
            checked += 1
        burnt += int(batch.items["valid"][: cfg.burn_in].sum())
    assert checked > 300 and (burnt > 100 or env == "toy:memory") and stale and max(stale) < 1e-5


def test_stored_states_grow_stale_when_the_network_learns() -> None:
    """The check above can fail: with learning, delta Q leaves 0."""
    cfg = small(learning_rate=1e-2)
    algorithm = rule(cfg)
    batch, params = batches(cfg, 40)[-1]
    algorithm.nets.load_state_dict(params)
    found = algorithm.staleness(algorithm.nets(batch.items).detach(), batch.items)
    assert found["delta_q_first"] > 1e-4 and found["delta_q_last"] > 1e-4


def test_delta_q_by_hand() -> None:
    """The distance of two vectors of values over the sequence's largest value, averaged over sequences."""
    cfg = small(learning_rate=1e-2)
    algorithm = rule(cfg)
    batch, params = batches(cfg, 20)[-1]
    nets, items, begin = algorithm.nets, batch.items, cfg.burn_in
    nets.load_state_dict(params)
    with torch.no_grad():
        values = nets(items)
        found = algorithm.staleness(values, items)
        expected: dict[str, list[float]] = {"first": [], "last": []}
        for b in range(cfg.batch):
            steps = int(items["valid"][begin:, b].sum())
            largest = abs(float(values[: steps + 1, b].max()))
            for name, at in (("first", 0), ("last", cfg.sequence - 1)):
                if at >= steps:
                    continue
                obs = {k: v[begin + at, b][None] for k, v in items.items() if k == "obs" or k.startswith("obs/")}
                state = {k: items[f"probe/{name}/{k}"][b][None] for k in ("h", "c")}
                q, _ = nets.step(obs, items["first"][begin + at, b][None], state)
                expected[name].append(float((values[at, b] - q[0]).norm()) / largest)
    for name in expected:
        assert float(found[f"delta_q_{name}"]) == pytest.approx(float(np.mean(expected[name])), rel=1e-4)


def test_no_gradient_flows_into_the_burn_in() -> None:
    """r2d2-r2d3 4.5; and both networks burn in, each from the stored state with its own weights."""
    cfg = small()
    algorithm = rule(cfg)
    batch, params = batches(cfg)[-1]
    algorithm.nets.load_state_dict(params)
    items = {k: v.clone() for k, v in batch.items.items()}
    items["obs"].requires_grad_()
    prepared = algorithm.prepare(batch._replace(items=items))
    loss, _ = algorithm.loss(algorithm.nets(items), prepared)
    (gradient,) = torch.autograd.grad(loss, items["obs"])
    assert not gradient[: cfg.burn_in].any() and gradient[cfg.burn_in :].any()
    moved = {k: v.clone() for k, v in batch.items.items()}
    moved["obs"][: cfg.burn_in] += 1.0
    for nets in (algorithm.nets, algorithm.target):
        with torch.no_grad():
            assert (nets(moved) - nets(dict(batch.items))).abs().max() > 1e-4, "the burn-in sets the state"
    with torch.no_grad():
        online, target = algorithm.nets(dict(batch.items)), algorithm.target(dict(batch.items))
    assert (online - target).abs().max() > 1e-4


def test_the_loss_by_hand() -> None:
    """Half the squared errors summed over real steps, importance weights of the batch, mean over sequences; priorities
    mix the largest and the mean error of the real steps."""
    cfg = small(n_step=2)
    algorithm = rule(cfg)
    batch, params = batches(cfg)[-1]
    algorithm.nets.load_state_dict(params)
    items, begin = batch.items, cfg.burn_in
    with torch.no_grad():
        online, target = algorithm.nets(items), algorithm.target(items)
        loss, update = algorithm.loss(online, algorithm.prepare(batch))

    def h(x: float) -> float:
        return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x)

    def inverse(y: float) -> float:
        return float(np.sign(y) * (((np.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1))

    weights = (batch.probs.min() / batch.probs) ** 0.6
    total, priorities, ends = 0.0, [], 0
    for b in range(cfg.batch):
        steps, errors = int(items["valid"][begin:, b].sum()), []
        for t in range(steps):
            width, ret = min(2, steps - t), 0.0
            for k in range(width):
                ret += cfg.gamma**k * float(items["reward"][begin + t + k, b])
            if not items["terminated"][begin + t + width - 1, b]:
                best = int(online[t + width, b].argmax())
                ret += cfg.gamma**width * inverse(float(target[t + width, b, best].double()))
            else:
                ends += 1
            errors.append(h(ret) - float(online[t, b, items["action"][begin + t, b]]))
        total += float(weights[b]) * sum(0.5 * e * e for e in errors) / cfg.batch
        size = np.abs(errors)
        priorities.append(0.9 * size.max() + 0.1 * size.mean())
    assert ends > 0
    assert float(loss) == pytest.approx(total, rel=1e-3)
    np.testing.assert_allclose(present(update.priorities).numpy(), priorities, rtol=2e-3, atol=1e-3)


def test_strategies_differ_in_the_state_they_start_from() -> None:
    """Section 3: zero or stored state, with and without burn-in; a zero state ignores what was stored."""
    cfg = small()
    batch, params = next(pair for pair in batches(cfg) if not pair[0].items["first"].any(0).all())
    found = {}
    for start in ("stored", "zero"):
        nets = r2d2.network(small(start_state=start))
        nets.load_state_dict(params)
        other = {k: v + 1 if k.startswith("state/") else v for k, v in batch.items.items()}
        with torch.no_grad():
            found[start] = nets(batch.items)
            ignored = torch.equal(nets(other), found[start])
        assert ignored == (start == "zero")
    assert not torch.equal(found["stored"], found["zero"])
    assert batches(small(start_state="zero", staleness=False), 2)[0][0].items.keys().isdisjoint({"state/h", "state/c"})
    assert batches(small(start_state="zero", burn_in=0), 2)[0][0].items["obs"].shape[0] == 9


def renamed(program: Program, old: str, new: str) -> Program:
    """The program with another name for a channel, from which the seed of its table follows."""
    channel = replace(program.channels.pop(old), name=new)
    program.channels = {new: channel, **program.channels}
    program.roles = [
        replace(r, ports={k: replace(p, channel=channel) if p.channel.name == old else p for k, p in r.ports.items()})
        for r in program.roles
    ]
    return program


def test_with_sequences_of_one_step_it_is_double_dqn() -> None:
    """r2d2-r2d3 4.9: n = 1, h = identity, l = 0, m = 1, no core, uniform: double DQN on the same transitions."""
    common = dict(env="CartPole-v1", envs=1, unroll=4, hidden=(16,), n_step=1, gamma=0.99, batch=16, min_replay=64,
                  replay=2_000, target_period=10, learning_rate=1e-3, optimiser_eps=1e-5, max_grad_norm=10.0,
                  samples_per_insert=8.0, dueling=False, prioritised=False)  # fmt: skip
    recurrent = r2d2.program(
        config("r2d2", **common, core="none", sequence=1, overlap=0, burn_in=0, rescale=None, last_action_reward=False)
    )
    plain = dqn.program(config("dqn", **common, td_clip=None, epsilon_start=0.4, epsilon_end=0.4))
    renamed(plain, "transitions", "sequences")
    seen, theirs = record_batches(recurrent), record_batches(plain)
    found, expected = run(recurrent, 60), run(plain, 60)
    assert found.steps == expected.steps > 100
    for (mine, _), (other, _) in zip(seen, theirs, strict=True):
        assert torch.equal(mine.items["obs"][0], other.items["obs"])
        assert torch.equal(mine.items["obs"][1], other.items["next/obs"])
    for name, value in expected.params["params"].items():
        torch.testing.assert_close(found.params["params"][name], value, rtol=1e-4, atol=1e-6)


def test_with_two_steps_it_is_not() -> None:
    """The identity above is not trivially true: two steps of the target make other numbers."""
    cfg = small(core="none", sequence=1, overlap=0, burn_in=0, n_step=1, prioritised=False)
    one = run(r2d2.program(cfg), 20)
    two = run(r2d2.program(small(core="none", sequence=2, overlap=1, burn_in=0, n_step=2, prioritised=False)), 20)
    assert not all(torch.equal(v, two.params["params"][k]) for k, v in one.params["params"].items())


def test_the_ratio_counts_steps() -> None:
    """samples_per_insert is steps learned from per environment step, whatever the sequences' length and overlap."""
    cfg = small(env="toy:memory", samples_per_insert=2.0, sequence=4, overlap=2, burn_in=2, batch=4)
    ratio = cfg.ratio()
    assert ratio.samples_per_insert == pytest.approx(2.0 * 2 / 4) and ratio.slack >= 8
    assert small(samples_per_insert=0.0).ratio().samples_per_insert is None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"overlap \(8\) must be less than sequence \(8\), both in steps"):
        r2d2.program(small(overlap=8))
    with pytest.raises(UsageError, match=r"learner_processes \(2\) must be 0 or 1: this system shares no gradient"):
        r2d2.program(small(learner_processes=2))
    with pytest.raises(UsageError, match="r2d2 supports Discrete actions; toy:point has Box"):
        r2d2.program(small(env="toy:point"))


def test_the_target_is_copied_every_so_many_updates() -> None:
    algorithm = rule(small(target_period=3))
    before = copy.deepcopy(algorithm.target.state_dict())
    with torch.no_grad():
        for p in algorithm.nets.parameters():
            p.add_(1.0)
    for step in (1, 2):
        algorithm.after_step(step)
        assert all(torch.equal(v, before[k]) for k, v in algorithm.target.state_dict().items())
    algorithm.after_step(3)
    assert all(torch.equal(v, algorithm.nets.state_dict()[k]) for k, v in algorithm.target.state_dict().items())


@pytest.mark.parametrize(
    "fields", [{}, dict(dueling=True, start_state="zero"), dict(burn_in=0, env="toy:catch", torso="mlp")]
)
def test_an_update_outside_of_autograd_is_the_one_within(fields: dict[str, Any], fast_enabled: None) -> None:
    """On sequences of a run, with their resets, stored states and burn-in; and the target network's values."""
    cfg = small(**fields)
    batch, params = batches(cfg)[-1]
    found = {}
    for by_hand in (True, False):
        algorithm = rule(cfg)
        algorithm.nets.load_state_dict(params)
        algorithm.target.load_state_dict(params)
        if not by_hand:
            algorithm.nets.by_hand = algorithm.target.by_hand = None
        assert (algorithm.nets.by_hand is not None) == by_hand
        loss, _, update = differentiate(algorithm, algorithm.prepare(batch))
        found[by_hand] = [loss, update.priorities, *(p.grad for p in algorithm.nets.parameters())]
    assert batch.items["first"].any() and len(found[True]) > 8
    for mine, other in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fields", [dict(core="gru"), dict(core="none"), dict(core_size=129), dict(precision="bf16")])
def test_what_is_left_to_autograd(fields: dict[str, Any], fast_enabled: None) -> None:
    assert r2d2.network(small(**fields)).by_hand is None
    assert r2d2.network(small()).by_hand is not None
    assert r2d2.network(small(env="toy:catch")).by_hand is None, "images"
