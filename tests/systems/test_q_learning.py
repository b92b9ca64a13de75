"""Q-learning's gradient, which it works out itself, against autograd's."""

from __future__ import annotations

import copy
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from drawn import ENV, ROWS, batch
from helpers import config, run, spy
from present import present
from torch.nn import functional as F

from shoal import fast, linear
from shoal.api import Action, Batch, Context, EnvSpec, Observation
from shoal.learning import data_parallel
from shoal.learning.differentiate import differentiate
from shoal.learning.learner import SGDLearner
from shoal.learning.off_policy import QLearningConfig
from shoal.local.workers import Team
from shoal.metering.recorder import Recorder
from shoal.nets.q_network import QNetwork
from shoal.ops import Adam, RMSProp, importance_weights
from shoal.systems import dqn
from shoal.systems.dqn import QLearning


@pytest.mark.parametrize("hidden", [(32, 16), (8,), ()])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("clip, reduction, beta", [(1.0, "mean", None), (None, "sum", None), (0.5, "mean", 0.4)])
def test_loss_and_gradient_are_those_of_autograd(hidden, dueling, double, clip, reduction, beta) -> None:
    torch.manual_seed(1)
    nets, given = QNetwork(ENV, hidden=hidden, dueling=dueling), batch()
    assert (nets.perceptron is None) == (dueling or not fast.ENABLED)
    cfg = QLearningConfig(double=double, td_clip=clip, reduction=reduction, prioritised=beta is not None)
    algorithm = QLearning(cfg, nets, beta)
    for p in algorithm.target.parameters():
        p.add_(0.1 * torch.randn_like(p))
    value, joined, update = differentiate(algorithm, algorithm.prepare(given))
    gradients = [p.grad for p in nets.parameters()]
    assert (joined is None) == (dueling or not fast.ENABLED)  # a perceptron gives its gradient as one vector as well
    if joined is not None:
        assert torch.equal(joined, torch.cat([present(g).flatten() for g in gradients]))
    nets.zero_grad()

    q = nets({"obs": given.items["obs"]}).gather(1, given.items["action"][:, None])[:, 0]
    with torch.no_grad():
        after = {"obs": given.items["next/obs"]}
        q_next = algorithm.target(after)
        best = (nets(after) if double else q_next).argmax(1)
        target = given.items["reward"] + given.items["discount"] * q_next[torch.arange(ROWS), best]
    per_item = 0.5 * (q - target) ** 2 if clip is None else F.huber_loss(q, target, reduction="none", delta=clip)
    if beta:
        per_item = per_item * importance_weights(present(given.probs), given.size, beta)
    loss = per_item.mean() if reduction == "mean" else per_item.sum()
    loss.backward()
    assert value == pytest.approx(loss.item(), rel=1e-5)
    for p, gradient in zip(nets.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, p.grad, rtol=1e-4, atol=1e-6)
    error = (target - q).detach().abs()
    assert float(update.metrics["td_error"]) == pytest.approx(float(error.mean()), rel=1e-5)
    assert (update.priorities is not None) == (beta is not None)
    if update.priorities is not None:
        torch.testing.assert_close(update.priorities, error)


def test_a_copied_network_computes_with_its_own_parameters() -> None:
    nets, obs = QNetwork(ENV, hidden=(8,)), {"obs": torch.randn(5, 4)}
    other = copy.deepcopy(nets)
    with torch.no_grad():
        before = nets(obs)
        for p in other.parameters():
            p.zero_()
        torch.testing.assert_close(nets(obs), before)
        assert not other(obs).any()
    torch.testing.assert_close(nets(obs).detach(), before)  # by modules and autograd


@pytest.mark.usefixtures("fast_enabled")
@pytest.mark.parametrize("dueling", [False, True])
def test_a_target_network_in_bfloat16_holds_rounded_weights_of_the_same_values(dueling: bool) -> None:
    """Those that autocast would round at every call, from the beginning and after each copy; a state of it restores."""
    torch.manual_seed(0)
    frames = EnvSpec("test", {"obs": Observation((4, 84, 84), "uint8", "image")}, Action("discrete", (3,)))
    nets = QNetwork(frames, torso="nature", dueling=dueling, precision="bf16")
    cfg = QLearningConfig(double=False, target_period=2)
    algorithm = QLearning(cfg, nets)
    obs = {"obs": torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)}
    with torch.no_grad():
        for step in 1, 2:
            assert torch.equal(algorithm.target(obs), nets(obs)) == (step == 1)
            for p in nets.parameters():
                p.add_(0.01 * torch.randn_like(p))
            algorithm.after_step(step)
        assert torch.equal(algorithm.target(obs), nets(obs))
        other = QLearning(cfg, copy.deepcopy(nets))
        for p in other.target.parameters():
            p.zero_()
        other.load_state_dict(algorithm.state_dict())
        assert torch.equal(other.target(obs), nets(obs))
    sizes = {dtype: sum(p.numel() for p in algorithm.target.parameters() if p.dtype == dtype) for dtype in
             (torch.float32, torch.bfloat16)}  # fmt: skip
    assert sizes[torch.bfloat16] > 100 * sizes[torch.float32] > 0, sizes


SMALL = EnvSpec("test", {"obs": Observation((4, 20, 20), "uint8", "image")}, Action("discrete", (3,)))


@pytest.mark.skipif(sys.platform != "linux", reason="teams fork")
@pytest.mark.parametrize("env, members", [(ENV, 2), (SMALL, 2), (SMALL, 3)], ids=["vectors", "images", "of three"])
@pytest.mark.parametrize("dueling, prioritised, rmsprop, movers", [
    (False, False, False, "all"), (True, True, False, "all"), (False, True, True, "all"), (True, False, True, "one"),
])  # fmt: skip
def test_a_team_learns_what_one_learns(env, members, dueling, prioritised, rmsprop, movers, monkeypatch) -> None:
    """Over several updates and copies into the target network. The second half is learned by a learner that goes on
    from the state of the first, which the first does not change by learning on."""
    monkeypatch.setattr(data_parallel, "DIVIDED", 0 if movers == "all" else 10**9)
    torch.manual_seed(2)
    nets = QNetwork(env, dueling=dueling, precision="fp32")

    def learner(team: Team | None) -> SGDLearner:
        own = copy.deepcopy(nets)
        clip, rate = linear(1.0, 0.1), linear(1e-3, 1e-4)
        cfg = QLearningConfig(double=dueling, target_period=3, prioritised=prioritised, td_clip=clip)
        algorithm = QLearning(cfg, own, linear(0.4, 1.0) if prioritised else None)
        optimiser = RMSProp(own.parameters(), rate, centred=True) if rmsprop else Adam(own.parameters(), rate, eps=1e-3)
        limit = linear(0.04, 0.001)
        return SGDLearner(algorithm, optimiser, max_grad_norm=limit, progress=lambda update: update / 8, team=team)

    def drawn(seed: int) -> Batch:
        given = batch(seed)
        if env is SMALL:
            frames = torch.randint(0, 256, (2, ROWS, 4, 20, 20), dtype=torch.uint8)
            given.items.update({"obs": frames[0], "next/obs": frames[1]})
        return given

    first, second = Team(members), Team(members)
    try:
        alone, together, other = learner(None), learner(first), learner(second)
        for number in range(8):
            given = drawn(number)
            if number == 4:
                other.update(given)  # its copies are there when it is given the state
                state = together.state_dict()
                before = copy.deepcopy(state)
                together.update(given)
                torch.testing.assert_close(state, before, rtol=0, atol=0)
                other.load_state_dict(state)
                together = other
            one, many = alone.update(given), together.update(given)
            assert one.metrics.keys() <= many.metrics.keys() and ("q_mean" in one.metrics) == (number == 0)
            for name, value in one.metrics.items():
                assert float(many.metrics[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-5), name
            assert one.metrics["grad_norm"] > linear(0.04, 0.001).at(number / 8), "else nothing is clipped"
            assert (one.priorities is not None) == (many.priorities is not None) == prioritised
            if one.priorities is not None:
                torch.testing.assert_close(many.priorities, one.priorities, rtol=1e-3, atol=1e-4)
        for name, tensor in alone.params().items():
            torch.testing.assert_close(together.params()[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
            assert not torch.equal(tensor, nets.state_dict()[name]), name
        torch.testing.assert_close(
            together.state_dict()["algorithm"]["target"],
            alone.state_dict()["algorithm"]["target"],
            rtol=1e-3,
            atol=1e-5,
        )
    finally:
        first.close()
        second.close()


def test_epsilon_may_have_its_last_value_from_the_beginning() -> None:
    cfg = dqn.Config(env="CartPole-v1", epsilon_steps=0, epsilon_end=0.25, hidden=(8,), device="cpu")
    agent = dqn.agent(cfg, 0, Context("actor", 0, 1, 0, 0, Recorder()))
    assert agent.epsilon(0) == agent.epsilon(10_000) == 0.25


def test_epsilon_falls_to_a_rung_of_each_environment() -> None:
    """Two actors of two environments, on a ladder of four rungs: 0.4^(1 + 7 i / 3)."""
    cfg = dqn.Config(env="CartPole-v1", envs=2, epsilon_ladder=True, epsilon_steps=100, hidden=(8,), device="cpu")
    agents = [dqn.agent(cfg, 0, Context("actor", i, 2, 0, 0, Recorder())) for i in range(2)]
    rungs = np.array([0.4, 0.0471556, 0.00555913, 0.00065536])
    for agent, own in zip(agents, (rungs[:2], rungs[2:]), strict=True):
        assert np.all(agent.epsilon(0) == 1.0)
        np.testing.assert_allclose(agent.epsilon(25), (1 + own) / 2, rtol=1e-5)  # 50 of both
        np.testing.assert_allclose(agent.epsilon(50), own, rtol=1e-5)


def same_step(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    makers = [lambda: gym.make("CartPole-v1", max_episode_steps=5)] * num_envs
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def test_a_look_at_the_last_observation_is_no_action() -> None:
    """Epsilon falls with the actions that are taken, also where an actor values what truncated episodes end with."""
    cfg = config("dqn", env=f"{__name__}:same_step", actor_priorities=True, prioritised=True, envs=2)
    program, agents = dqn.program(cfg), []
    spy(program, "actor", lambda role: agents.append(role.agent))
    report = run(program, 20)
    assert report.episodes > 2 and agents[0].steps == report.steps


def test_an_agent_that_explores_acts() -> None:
    cfg = dqn.Config(env="CartPole-v1", epsilon_steps=0, epsilon_end=0.25, hidden=(8,), device="cpu")
    agent = dqn.agent(cfg, 0, Context("actor", 0, 1, 0, 0, Recorder()))
    act = agent.act({"obs": np.zeros((200, 4), np.float32)}, np.ones(200, bool), {})
    assert 5 < min(np.bincount(act.action, minlength=2)) < 60, "a quarter of them is drawn, half of these the other one"


def test_an_agent_tells_the_value_of_the_action_it_takes_and_the_largest() -> None:
    fields = dict(epsilon_steps=0, epsilon_end=0.5, actor_priorities=True, prioritised=True)
    cfg = dqn.Config(env="CartPole-v1", hidden=(8,), device="cpu", **fields)  # type: ignore[arg-type]
    torch.manual_seed(0)
    agent = dqn.agent(cfg, 0, Context("actor", 0, 1, 0, 0, Recorder()))
    obs = {"obs": np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)}
    act = agent.act(obs, np.ones(50, bool), {})
    with torch.no_grad():
        values = agent.nets({"obs": torch.from_numpy(obs["obs"])}).numpy()
    np.testing.assert_allclose(act.extras["q_taken"], values[np.arange(50), act.action], rtol=1e-5)
    np.testing.assert_allclose(act.extras["q_max"], values.max(1), rtol=1e-5)
    assert 5 < np.count_nonzero(act.extras["q_taken"] < act.extras["q_max"]) < 25
