"""Each system collapses to a simpler one and must then give the same numbers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from helpers import Snapshots, config, ppo_learner, record_batches, run
from present import present

import shoal
from shoal.api import UsageError, observations
from shoal.learning.differentiate import differentiate
from shoal.local.runtime import LocalRuntime
from shoal.nets.q_network import QNetwork
from shoal.nets.recurrent import start_state
from shoal.runtime.launch import Launch, Stop
from shoal.systems import dqn, impala, load, recurrent_ppo


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_apex_with_one_actor_and_uniform_sampling_is_n_step_dqn():
    common = dict(env="CartPole-v1", n_step=3, dueling=True, prioritised=False, envs=1, unroll=4)
    apex = run(load("apex-dqn").program(config("apex-dqn", epsilon_base=0.4, **common)), 60)
    plain = run(load("dqn").program(config("dqn", epsilon_start=0.4, epsilon_end=0.4, **common)), 60)
    assert apex.steps == plain.steps > 100
    same(apex.params["params"], plain.params["params"])


@pytest.mark.parametrize("actor_priorities", [True, False])
def test_apex_with_one_actor_is_prioritised_dqn_with_a_ladder(actor_priorities):
    common = dict(env="CartPole-v1", dueling=True, prioritised=True, envs=4, unroll=4, importance_exponent=0.4,
                  actor_priorities=actor_priorities)  # fmt: skip
    apex = run(load("apex-dqn").program(config("apex-dqn", **common)), 60)
    plain = run(load("dqn").program(config("dqn", epsilon_ladder=True, epsilon_steps=0, **common)), 60)
    assert apex.steps == plain.steps > 100
    same(apex.params["params"], plain.params["params"])


def test_apex_with_prioritised_sampling_differs_from_dqn():
    """The identity above is not trivially true."""
    common = dict(env="CartPole-v1", n_step=3, dueling=True, envs=1, unroll=4)
    apex = run(load("apex-dqn").program(config("apex-dqn", prioritised=True, **common)), 30)
    plain = run(load("dqn").program(config("dqn", epsilon_start=0.4, epsilon_end=0.4, **common)), 30)
    assert not all(torch.equal(v, plain.params["params"][k]) for k, v in apex.params["params"].items())


def test_impala_without_lag_is_n_step_actor_critic():
    """With pi = mu, V-trace's targets are n-step returns: an independent actor-critic makes the same gradients."""
    cfg = config("impala", env="CartPole-v1", learning_rate=1e-3, max_grad_norm=1e9, entropy_cost=0.02, value_cost=0.3)
    program = impala.program(cfg)
    seen = record_batches(program)
    run(program, 40)
    assert len(seen) == 40
    ended = 0
    for batch, params in seen:
        items = batch.items
        nets = impala.network(cfg)
        nets.load_state_dict(params)
        differentiate(impala.VTrace(cfg, nets), batch)
        grads = [present(p.grad).clone() for p in nets.parameters()]
        nets.zero_grad()
        advantage_actor_critic(cfg, nets, items).backward()
        for p, g in zip(nets.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-6)
        ended += int((items["terminated"] | items["truncated"]).sum())
    assert ended > 10  # episode ends were exercised


def advantage_actor_critic(cfg, nets, items):
    """n-step actor-critic, written as a loop over every trajectory."""
    policy, value = nets.unroll(observations(items), items["first"], start_state(items))
    steps, envs = items["reward"].shape
    total, count = 0.0, 0
    for b in range(envs):
        ret = value[steps, b].item()
        for t in reversed(range(steps)):
            if not items["valid"][t, b]:
                ret = None
                continue
            if items["terminated"][t, b]:
                ret = 0.0
            elif items["truncated"][t, b] or ret is None:
                ret = value[t + 1, b].item()
            ret = items["reward"][t, b].item() + cfg.gamma * ret
            logs = torch.log_softmax(policy[t, b], -1)
            advantage = ret - value[t, b].item()
            total = total - advantage * logs[items["action"][t, b]]
            total = total + cfg.value_cost * 0.5 * (ret - value[t, b]) ** 2
            total = total + cfg.entropy_cost * (logs.exp() * logs).sum()
            count += 1
    return total / count


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("env", ["CartPole-v1", "toy:point", "toy:multi"])
def test_the_learner_reproduces_the_actors_logits(core, env):
    """IMPALA sheet, invariant 9: the learner's forward with the actor's weights gives the stored behaviour policy."""
    cfg = config("impala", env=env, core=core, core_size=12, last_action_reward=True)
    program = impala.program(cfg)
    seen = record_batches(program)
    run(program, 12)
    for batch, params in seen:
        nets = impala.network(cfg)
        nets.load_state_dict(params)
        policy, _ = nets.unroll(observations(batch.items), batch.items["first"], start_state(batch.items))
        torch.testing.assert_close(policy[:-1], batch.items["policy"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("env", ["CartPole-v1", "toy:point", "toy:multi"])
def test_ppo_ratio_is_one_on_the_first_minibatch(core, env):
    """Recurrent PPO sheet, invariant 7, over many updates with changing statistics, states and episode ends."""
    cfg = config(
        "recurrent-ppo", env=env, core=core, core_size=12, actors=2, normalise_obs=True, normalise_reward=True,
        learning_rate=shoal.linear(3e-3, 0),
    )  # fmt: skip
    observer = Snapshots()
    program = recurrent_ppo.program(cfg)
    errors, kls = [], []

    def attach(role):
        update = role.learner.update

        def recorded(batch):
            result = update(batch)
            errors.append(float(result.metrics["ratio_error"]))
            kls.append(float(result.metrics["kl"]))
            return result

        role.learner.update = recorded

    from helpers import spy

    run(spy(program, "learner", attach), 15, observers=[observer])
    assert len(errors) == 15
    assert max(errors) < 1e-5
    assert max(kls) > 1e-6  # later minibatches did move the policy


@pytest.mark.parametrize(
    "fields", [{}, dict(separate_critic=True), dict(core="gru", core_size=12), dict(env="toy:catch", torso="nature")],
    ids=["perceptron", "two networks", "gru", "images"],
)  # fmt: skip
def test_ppo_by_hand_is_ppo_by_operations(fields, monkeypatch):
    """Whatever the network, its discrete actions have by hand the gradients that autograd finds of ``ppo_loss``: those
    of each minibatch at the same parameters, since a rounding error sends later ones another way."""
    cfg = config(
        "recurrent-ppo", **{"env": "CartPole-v1", **fields}, entropy_cost=0.2, clip_value=True, clip=0.05,
        learning_rate=2e-2,
    )  # fmt: skip
    program = recurrent_ppo.program(cfg)
    seen = record_batches(program)
    run(program, 3)
    calls = []

    def by_operations(outputs, action, *rest, **rule):
        calls.append(len(outputs))
        dist = recurrent_ppo.network(cfg).dist
        return recurrent_ppo.ppo_loss(*dist.evaluate(outputs[:, :-1], action), outputs[:, -1], *rest, **rule)

    def learned(path):
        """Metrics and gradients of every minibatch; before each the parameters are those of ``path``, if there is
        one."""
        learner, made = ppo_learner(cfg), list[Any]()
        step = learner.workers.step

        def recorded(rows):
            if path:
                learner.nets.load_state_dict(path[len(made)][0])
            before = {k: v.clone() for k, v in learner.nets.state_dict().items()}
            result = step(rows)
            made.append((before, [present(p.grad).clone() for p in learner.nets.parameters()], result[2]))
            return result

        learner.workers.step = recorded  # type: ignore[method-assign]
        for batch, _ in seen:
            learner.update(batch)
        return made

    hand = learned(None)
    monkeypatch.setattr("shoal.systems.recurrent_ppo.discrete_ppo_loss", by_operations)
    operations = learned(hand)
    assert calls and len(hand) == len(operations) == 3 * cfg.epochs * cfg.minibatches
    clipped = recurrent_ppo.METRICS.index("clip_fraction")
    assert sum(metrics[0, clipped].item() for _, _, metrics in hand) > 0.0
    for (_, found, metrics), (_, wanted, expected) in zip(hand, operations, strict=True):
        torch.testing.assert_close(metrics, expected, rtol=1e-4, atol=1e-5)
        one, other = (torch.cat([g.flatten() for g in grads]) for grads in (found, wanted))
        assert (one - other).norm() <= 1e-3 * other.norm()  # of a unit at its kink either side is right


def impala_gradients(batch, params, **fields):
    """Of one batch with the given parameters."""
    cfg = config("impala", env="CartPole-v1", **fields)
    nets = impala.network(cfg)
    nets.load_state_dict(params)
    differentiate(impala.VTrace(cfg, nets), batch)
    return torch.cat([present(p.grad).flatten() for p in nets.parameters()])


@pytest.mark.parametrize("correction", ["one-step", "epsilon", "none"])
def test_without_lag_no_correction_changes_anything_and_with_it_each_does(correction):
    """IMPALA, section 5.2.2: on policy all importance weights are 1; an epsilon of 1e-6 is hardly seen."""
    for lag in 0, 3:
        program = impala.program(config("impala", env="CartPole-v1", learning_rate=shoal.linear(3e-2, 0), lag=lag))
        seen = record_batches(program)
        run(program, 10)
        batch, params = seen[-1]
        wanted, found = impala_gradients(batch, params), impala_gradients(batch, params, correction=correction)
        if lag == 0:
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
        else:
            assert (found - wanted).abs().max() > 1e-3


def test_impala_under_lag_is_corrected():
    """With parameters three versions old the importance weights leave 1: the identity tests above can fail."""
    cfg = config("impala", env="CartPole-v1", learning_rate=shoal.linear(3e-2, 0), lag=3)
    program = impala.program(cfg)
    seen = record_batches(program)
    run(program, 10)
    batch, params = seen[-1]
    nets = impala.network(cfg)
    nets.load_state_dict(params)
    policy, _ = nets.unroll(observations(batch.items), batch.items["first"], start_state(batch.items))
    assert (policy[:-1] - batch.items["policy"]).abs().max() > 1e-3


def test_only_the_serial_runtime_keeps_a_lag():
    program = impala.program(config("impala", env="CartPole-v1", lag=3))
    with pytest.raises(UsageError, match="'params' has a lag of 3, which only the serial runtime keeps"):
        LocalRuntime().launch(program, Launch(stop=Stop(updates=1)))


def test_the_messages_of_two_workers_are_one_with_twice_the_environments():
    """Recurrent PPO sheet, invariant 11, at the learner, which in lockstep gets one message of each side by side."""
    cfg = config("recurrent-ppo", env="CartPole-v1", actors=2)
    program = recurrent_ppo.program(cfg)
    seen = record_batches(program)
    run(program, 3)
    items = seen[0][0].items
    assert items["obs"].shape[1] == 2 * cfg.envs
    assert [batch.versions for batch, _ in seen] == [(1, 1), (2, 2), (3, 3)], "in lockstep"
    assert not np.array_equal(items["obs"][0, : cfg.envs], items["obs"][0, cfg.envs :])  # seeds differ


def test_dqn_target_is_double_q():
    """dqn-family sheet, item 5: online [1, 2], target [5, 3], r = 0, gamma = 0.9: double 2.7, plain 4.5."""
    from shoal.api import Batch
    from shoal.learning.off_policy import QLearningConfig
    from shoal.systems.dqn import QLearning

    class Table(torch.nn.Module):
        def __init__(self, values):
            super().__init__()
            self.values = torch.nn.Parameter(torch.tensor(values))

        def forward(self, obs):
            return self.values.expand(len(obs["obs"]), -1)

    items = {
        "obs": torch.zeros(1, 1), "next/obs": torch.zeros(1, 1), "action": torch.tensor([0]),
        "reward": torch.zeros(1), "discount": torch.tensor([0.9]),
    }  # fmt: skip
    for double, target in ((True, 2.7), (False, 4.5)):
        algorithm: Any = QLearning(QLearningConfig(double=double, td_clip=None), cast(QNetwork, Table([1.0, 2.0])))
        algorithm.target = Table([5.0, 3.0])
        loss, _ = algorithm.loss(algorithm.nets(items), algorithm.prepare(Batch(items)))
        assert loss.item() == pytest.approx(0.5 * (target - 1.0) ** 2)


def test_dqn_snapshot_of_defaults_is_serial_deterministic():
    cfg = config("dqn", env="CartPole-v1", prioritised=True)
    first, second = (run(dqn.program(cfg), 50, seed=3) for _ in range(2))
    assert first.steps == second.steps and first.episode_return == second.episode_return
    same(first.params["params"], second.params["params"])
